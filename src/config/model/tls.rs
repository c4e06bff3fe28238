//! The typed model of TLS: whom to trust, and what this side shows. Certificates and keys are read with the file.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;

/// Which HTTP is spoken with the servers of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1; over TLS what the server chooses.
    Auto,
    Http1,
    /// Without TLS by prior knowledge.
    Http2,
}

/// How `https://` servers are met.
#[derive(Debug, Clone)]
pub struct UpstreamTlsConfig {
    /// The authorities that are trusted; `None` = whoever answers is.
    pub roots: Option<Arc<RootCertStore>>,
    /// `None` = each server's own host.
    pub server_name: Option<ServerName<'static>>,
    /// What is shown to servers that ask.
    pub identity: Option<Arc<CertifiedKey>>,
}
