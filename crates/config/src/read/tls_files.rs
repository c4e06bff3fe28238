//! Loads certificates and keys from PEM files, and reads `tls` of an upstream: the authorities for its `https://`
//! servers, and the gateway's own certificate. Errors of files are phrases that follow their names; they never quote
//! contents.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, RootCertStore};

use crate::schema::field::Field;
use crate::schema::kinds::{OrWord, Text};
use crate::schema::tables::upstreams::{tls, upstream};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_base::certificate::earliest_end;
use sluicegate_base::file::{explain_path, read_capped};
use sluicegate_base::system_roots::load_system_roots;
use sluicegate_model::{CertificateFile, Parsed, UpstreamServerConfig, UpstreamTlsConfig, ValueError, codes};

/// Larger than any bundle of authorities.
const BYTES_MAX: u64 = 4 << 20;

/// Loads the file `name` by `load`; a relative name starts at `folder`.
pub(crate) fn load_file<T>(
    folder: &Path,
    name: &Path,
    load: impl FnOnce(&Path) -> Result<T, String>,
) -> Parsed<T> {
    load(&folder.join(name)).map_err(|reason| {
        let message = format!("the file `{}` {reason}", name.display());
        if reason.starts_with("holds") {
            return ValueError::new(codes::TLS, message);
        }
        ValueError::new(codes::UNREADABLE, message).with_help(explain_path(folder, name))
    })
}

/// The authorities with these certificates.
pub(crate) fn collect_authorities(
    certificates: Vec<CertificateDer<'static>>,
) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|_| "holds a certificate that cannot be read".to_owned())?;
    }
    Ok(Arc::new(roots))
}

/// All certificates of the file in file order, at least one.
pub(crate) fn load_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read_capped(path, BYTES_MAX)?;
    let read: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) if contains_private_key(&bytes) => Err("holds a private key and no certificate".to_owned()),
        Ok(_) => Err("holds no certificate in PEM format".to_owned()),
        Err(_) => Err("holds a certificate that is cut off or garbled".to_owned()),
    }
}

/// The file at `path` with these certificates; `None` if no end of their validity can be read, as of version 1.
pub(crate) fn certificate_file(
    usage: &'static str,
    path: PathBuf,
    certificates: &[CertificateDer<'_>],
) -> Option<CertificateFile> {
    Some(CertificateFile { usage, path, expires_at: earliest_end(certificates)? })
}

/// The first private key of the file.
pub(crate) fn load_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = read_capped(path, BYTES_MAX)?;
    if contains_marker(&bytes, b"BEGIN ENCRYPTED PRIVATE KEY")
        || contains_marker(&bytes, b"Proc-Type: 4,ENCRYPTED")
    {
        return Err("holds an encrypted key; use one without a passphrase".to_owned());
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
        let why = if contains_private_key(&bytes) {
            "holds a private key that is cut off or garbled"
        } else if contains_marker(&bytes, b"BEGIN CERTIFICATE") {
            "holds a certificate and no private key"
        } else {
            "holds no private key in PEM format"
        };
        why.to_owned()
    })
}

fn contains_private_key(bytes: &[u8]) -> bool {
    contains_marker(bytes, b"PRIVATE KEY-----")
}

fn contains_marker(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}

/// The system's authorities, common to all upstreams of a file.
#[derive(Default)]
pub(crate) struct UpstreamTlsReader {
    /// Read once, on first use.
    system_store: OnceCell<Arc<RootCertStore>>,
}

/// Authorities and their file; `None` = they are those of the system.
pub(crate) type ReadAuthorities = (Arc<RootCertStore>, Option<CertificateFile>);

/// The path of a file, or a word instead.
type FileField = Field<OrWord<Text<PathBuf>>>;

impl UpstreamTlsReader {
    /// The TLS settings for these servers; `None` if they use none. `named` is the value that lists the servers.
    pub(crate) fn read_tls(
        &self,
        servers: &[UpstreamServerConfig],
        upstream: &FieldReader<'_>,
        named: &FieldValue<'_>,
    ) -> Option<UpstreamTlsConfig> {
        let tls = upstream.find(&upstream::TLS).filter(|value| !value.is_null() && !value.is_word("none"));
        if !servers.iter().any(|server| server.tls) {
            if let (Some(tls), false) = (tls, servers.is_empty()) {
                let message = "`tls` is for https:// servers, and this upstream has none";
                let help = "write the servers as https://HOST:PORT, or remove tls";
                tls.refuse_name(codes::TLS, message, help);
            }
            return None;
        }
        if !servers.iter().all(|server| server.tls) {
            let message = "some servers of this upstream use TLS and some do not";
            let help = "write https:// for each, or make two upstreams of them";
            named.refuse_name(codes::TLS, message, help);
        }
        let fields = match tls {
            Some(tls) if tls.is_map() => tls.open_section(&tls::SECTION),
            Some(tls) => {
                tls.report_shape(&format!("a mapping such as {}", upstream::TLS.example));
                return None;
            }
            None => named.absent_section(&tls::SECTION),
        };
        fields.read_all(|fields| self.read_fields(fields))
    }

    fn read_fields(&self, fields: &FieldReader<'_>) -> Option<UpstreamTlsConfig> {
        let verifies = fields.read(&tls::VERIFY);
        let has_file = fields.find(&tls::CA).is_some_and(|ca| !ca.is_word("system"));
        let found = (has_file || verifies).then(|| self.read_roots(fields, &tls::CA)).flatten();
        let (roots, ca_file) = found.unzip();
        if let (false, Some(verify)) = (verifies, fields.find(&tls::VERIFY)) {
            let help = "write ca: FILE with the server's authority, and remove verify: false";
            verify.warn(codes::WEAK, "any server that answers is trusted", help);
        }
        let identity = self.read_identity(fields, &tls::CERT, &tls::KEY);
        let own_file = identity.as_ref().zip(fields.read(&tls::CERT)).and_then(|(identity, name)| {
            certificate_file("upstream", fields.whole.folder().join(name), &identity.cert)
        });
        Some(UpstreamTlsConfig {
            roots: roots.filter(|_| verifies),
            server_name: fields.read(&tls::SERVER_NAME),
            identity,
            files: own_file.into_iter().chain(ca_file.flatten()).collect(),
        })
    }

    /// The authorities of the file that `ca` names, or else those of the system.
    pub(crate) fn read_roots(&self, fields: &FieldReader<'_>, ca: &FileField) -> Option<ReadAuthorities> {
        match fields.find(ca).filter(|ca| !ca.is_word("system")) {
            Some(_) => self.read_authorities(fields, ca),
            None => self.system_roots(&fields.whole).map(|roots| (roots, None)),
        }
    }

    /// The authorities of the file that `ca` names; `None` for the word instead of a name.
    pub(crate) fn read_authorities(
        &self,
        fields: &FieldReader<'_>,
        ca: &FileField,
    ) -> Option<ReadAuthorities> {
        let load = |path: &Path| {
            let certificates = load_certificates(path)?;
            let file = certificate_file("upstream_ca", path.to_owned(), &certificates);
            Ok((collect_authorities(certificates)?, file))
        };
        fields.read_with(ca, |name| load_named(fields, name, load)).flatten()
    }

    /// The certificate and key of the files that `cert` and `key` name.
    pub(crate) fn read_identity(
        &self,
        fields: &FieldReader<'_>,
        cert: &FileField,
        key: &FileField,
    ) -> Option<Arc<CertifiedKey>> {
        let load_chain = |name| load_named(fields, name, load_certificates);
        let chain = fields.read_with(cert, load_chain);
        let private = fields.read_with(key, |name| load_named(fields, name, load_private_key));
        let is_written = |value: &FieldValue<'_>| !value.is_word("none");
        match (fields.find(cert).filter(is_written), fields.find(key).filter(is_written)) {
            (Some(_), None) => fields.report_missing("key", "write key: FILE, the private key of cert"),
            (None, Some(_)) => fields.report_missing("cert", "write cert: FILE, the certificate of key"),
            _ => {}
        }
        match build_certified_key(chain??, private??) {
            Ok(identity) => Some(identity),
            Err(reason) => {
                fields.find(key)?.report_at_value(ValueError::new(codes::TLS, reason));
                None
            }
        }
    }

    /// The authorities of the system, loaded once; without any, the field that needs them gets the error.
    fn system_roots(&self, user: &FieldValue<'_>) -> Option<Arc<RootCertStore>> {
        let roots = self.system_store.get_or_init(|| Arc::new(load_system_roots()));
        if roots.is_empty() {
            let message = "this system trusts no authority, so no https:// server can be verified";
            let help = "install the package ca-certificates, or name a file of authorities in `ca`";
            user.refuse_name(codes::TLS, message, help);
            return None;
        }
        Some(roots.clone())
    }
}

/// The file of a field; `None` for a word instead of a name.
pub(crate) fn load_named<T>(
    fields: &FieldReader<'_>,
    name: Option<PathBuf>,
    load: impl FnOnce(&Path) -> Result<T, String>,
) -> Parsed<Option<T>> {
    name.map(|name| load_file(&fields.whole.folder(), &name, load)).transpose()
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
