//! How connections of one listener begin: with a PROXY header, with TLS, and which HTTP they may speak.

use std::sync::Arc;

use rustls::ServerConfig;

use crate::config::{Listen, ProxyProtocol};
use crate::tls;

pub struct Door {
    /// `None` = plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// By ALPN under TLS, by prior knowledge without.
    pub http2: bool,
    pub proxy_protocol: Option<ProxyProtocol>,
}

impl Door {
    /// # Errors
    /// A phrase that says what of TLS cannot be had.
    pub fn new(listen: &Listen) -> Result<Door, String> {
        let tls = listen.tls.as_deref().map(|tls| tls::server_config(tls, listen.http2)).transpose()?;
        Ok(Door { tls, http2: listen.http2, proxy_protocol: listen.proxy_protocol })
    }

    /// Whether HTTP is the first thing that is spoken.
    pub fn is_open(&self) -> bool {
        self.tls.is_none() && self.proxy_protocol.is_none()
    }

    /// What is spoken without TLS.
    pub fn speaks(&self) -> Speaks {
        if self.http2 { Speaks::Either } else { Speaks::Http1 }
    }
}

/// Which HTTP a connection may speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Http1,
    Http2,
    /// The first bytes tell.
    Either,
}
