//! Reads `tls` of an upstream: the authorities for its `https://` servers, and the gateway's own certificate.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{Error, RootCertStore};

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::tls::UpstreamTlsConfig;
use crate::config::model::{UpstreamKind, UpstreamServerConfig};
use crate::config::value::pem;
use crate::config::value::scalars;
use crate::config::value::scalars::Parsed;
use crate::config::yaml::field_reader::FieldReader;
use crate::config::yaml::field_value::FieldValue;
use crate::config::yaml::tree::NodeContent;

/// The base folder of paths and the system's authorities, common to all upstreams of a file.
pub(crate) struct UpstreamTlsReader {
    folder: PathBuf,
    /// Read once, on first use.
    system_store: OnceCell<Arc<RootCertStore>>,
}

impl UpstreamTlsReader {
    pub fn new(folder: PathBuf) -> UpstreamTlsReader {
        UpstreamTlsReader { folder, system_store: OnceCell::new() }
    }

    /// The TLS settings for these servers; `None` if they use none. `named` is the value that lists the servers.
    pub fn read_tls(
        &self,
        kind: &UpstreamKind,
        tls: Option<&FieldValue<'_>>,
        named: &FieldValue<'_>,
    ) -> Option<UpstreamTlsConfig> {
        let UpstreamKind::Servers(servers) = kind else { return None };
        let tls = tls.filter(|value| !value.is_null() && !value.is_word("none"));
        let is_tls = |server: &UpstreamServerConfig| server.tls;
        match (servers.iter().any(is_tls), tls) {
            (false, None) => None,
            (false, Some(tls)) => {
                if !servers.is_empty() {
                    let message = "`tls` is for https:// servers, and this upstream has none";
                    let help = "write the servers as https://HOST:PORT, or remove tls";
                    tls.report_at_name(ValueError::new(codes::TLS, message).with_help(help));
                }
                None
            }
            (true, tls) => {
                if !servers.iter().all(is_tls) {
                    let message = "some servers of this upstream use TLS and some do not";
                    let help = "write https:// for each, or make two upstreams of them";
                    named.report_at_name(ValueError::new(codes::TLS, message).with_help(help));
                }
                match tls {
                    None => self.default_tls(named),
                    Some(tls) if matches!(tls.node.content, NodeContent::Map(_)) => {
                        self.read_fields(tls.field_reader())
                    }
                    Some(tls) => {
                        tls.report_shape("a mapping such as { ca: FILE }");
                        None
                    }
                }
            }
        }
    }

    /// The settings without a `tls` section.
    fn default_tls(&self, named: &FieldValue<'_>) -> Option<UpstreamTlsConfig> {
        Some(UpstreamTlsConfig { roots: Some(self.system_roots(named)?), server_name: None, identity: None })
    }

    fn read_fields(&self, mut fields: FieldReader<'_>) -> Option<UpstreamTlsConfig> {
        let verify = fields.get_field("verify");
        let verifies =
            verify.as_ref().is_none_or(|value| value.parse_with(scalars::parse_bool).unwrap_or(true));
        let ca = fields.get_field("ca");
        let ca = ca.filter(|ca| !ca.is_null() && !ca.is_word("system"));
        let roots = match &ca {
            Some(ca) => ca.parse_with(|text| self.read_file(text, load_authorities)),
            None if verifies => self.system_roots(&fields.whole),
            None => None,
        };
        if let (false, Some(verify)) = (verifies, &verify) {
            let error = ValueError::new(codes::WEAK, "any server that answers is trusted");
            let help = "write ca: FILE with the server's authority, and remove verify: false";
            verify.sink.add_warning(verify.node.position, &verify.path, error.with_help(help));
        }
        let server_name = fields.read_scalar("server_name", None, parse_server_name);
        let identity = self.read_identity(&mut fields);
        fields.report_unknown();
        Some(UpstreamTlsConfig { roots: roots.filter(|_| verifies), server_name, identity })
    }

    fn read_identity(&self, fields: &mut FieldReader<'_>) -> Option<Arc<CertifiedKey>> {
        let written = |value: &FieldValue<'_>| !value.is_null() && !value.is_word("none");
        let cert = fields.get_field("cert").filter(written);
        let key = fields.get_field("key").filter(written);
        let (cert, key) = match (cert, key) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) => return None,
            (Some(_), None) => {
                fields.report_missing("key", "write key: FILE, the private key of cert");
                return None;
            }
            (None, Some(_)) => {
                fields.report_missing("cert", "write cert: FILE, the certificate of key");
                return None;
            }
        };
        let chain = cert.parse_with(|text| self.read_file(text, pem::load_certificates));
        let private = key.parse_with(|text| self.read_file(text, pem::load_private_key));
        match build_certified_key(chain?, private?) {
            Ok(identity) => Some(identity),
            Err(reason) => {
                key.report_at_value(ValueError::new(codes::TLS, reason));
                None
            }
        }
    }

    /// Loads the file named `text`. The error of `parse` follows the file's name: "holds no certificate".
    fn read_file<T>(&self, text: &str, parse: impl FnOnce(&Path) -> Result<T, String>) -> Parsed<T> {
        if text.is_empty() || text.contains('\0') {
            return Err(ValueError::new(codes::TLS, "the file name is empty"));
        }
        parse(&self.folder.join(text)).map_err(|reason| {
            ValueError::new(codes::TLS, format!("the file `{text}` {reason}"))
                .with_help("a relative path starts at the folder of this file")
        })
    }

    /// The authorities of the system, loaded once; without any, the field that needs them gets the error.
    fn system_roots(&self, user: &FieldValue<'_>) -> Option<Arc<RootCertStore>> {
        let roots = self.system_store.get_or_init(|| Arc::new(load_system_roots()));
        if roots.is_empty() {
            let message = "this system trusts no authority, so no https:// server can be verified";
            let help = "install the package ca-certificates, or write tls: { ca: FILE }";
            user.report_at_name(ValueError::new(codes::TLS, message).with_help(help));
            return None;
        }
        Some(roots.clone())
    }
}

/// The authorities that the system trusts, or those of `SSL_CERT_FILE`; empty if they cannot be read.
pub fn load_system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn parse_server_name(text: &str) -> Parsed<Option<ServerName<'static>>> {
    if text == "auto" {
        return Ok(None);
    }
    ServerName::try_from(text.to_owned()).map(Some).map_err(|_| {
        ValueError::new(codes::HOST, format!("`{text}` is not a name that a certificate can have"))
            .with_help("write a host name or an address, without a port")
    })
}

/// The authorities of a file, which replace those of the system.
fn load_authorities(path: &Path) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in pem::load_certificates(path)? {
        roots.add(certificate).map_err(|_| "holds a certificate that cannot be read".to_owned())?;
    }
    Ok(Arc::new(roots))
}

/// A chain of certificates with the key of the first.
fn build_certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, &'static str> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain, key, &provider).map(Arc::new).map_err(|error| match error {
        Error::InconsistentKeys(_) => "the private key does not belong to the certificate",
        Error::InvalidCertificate(_) => "the certificate cannot be read",
        _ => "the kind of this private key is not supported",
    })
}
