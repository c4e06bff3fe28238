//! The protocol of one listener: PROXY header, TLS, and the HTTP versions its connections may speak.

use std::sync::Arc;

use rustls::{RootCertStore, ServerConfig};

use sluicegate_http::net::deadline::ListenerTerms;
use sluicegate_http::net::tls;
use sluicegate_model::{ListenConfig, ProxyProtocolMode, TlsVersion};

/// The mode with all permissions.
const MODE_ALL: u32 = 0o777;

/// The protocol that new connections of one listener speak, as configured.
#[derive(Clone)]
pub struct ListenerProtocol {
    /// `None` = plain HTTP.
    pub tls: Option<ListenerTls>,
    /// HTTP/2 by ALPN under TLS, by prior knowledge without.
    pub http2: bool,
    /// The use of the PROXY header; `None` = connections begin without one.
    pub proxy_protocol: Option<ProxyProtocolMode>,
    /// Permissions of a unix socket's file.
    pub mode: Option<u32>,
    name: Option<Arc<String>>,
    /// Shared by all connections accepted under these terms, or under terms that were no looser.
    pub terms: Arc<ListenerTerms>,
}

/// The TLS of a listener.
#[derive(Clone)]
pub struct ListenerTls {
    /// The configuration of handshakes, with the sessions that can be resumed.
    pub config: Arc<ServerConfig>,
    client_ca: Option<Arc<RootCertStore>>,
    min_version: TlsVersion,
    /// The digest of the configuration it was built from.
    digest: u64,
}

impl ListenerProtocol {
    /// Builds the protocol of a listener. If its TLS is the same as in `before`, sessions can be resumed across the
    /// change; otherwise they are forgotten, since other rules verified their clients.
    ///
    /// # Errors
    /// A phrase that names the part of TLS that cannot be set up.
    pub fn new(listen: &ListenConfig, before: Option<&ListenerProtocol>) -> Result<ListenerProtocol, String> {
        let ListenConfig { http2, proxy_protocol, mode, .. } = *listen;
        let previous_tls =
            before.filter(|protocol| protocol.http2 == http2).and_then(|protocol| protocol.tls.as_ref());
        let tls = match listen.tls.as_deref() {
            None => None,
            Some(tls_config) => {
                let unchanged = previous_tls.filter(|previous| previous.digest == tls_config.digest);
                let config = match unchanged {
                    Some(previous) => previous.config.clone(),
                    None => tls::server_config(tls_config, http2)?,
                };
                let client_ca = tls_config.client_ca.clone();
                Some(ListenerTls {
                    config,
                    client_ca,
                    min_version: tls_config.min_version,
                    digest: tls_config.digest,
                })
            }
        };
        let name = listen.name.clone().map(Arc::new);
        let terms = Arc::new(ListenerTerms::new(name.clone(), listen.purpose));
        let mut protocol = ListenerProtocol { tls, http2, proxy_protocol, mode, name, terms };
        if let Some(before) = before.filter(|before| !protocol.is_stricter_than(before)) {
            protocol.terms = before.terms.clone();
        }
        Ok(protocol)
    }

    /// The same protocol for another socket, with terms of its own.
    pub fn for_another_socket(&self) -> ListenerProtocol {
        let terms = Arc::new(ListenerTerms::new(self.name.clone(), self.terms.purpose()));
        ListenerProtocol { terms, ..self.clone() }
    }

    /// True if some of the connections that `before` accepted would be rejected here.
    fn is_stricter_than(&self, before: &ListenerProtocol) -> bool {
        let needs_more_tls = match (&before.tls, &self.tls) {
            (None, now) => now.is_some(),
            (Some(_), None) => false,
            (Some(before), Some(now)) => {
                let is_newer = now.min_version == TlsVersion::Tls13 && before.min_version != now.min_version;
                let is_lost = match (&before.client_ca, &now.client_ca) {
                    (_, None) => false,
                    (None, Some(_)) => true,
                    (Some(before), Some(now)) => before.roots.iter().any(|root| !now.roots.contains(root)),
                };
                is_newer || is_lost
            }
        };
        let required =
            |protocol: &ListenerProtocol| protocol.proxy_protocol == Some(ProxyProtocolMode::Required);
        let lost_mode = self.mode.is_some_and(|mode| before.mode.unwrap_or(MODE_ALL) & !mode != 0);
        let serves_another = self.terms.purpose() != before.terms.purpose();
        needs_more_tls || required(self) && !required(before) || lost_mode || serves_another
    }

    /// Puts this in force in place of `before`; returns whether open connections must be checked again.
    pub fn replace_previous(&self, before: &ListenerProtocol) -> bool {
        let is_tightened = !Arc::ptr_eq(&self.terms, &before.terms);
        if is_tightened {
            before.terms.mark_tightened();
        }
        self.terms.allow_http2(self.http2);
        self.terms.set_name(self.name.clone());
        is_tightened || before.http2 && !self.http2
    }

    /// True if a connection begins with HTTP.
    pub fn is_plain_http(&self) -> bool {
        self.tls.is_none() && self.proxy_protocol.is_none()
    }

    /// The HTTP versions without TLS.
    pub fn allowed_http(&self) -> AllowedHttp {
        if self.http2 { AllowedHttp::Either } else { AllowedHttp::Http1 }
    }
}

/// The versions of HTTP that a connection may speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedHttp {
    /// HTTP/1 only.
    Http1,
    /// HTTP/2 only.
    Http2,
    /// Detected from the first bytes.
    Either,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_config as config;

    fn parse_listen(words: &str) -> ListenConfig {
        let text = format!(
            "listen: {{ address: \":1\", {words} }}\nserver: {{ trusted_proxies: 127.0.0.1 }}\nlocations: []\n"
        );
        let loaded =
            config::parse(&text, "../../tests/keys/x.yaml").unwrap_or_else(|report| panic!("{report}"));
        loaded.config.listen[0].clone()
    }

    #[test]
    fn unchanged_tls_keeps_its_sessions() {
        let a = "cert: tls/a.pem, key: tls/a.key.pem";
        let first = ListenerProtocol::new(&parse_listen(&format!("tls: {{ {a} }}")), None).unwrap();
        let config = |protocol: &ListenerProtocol| protocol.tls.as_ref().map(|tls| Arc::as_ptr(&tls.config));
        for (words, stays) in [
            (format!("tls: {{ {a} }}"), true),
            (format!("tls: {{ {a}, min_version: \"1.2\", client_ca: none }}, http2: true"), true),
            (format!("tls: {{ {a}, client_ca: tls/ca.pem }}"), false),
            (format!("tls: {{ {a}, min_version: \"1.3\" }}"), false),
            (format!("tls: {{ {a} }}, http2: false"), false),
            ("tls: { cert: tls/b.pem, key: tls/b.key.pem }".to_owned(), false),
            ("tls: none".to_owned(), false),
        ] {
            let next = ListenerProtocol::new(&parse_listen(&words), Some(&first)).unwrap();
            assert_eq!(config(&next) == config(&first), stays, "{words}");
        }
    }

    #[test]
    fn connections_stay_unless_the_terms_are_stricter() {
        let a = "cert: tls/a.pem, key: tls/a.key.pem";
        let tls = |more: &str| format!("tls: {{ {a}{more} }}");
        let [plain, secure, verified] = [String::new(), tls(""), tls(", client_ca: tls/ca.pem")];
        let proxied = |word: &str| format!("proxy_protocol: {word}");
        for (before, after, stays) in [
            (plain.clone(), plain.clone(), true),
            (plain.clone(), secure.clone(), false),
            (secure.clone(), plain.clone(), true),
            (secure.clone(), "tls: { cert: tls/b.pem, key: tls/b.key.pem }".to_owned(), true),
            (secure.clone(), verified.clone(), false),
            (verified.clone(), secure.clone(), true),
            (verified.clone(), verified.clone(), true),
            (verified.clone(), tls(", client_ca: tls/b.pem"), false),
            (secure.clone(), tls(", min_version: \"1.3\""), false),
            (tls(", min_version: \"1.3\""), secure.clone(), true),
            (proxied("none"), proxied("required"), false),
            (proxied("optional"), proxied("required"), false),
            (proxied("required"), proxied("optional"), true),
            ("http2: true".to_owned(), "http2: false".to_owned(), true),
        ] {
            let first = ListenerProtocol::new(&parse_listen(&before), None).unwrap();
            let next = ListenerProtocol::new(&parse_listen(&after), Some(&first)).unwrap();
            assert_eq!(Arc::ptr_eq(&first.terms, &next.terms), stays, "{before} → {after}");
            let must_recheck = next.replace_previous(&first);
            assert_eq!(must_recheck, !stays || before.starts_with("http2"), "{before} → {after}");
            assert_eq!(first.terms.is_tightened(), !stays);
        }
    }
}
