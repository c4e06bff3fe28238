//! An authority of a test, and the certificates that it vouches for.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::run::Scratch;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    scratch: Scratch,
    /// Its own certificate.
    pub file: PathBuf,
}

/// A certificate with its key, as files and for a server of the test's own.
pub struct Certified {
    pub cert: PathBuf,
    pub key: PathBuf,
    chain: CertificateDer<'static>,
    private: PrivateKeyDer<'static>,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(vec![]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().expect("a key");
        let scratch = Scratch::new();
        let file = scratch.file("ca.pem", &params.self_signed(&key).expect("a certificate").pem());
        Authority { issuer: Issuer::new(params, key), scratch, file }
    }

    /// A certificate for these names and addresses.
    pub fn certify(&self, names: &[&str]) -> Certified {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let stem = names.join("-").replace(['*', ':'], "_");
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, &stem);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Certified {
            cert: self.scratch.file(&format!("{stem}.pem"), &certificate.pem()),
            key: self.scratch.file(&format!("{stem}.key"), &key.serialize_pem()),
            chain: certificate.der().clone(),
            private: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        }
    }
}

impl Certified {
    /// Lines for a `server` block of nginx.
    pub fn nginx(&self) -> String {
        format!("ssl_certificate {}; ssl_certificate_key {};", self.cert.display(), self.key.display())
    }

    /// For a server of the test's own that speaks one of these protocols.
    pub fn server(&self, protocols: &[&str]) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the default versions")
            .with_no_client_auth()
            .with_single_cert(vec![self.chain.clone()], self.private.clone_key())
            .expect("a certificate with its key");
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}
