//! Reads `tls` of a listener: certificates, keys and client authorities. They are tested here, so that errors show at
//! the start and not at the first client.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage};

use super::acme::read_acme;
use super::tls_files::{
    certificate_file, collect_authorities, load_certificates, load_file, load_named, load_private_key,
};
use crate::schema::tables::listen::tls;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_base::certificate::host_names;
use sluicegate_model::{
    CertificateFile, ListenCertificate, ListenTlsConfig, Parsed, TlsVersion, ValueError, codes,
};

/// Settings that must be the same for all certificates of a listener: `client_ca` and `min_version`.
type CertificateTerms = (Option<PathBuf>, TlsVersion);

/// Reads `tls`; `None` if it is off or wrong.
pub(crate) fn read_listen_tls(value: &FieldValue<'_>) -> Option<ListenTlsConfig> {
    if value.is_word("none") {
        return None;
    }
    let items = value.one_or_more();
    if items.is_empty() {
        value.report_empty("write tls: { cert: chain.pem, key: key.pem }, or none");
        return None;
    }
    let reader = CertificateReader::default();
    let mut certificates: Vec<ListenCertificate> = Vec::new();
    let mut first: Option<(CertificateTerms, Option<Arc<RootCertStore>>)> = None;
    for item in &items {
        let form = "a mapping such as { cert: chain.pem, key: key.pem }";
        let Some(fields) = item.open_map(&tls::SECTION, form) else { continue };
        let (certificate, terms, roots) = fields.read_all(|fields| {
            let certificate = match fields.find(&tls::ACME).filter(|acme| !acme.is_word("none")) {
                Some(_) => reader.read_order(fields),
                None => reader.read_certificate(fields),
            };
            let (terms, roots) = reader.read_terms(fields);
            (certificate, terms, roots)
        });
        match &first {
            None => first = Some((terms, roots)),
            Some((known, _)) if *known != terms => {
                let message =
                    "`client_ca` and `min_version` must be the same for all certificates of a listener";
                let help = "a request may name another host than the handshake did: write the same with each \
                            certificate, or listen on another address";
                item.refuse_name(codes::TLS, message, help);
            }
            Some(_) => {}
        }
        if let Some((certificate, value)) = certificate {
            warn_of_names(&certificate, &certificates, &value);
            certificates.push(certificate);
        }
    }
    let ((_, min_version), client_ca) = first?;
    min_version.hash(&mut *reader.digest.borrow_mut());
    let digest = reader.digest.into_inner().finish();
    (certificates.len() == items.len()).then_some(ListenTlsConfig {
        certificates,
        client_ca,
        min_version,
        files: reader.files.into_inner(),
        digest,
    })
}

/// Reads the certificates of one listener.
#[derive(Default)]
struct CertificateReader {
    /// Of all that was read.
    digest: RefCell<DefaultHasher>,
    files: RefCell<Vec<CertificateFile>>,
}

impl CertificateReader {
    fn read_terms(&self, fields: &FieldReader<'_>) -> (CertificateTerms, Option<Arc<RootCertStore>>) {
        let load = |path: &Path| {
            let certificates = load_certificates(path)?;
            certificates.hash(&mut *self.digest.borrow_mut());
            let file = certificate_file("client_ca", path.to_owned(), &certificates);
            self.files.borrow_mut().extend(file);
            Ok((path.to_owned(), collect_authorities(certificates)?))
        };
        let found = fields.read_with(&tls::CLIENT_CA, |name| load_named(fields, name, load));
        let (client_ca, roots) = found.flatten().unzip();
        ((client_ca, fields.read(&tls::MIN_VERSION)), roots)
    }

    /// The certificate that an entry orders, and the value that names it.
    fn read_order<'a>(&self, fields: &FieldReader<'a>) -> Option<(ListenCertificate, FieldValue<'a>)> {
        for written in [fields.find(&tls::CERT), fields.find(&tls::KEY)].into_iter().flatten() {
            let message = "the certificate is ordered by `acme`, so it is in no file";
            let help = "remove one of the two, or write an entry of tls for each certificate";
            written.refuse_name(codes::TLS, message, help);
        }
        let (acme, value) = read_acme(fields)?;
        acme.digest().hash(&mut *self.digest.borrow_mut());
        let (names, key) = (acme.domains.clone(), acme.current.clone());
        Some((ListenCertificate { key, names, acme: Some(Arc::new(acme)) }, value))
    }

    /// The certificate of one entry, and the value that names its file.
    fn read_certificate<'a>(&self, fields: &FieldReader<'a>) -> Option<(ListenCertificate, FieldValue<'a>)> {
        let (cert, key) = (fields.find_required(&tls::CERT), fields.find_required(&tls::KEY));
        let (cert, key) = (cert?, key?);
        let folder = fields.whole.folder();
        let chain = fields.read_with(&tls::CERT, |name| {
            let name = name.unwrap_or_default();
            let chain = load_file(&folder, &name, load_certificates)?;
            let file = certificate_file("listener", folder.join(&name), &chain);
            self.files.borrow_mut().extend(file);
            check_chain(&name, &chain).map(|()| chain)
        });
        let signing = fields.read_with(&tls::KEY, |name| {
            let name = name.unwrap_or_default();
            let secret = load_file(&folder, &name, load_private_key)?;
            secret.secret_der().hash(&mut *self.digest.borrow_mut());
            any_supported_type(&secret).map_err(|_| {
                let message =
                    format!("the file `{}` holds a key of a kind that is not supported", name.display());
                ValueError::new(codes::TLS, message)
                    .with_help("make one of ECDSA (P-256, P-384), RSA or Ed25519")
            })
        });
        let (chain, signing) = (chain?, signing?);
        chain.hash(&mut *self.digest.borrow_mut());
        let names = host_names(&chain[0]);
        warn_of_dates(&chain[0], &cert);
        let certified = CertifiedKey::new(chain, signing);
        if let Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) =
            certified.keys_match()
        {
            let message = format!("the key in `{}` is not the one of the certificate", key.written_text());
            let help = format!("the certificate is the first in `{}`", cert.written_text());
            key.refuse(codes::TLS, message, help);
            return None;
        }
        let key = Arc::new(ArcSwapOption::from_pointee(certified));
        Some((ListenCertificate { key, names, acme: None }, cert))
    }
}

fn check_chain(name: &Path, chain: &[CertificateDer<'_>]) -> Parsed<()> {
    if chain.iter().any(|certificate| EndEntityCert::try_from(certificate).is_err()) {
        let message = format!("the file `{}` holds a certificate that cannot be read", name.display());
        return Err(ValueError::new(codes::TLS, message));
    }
    Ok(())
}

/// Warns if clients will reject the certificate for its dates, or because it is that of an authority.
fn warn_of_dates(certificate: &CertificateDer<'_>, value: &FieldValue<'_>) {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else { return };
    // The dates are checked before the chain, which always fails here for lack of authorities.
    let judged = parsed.verify_for_usage(&[], &[], &[], UnixTime::now(), KeyUsage::server_auth(), None, None);
    let (state, help) = match judged.err() {
        Some(webpki::Error::CertExpired { .. }) => ("has expired", "renew it: clients will reject it"),
        Some(webpki::Error::CertNotValidYet { .. }) => (
            "is not valid yet",
            "check the clock of this machine: clients will reject the certificate until then",
        ),
        Some(webpki::Error::CaUsedAsEndEntity) => (
            "is the certificate of an authority",
            "many clients reject it: use a certificate that the authority has signed",
        ),
        _ => return,
    };
    let message = format!("the certificate in `{}` {state}", value.written_text());
    value.warn(codes::CERTIFICATE, message, help);
}

/// Warns if the certificate, or one of its names, can never be selected.
fn warn_of_names(certificate: &ListenCertificate, before: &[ListenCertificate], value: &FieldValue<'_>) {
    if certificate.names.is_empty() && !before.is_empty() {
        let message =
            format!("the certificate in `{}` names no host, so no client gets it", value.written_text());
        let help = "only the first certificate of a listener serves clients that name another host";
        value.warn(codes::CERTIFICATE, message, help);
    }
    // A client may support the key type of one certificate and not that of another.
    let kind = |one: &ListenCertificate| one.key.load().as_ref().map(|key| key.key.algorithm());
    let alike = |one: &&ListenCertificate| kind(one) == kind(certificate);
    let taken = |name: &&String| before.iter().filter(alike).any(|one| one.names.contains(name));
    if let Some(name) = certificate.names.iter().find(taken) {
        let message = format!("`{name}` is named by a certificate before this one, which is the one shown");
        let help = "remove one of the two";
        value.warn(codes::CERTIFICATE, message, help);
    }
}
