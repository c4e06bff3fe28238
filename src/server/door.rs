//! How connections of one listener begin: with a PROXY header, with TLS, and which HTTP they may speak.

use std::sync::Arc;

use rustls::ServerConfig;

use crate::config::{Listen, ProxyProtocol};
use crate::tls;

pub struct Door {
    /// `None` = plain HTTP.
    pub tls: Option<Tls>,
    /// By ALPN under TLS, by prior knowledge without.
    pub http2: bool,
    pub proxy_protocol: Option<ProxyProtocol>,
}

pub struct Tls {
    pub config: Arc<ServerConfig>,
    /// What it was made of.
    digest: u64,
}

impl Door {
    /// The door of a listener. If nothing of TLS changed since the door `before`, sessions are resumed across the
    /// change; else they are forgotten, since clients were verified by other rules.
    ///
    /// # Errors
    /// A phrase that says what of TLS cannot be had.
    pub fn new(listen: &Listen, before: Option<&Door>) -> Result<Door, String> {
        let Listen { http2, proxy_protocol, .. } = *listen;
        let known = before.filter(|door| door.http2 == http2).and_then(|door| door.tls.as_ref());
        let tls = match (listen.tls.as_deref(), known) {
            (None, _) => None,
            (Some(wanted), Some(known)) if known.digest == wanted.digest => {
                Some(Tls { config: known.config.clone(), digest: known.digest })
            }
            (Some(wanted), _) => {
                Some(Tls { config: tls::server_config(wanted, http2)?, digest: wanted.digest })
            }
        };
        Ok(Door { tls, http2, proxy_protocol })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn listen(words: &str) -> Listen {
        let text = format!("listen: {{ address: \":1\", {words} }}\nlocations: []\n");
        let loaded = config::parse(&text, "tests/keys/x.yaml").unwrap_or_else(|report| panic!("{report}"));
        loaded.config.listen[0].clone()
    }

    #[test]
    fn tls_that_did_not_change_goes_on() {
        let a = "cert: tls/a.pem, key: tls/a.key.pem";
        let first = Door::new(&listen(&format!("tls: {{ {a} }}")), None).unwrap();
        let config = |door: &Door| door.tls.as_ref().map(|tls| Arc::as_ptr(&tls.config));
        for (words, goes_on) in [
            (format!("tls: {{ {a} }}"), true),
            (format!("tls: {{ {a}, min_version: \"1.2\", client_ca: none }}, http2: true"), true),
            (format!("tls: {{ {a}, client_ca: tls/ca.pem }}"), false),
            (format!("tls: {{ {a}, min_version: \"1.3\" }}"), false),
            (format!("tls: {{ {a} }}, http2: false"), false),
            ("tls: { cert: tls/b.pem, key: tls/b.key.pem }".to_owned(), false),
            ("tls: none".to_owned(), false),
        ] {
            let next = Door::new(&listen(&words), Some(&first)).unwrap();
            assert_eq!(config(&next) == config(&first), goes_on, "{words}");
        }
    }
}
