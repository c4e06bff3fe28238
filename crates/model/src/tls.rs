//! The typed model of TLS to upstreams and Redis: authorities and the gateway's own certificate, read with the file.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;

use super::Config;
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

/// A file of certificates, as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CertificateFile {
    /// Its use: `listener`, `client_ca`, `upstream` or `upstream_ca`.
    pub usage: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// The earliest end of a certificate in it, in seconds since 1970.
    pub expires_at: u64,
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
    /// The files of both; not those of the system.
    pub files: Vec<CertificateFile>,
}

/// The settings by which `rediss://` servers are verified, and verify the gateway.
#[derive(Debug, Clone, Default)]
pub struct RedisTlsFiles {
    /// The trusted authorities; `None` = those of the system.
    pub roots: Option<Arc<RootCertStore>>,
    /// The certificate for servers that ask for one.
    pub identity: Option<Arc<CertifiedKey>>,
}

// === impl Config ===

impl Config {
    /// The files of certificates, each with its listener or upstream, and once for each use.
    pub fn certificate_files(&self) -> Vec<(String, &CertificateFile)> {
        let shown =
            self.listeners().filter_map(|one| Some((one.address.to_string(), &one.tls.as_ref()?.files)));
        let upstreams = self.upstreams.iter();
        let asked = upstreams.filter_map(|one| Some((one.name.clone(), &one.tls.as_ref()?.files)));
        let all = shown.chain(asked);
        let all = all.flat_map(|(name, files)| files.iter().map(move |file| (name.clone(), file)));
        let mut known = HashSet::new();
        all.filter(|found| known.insert(found.clone())).collect()
    }
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
