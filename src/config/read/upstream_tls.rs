//! `tls` of an upstream: how its `https://` servers are verified, and what they are shown.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{Error, RootCertStore};

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::tls::UpstreamTls;
use crate::config::model::{UpstreamKind, UpstreamServer};
use crate::config::value::pem;
use crate::config::value::scalars;
use crate::config::value::scalars::Read;
use crate::config::yaml::fields::{Fields, Value};
use crate::config::yaml::tree::Content;

/// What the upstreams of one file have in common: where their files start, and whom this machine trusts.
pub(crate) struct Grounds {
    folder: PathBuf,
    /// Read once, and only when somebody needs them.
    system: OnceCell<Arc<RootCertStore>>,
}

// === impl Grounds ===

impl Grounds {
    pub fn new(folder: PathBuf) -> Grounds {
        Grounds { folder, system: OnceCell::new() }
    }

    /// What `tls` says for these servers; `None` when they need none. `named` is where the servers stand.
    pub fn read(
        &self,
        kind: &UpstreamKind,
        tls: Option<&Value<'_>>,
        named: &Value<'_>,
    ) -> Option<UpstreamTls> {
        let UpstreamKind::Servers(servers) = kind else { return None };
        let tls = tls.filter(|value| !value.is_null() && !value.is_word("none"));
        let is_tls = |server: &UpstreamServer| server.tls;
        match (servers.iter().any(is_tls), tls) {
            (false, None) => None,
            (false, Some(tls)) => {
                if !servers.is_empty() {
                    let message = "`tls` is for https:// servers, and this upstream has none";
                    let help = "write the servers as https://HOST:PORT, or remove tls";
                    tls.complain_at_name(Complaint::new(codes::TLS, message).help(help));
                }
                None
            }
            (true, tls) => {
                if !servers.iter().all(is_tls) {
                    let message = "some servers of this upstream have TLS and some have not";
                    let help = "write https:// for each, or make two upstreams of them";
                    named.complain_at_name(Complaint::new(codes::TLS, message).help(help));
                }
                match tls {
                    None => self.bare(named),
                    Some(tls) if matches!(tls.node.content, Content::Map(_)) => {
                        self.read_fields(tls.fields())
                    }
                    Some(tls) => {
                        tls.complain_of_shape("a mapping such as { ca: FILE }");
                        None
                    }
                }
            }
        }
    }

    /// Every default.
    fn bare(&self, named: &Value<'_>) -> Option<UpstreamTls> {
        Some(UpstreamTls { roots: Some(self.system(named)?), server_name: None, identity: None })
    }

    fn read_fields(&self, mut fields: Fields<'_>) -> Option<UpstreamTls> {
        let verify = fields.get("verify");
        let verifies = verify.as_ref().is_none_or(|value| value.read(scalars::boolean).unwrap_or(true));
        let ca = fields.get("ca");
        let ca = ca.filter(|ca| !ca.is_null() && !ca.is_word("system"));
        let roots = match &ca {
            Some(ca) => ca.read(|text| self.read_file(text, authorities)),
            None if verifies => self.system(&fields.whole),
            None => None,
        };
        if let (false, Some(verify)) = (verifies, &verify) {
            let complaint = Complaint::new(codes::WEAK, "whoever answers is taken for the server");
            let help = "write ca: FILE with the server's authority, and remove verify: false";
            verify.found.warn(verify.node.place, &verify.path, complaint.help(help));
        }
        let server_name = fields.read("server_name", None, server_name);
        let identity = self.identity(&mut fields);
        fields.close();
        Some(UpstreamTls { roots: roots.filter(|_| verifies), server_name, identity })
    }

    fn identity(&self, fields: &mut Fields<'_>) -> Option<Arc<CertifiedKey>> {
        let written = |value: &Value<'_>| !value.is_null() && !value.is_word("none");
        let cert = fields.get("cert").filter(written);
        let key = fields.get("key").filter(written);
        let (cert, key) = match (cert, key) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) => return None,
            (Some(_), None) => {
                fields.missing("key", "write key: FILE, the private key of cert");
                return None;
            }
            (None, Some(_)) => {
                fields.missing("cert", "write cert: FILE, the certificate of key");
                return None;
            }
        };
        let chain = cert.read(|text| self.read_file(text, pem::certificates));
        let private = key.read(|text| self.read_file(text, pem::private_key));
        match certified(chain?, private?) {
            Ok(identity) => Some(identity),
            Err(reason) => {
                key.complain(Complaint::new(codes::TLS, reason));
                None
            }
        }
    }

    /// `parse` is told the path, and its error follows the file's name: "holds no certificate".
    fn read_file<T>(&self, text: &str, parse: impl FnOnce(&Path) -> Result<T, String>) -> Read<T> {
        if text.is_empty() || text.contains('\0') {
            return Err(Complaint::new(codes::TLS, "this names no file"));
        }
        parse(&self.folder.join(text)).map_err(|reason| {
            Complaint::new(codes::TLS, format!("the file `{text}` {reason}"))
                .help("a relative path starts at the folder of this file")
        })
    }

    fn system(&self, asked_by: &Value<'_>) -> Option<Arc<RootCertStore>> {
        let roots = self.system.get_or_init(|| Arc::new(system_authorities()));
        if roots.is_empty() {
            let message = "this system trusts no authority, so no https:// server can be verified";
            let help = "install the package ca-certificates, or write tls: { ca: FILE }";
            asked_by.complain_at_name(Complaint::new(codes::TLS, message).help(help));
            return None;
        }
        Some(roots.clone())
    }
}

/// The authorities that the system trusts, or those of `SSL_CERT_FILE`; none where nothing can be read.
pub fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn server_name(text: &str) -> Read<Option<ServerName<'static>>> {
    if text == "auto" {
        return Ok(None);
    }
    ServerName::try_from(text.to_owned()).map(Some).map_err(|_| {
        Complaint::new(codes::HOST, format!("`{text}` is not a name that a certificate can have"))
            .help("write a host name or an address, without a port")
    })
}

/// The authorities of a file, to trust nobody else.
fn authorities(path: &Path) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(path)? {
        roots.add(certificate).map_err(|_| "holds a certificate that cannot be read".to_owned())?;
    }
    Ok(Arc::new(roots))
}

/// A chain of certificates with the key of its first.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, &'static str> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain, key, &provider).map(Arc::new).map_err(|error| match error {
        Error::InconsistentKeys(_) => "the private key does not belong to the certificate",
        Error::InvalidCertificate(_) => "the certificate cannot be read",
        _ => "the private key is of no kind that can be used",
    })
}
