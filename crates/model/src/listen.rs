//! The typed model of `listen`: addresses, TLS and the PROXY protocol.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;

use super::{AcmeConfig, CertificateFile, Config, CurrentCertificate};
use sluicegate_base::labelled::labelled_enum;

/// One `listen` entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    /// The address to listen on.
    pub address: ListenAddress,
    /// `None` = plain HTTP.
    pub tls: Option<Arc<ListenTlsConfig>>,
    /// HTTP/2 is chosen by ALPN under TLS, by prior knowledge without.
    pub http2: bool,
    /// The rule for a PROXY protocol header in front of a connection; `None` = never.
    pub proxy_protocol: Option<ProxyProtocolMode>,
    /// Permissions of a unix socket's file; `None` = those of the umask.
    pub mode: Option<u32>,
    /// The name that locations select it by.
    pub name: Option<String>,
    /// The purpose of the listener's connections.
    pub purpose: ListenerPurpose,
}

/// The purpose of the connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListenerPurpose {
    /// Requests, which are forwarded or answered.
    #[default]
    Requests,
    /// Calls of the rate-limit service over HTTP; nothing is forwarded.
    Calls,
    /// The same in the protocol of Redis.
    Resp,
}

labelled_enum! {
    /// The scheme by which a client reached the gateway, or the proxy in front of it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Scheme: as_str -> &'static str {
        /// Plain HTTP.
        Http = "http",
        /// HTTP over TLS.
        Https = "https",
    }

    /// The rule for a PROXY protocol header in front of a connection; only trusted proxies and unix sockets may send
    /// one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ProxyProtocolMode: as_str -> &'static str {
        /// Connections may begin with the header.
        Optional = "optional",
        /// Connections without the header are closed.
        Required = "required",
    }
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A bare port: `[::]` and `0.0.0.0`.
    Port(u16),
    /// One IP address with its port.
    Address(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
    /// Sockets that systemd passed under this name.
    Systemd(String),
}

/// The TLS settings of one listener, with the contents of its files at the time of reading.
#[derive(Debug, Clone)]
pub struct ListenTlsConfig {
    /// The first serves clients that name no host or an unknown one.
    pub certificates: Vec<ListenCertificate>,
    /// The authorities that may sign client certificates; `None` = clients need no certificate.
    pub client_ca: Option<Arc<RootCertStore>>,
    /// The oldest version of TLS that clients may speak.
    pub min_version: TlsVersion,
    /// The files of the certificates and authorities.
    pub files: Vec<CertificateFile>,
    /// A digest of the contents of these files and of the fields above: equal digests mean equal settings.
    pub digest: u64,
}

/// A certificate with its chain and key.
#[derive(Debug, Clone)]
pub struct ListenCertificate {
    /// The certificate, those that lead to its authority, and the private key.
    pub key: CurrentCertificate,
    /// The certificate's host names in lower case; `*.` stands for one label.
    pub names: Vec<String>,
    /// The order of the certificate; `None` = it comes from files.
    pub acme: Option<Arc<AcmeConfig>>,
}

/// The oldest accepted version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl ListenConfig {
    /// A listener with every default.
    pub fn with_address(address: ListenAddress) -> ListenConfig {
        ListenConfig {
            address,
            tls: None,
            http2: true,
            proxy_protocol: None,
            mode: None,
            name: None,
            purpose: ListenerPurpose::Requests,
        }
    }

    /// The scheme of its own connections.
    pub fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::Https } else { Scheme::Http }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Port(port) => write!(f, "port {port}"),
            ListenAddress::Address(address) => address.fmt(f),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Systemd(name) => write!(f, "systemd:{name}"),
        }
    }
}

impl PartialEq for ListenTlsConfig {
    fn eq(&self, other: &ListenTlsConfig) -> bool {
        self.digest == other.digest
    }
}

impl Eq for ListenTlsConfig {}

// === impl Config ===

impl Config {
    /// The listeners of forwarded requests, then those of the rate-limit service.
    pub fn all_listeners(&self) -> Vec<ListenConfig> {
        self.listeners().cloned().collect()
    }

    pub(crate) fn listeners(&self) -> impl Iterator<Item = &ListenConfig> {
        let service = self.service.iter().flat_map(|service| service.listen.iter().chain(&service.resp));
        self.listen.iter().chain(service)
    }

    /// The certificates that are ordered, each once, with the listener that has it first.
    pub fn acme_certificates(&self) -> Vec<(String, &Arc<AcmeConfig>)> {
        let mut found: Vec<(String, &Arc<AcmeConfig>)> = Vec::new();
        for listen in self.listeners() {
            let certificates = listen.tls.iter().flat_map(|tls| &tls.certificates);
            for acme in certificates.filter_map(|certificate| certificate.acme.as_ref()) {
                if !found.iter().any(|(_, known)| known.is_same_certificate(acme)) {
                    found.push((listen.address.to_string(), acme));
                }
            }
        }
        found
    }

    /// True if connections without TLS may ask for the answers to challenges.
    pub fn has_plain_listener(&self) -> bool {
        self.listen.iter().any(|listen| listen.tls.is_none())
    }

    /// Lets listeners with one certificate present the same, which is that of `before` if it has it.
    pub fn share_certificates(&mut self, before: Option<&Config>) {
        let known = before.map(Config::acme_certificates).unwrap_or_default();
        let mut known: Vec<Arc<AcmeConfig>> = known.into_iter().map(|(_, acme)| acme.clone()).collect();
        let service =
            self.service.iter_mut().flat_map(|service| service.listen.iter_mut().chain(&mut service.resp));
        let used = self.listen.iter_mut().chain(service).filter_map(|listen| listen.tls.as_mut());
        for tls in used.filter(|tls| tls.certificates.iter().any(|one| one.acme.is_some())) {
            for certificate in &mut Arc::make_mut(tls).certificates {
                let Some(acme) = &mut certificate.acme else { continue };
                match known.iter().find(|known| known.is_same_certificate(acme)) {
                    Some(known) => Arc::make_mut(acme).current = known.current.clone(),
                    None => known.push(acme.clone()),
                }
                certificate.key = acme.current.clone();
            }
        }
    }
}
