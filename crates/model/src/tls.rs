//! The typed model of TLS to upstreams and Redis: authorities and the gateway's own certificate, read with the file.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;

use sluicegate_base::labelled::labelled_enum;

labelled_enum! {
    /// The HTTP version for the servers of an upstream.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum UpstreamProtocol: as_str -> &'static str {
        /// HTTP/1.1 without TLS; over TLS the server chooses.
        Auto = "auto",
        /// HTTP/1.1, over TLS as well.
        Http1 = "http1",
        /// HTTP/2, by prior knowledge if the connection has no TLS.
        Http2 = "http2",
    }
}

/// The settings that verify `https://` servers.
#[derive(Debug, Clone)]
pub struct UpstreamTlsConfig {
    /// The trusted authorities; `None` = every certificate is accepted.
    pub roots: Option<Arc<RootCertStore>>,
    /// `None` = each server's own host.
    pub server_name: Option<ServerName<'static>>,
    /// The certificate for servers that ask for one.
    pub identity: Option<Arc<CertifiedKey>>,
}

/// The settings by which `rediss://` servers are verified, and verify the gateway.
#[derive(Debug, Clone, Default)]
pub struct RedisTlsFiles {
    /// The trusted authorities; `None` = those of the system.
    pub roots: Option<Arc<RootCertStore>>,
    /// The certificate for servers that ask for one.
    pub identity: Option<Arc<CertifiedKey>>,
}

// === impl RedisTlsFiles ===

impl PartialEq for RedisTlsFiles {
    fn eq(&self, other: &RedisTlsFiles) -> bool {
        let authorities = |files: &RedisTlsFiles| files.roots.as_ref().map(|roots| roots.roots.clone());
        // The certificate determines its key.
        let certificate = |files: &RedisTlsFiles| files.identity.as_ref().map(|own| own.cert.clone());
        authorities(self) == authorities(other) && certificate(self) == certificate(other)
    }
}

impl Eq for RedisTlsFiles {}

// === impl UpstreamTlsConfig ===

impl PartialEq for UpstreamTlsConfig {
    fn eq(&self, other: &UpstreamTlsConfig) -> bool {
        let files = |tls: &UpstreamTlsConfig| {
            let (roots, identity) = (tls.roots.clone(), tls.identity.clone());
            RedisTlsFiles { roots, identity }
        };
        self.server_name == other.server_name && files(self) == files(other)
    }
}
