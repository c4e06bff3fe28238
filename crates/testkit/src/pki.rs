//! Certificates for servers of a test: an nginx, or a server in a thread of the test.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::tls::Authority;

/// A certificate with its key.
pub struct Certified {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// The authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// A certificate for these names and addresses.
    pub fn certify(&self, names: &[&str]) -> Certified {
        let stem = names.join("-");
        self.issue(&stem, names);
        self.certified(&stem)
    }

    /// The same, but expired.
    pub fn expired(&self, names: &[&str]) -> Certified {
        self.issue_with("expired", names, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 2, 1);
        });
        self.certified("expired")
    }

    /// One that signed itself, as `openssl req -x509` makes it.
    pub fn self_signed(&self, names: &[&str], is_ca: rcgen::IsCa) -> Certified {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).expect("host names");
        params.is_ca = is_ca;
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(self.path("own.pem"), certificate.pem()).expect("a file");
        std::fs::write(self.path("own.key.pem"), key.serialize_pem()).expect("a file");
        self.certified("own")
    }

    fn certified(&self, stem: &str) -> Certified {
        Certified { cert: self.path(&format!("{stem}.pem")), key: self.path(&format!("{stem}.key.pem")) }
    }
}

impl Certified {
    /// Lines for a `server` block of nginx.
    pub fn nginx(&self) -> String {
        format!("ssl_certificate {}; ssl_certificate_key {};", self.cert.display(), self.key.display())
    }

    /// The settings of a server in the test that speaks one of these protocols.
    pub fn server(&self, protocols: &[&str]) -> Arc<ServerConfig> {
        let chain = vec![CertificateDer::from_pem_file(&self.cert).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_file(&self.key).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the default versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a certificate with its key");
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}
