//! Reads `tls` of a listener: certificates, keys and client authorities. They are tested here, so that errors show at
//! the start and not at the first client.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage};

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::listen::{ListenCertificate, ListenTlsConfig, TlsVersion};
use crate::config::value::pem;
use crate::config::value::scalars::Parsed;
use crate::config::value::words::{parse_or_none, parse_word};
use crate::config::yaml::field_reader::FieldReader;
use crate::config::yaml::field_value::FieldValue;
use crate::config::yaml::tree::NodeContent;

const VERSIONS: [(&str, TlsVersion); 2] = [("1.2", TlsVersion::Tls12), ("1.3", TlsVersion::Tls13)];

/// Settings that must be the same for all certificates of a listener.
#[derive(PartialEq, Eq)]
struct CertificateTerms {
    client_ca: Option<PathBuf>,
    min_version: TlsVersion,
}

/// Reads `tls`; `None` if it is off or wrong. Relative paths start at `folder`.
pub(crate) fn read_listen_tls(value: &FieldValue<'_>, folder: &Path) -> Option<ListenTlsConfig> {
    if value.is_word("none") {
        return None;
    }
    let items = value.one_or_more();
    if items.is_empty() {
        value.report_empty("write tls: { cert: chain.pem, key: key.pem }, or none");
        return None;
    }
    let digest = RefCell::new(DefaultHasher::new());
    let mut certificates: Vec<ListenCertificate> = Vec::new();
    let mut first: Option<(CertificateTerms, Option<Arc<RootCertStore>>)> = None;
    for item in &items {
        if !matches!(item.node.content, NodeContent::Map(_)) {
            item.report_shape("a mapping such as { cert: chain.pem, key: key.pem }");
            continue;
        }
        let mut fields = item.field_reader();
        let certificate = read_certificate(&mut fields, folder, &digest);
        let (terms, roots) = read_terms(&mut fields, folder, &digest);
        fields.report_unknown();
        match &first {
            None => first = Some((terms, roots)),
            Some((known, _)) if *known != terms => {
                let message =
                    "`client_ca` and `min_version` must be the same for all certificates of a listener";
                let help = "a request may name another host than the handshake did: write the same with each \
                            certificate, or listen on another address";
                item.report_at_name(ValueError::new(codes::TLS, message).with_help(help));
            }
            Some(_) => {}
        }
        if let Some((certificate, value)) = certificate {
            warn_of_names(&certificate, &certificates, &value);
            certificates.push(certificate);
        }
    }
    let (terms, client_ca) = first?;
    terms.min_version.hash(&mut *digest.borrow_mut());
    let digest = digest.into_inner().finish();
    (certificates.len() == items.len()).then_some(ListenTlsConfig {
        certificates,
        client_ca,
        min_version: terms.min_version,
        digest,
    })
}

fn read_terms(
    fields: &mut FieldReader<'_>,
    folder: &Path,
    digest: &RefCell<DefaultHasher>,
) -> (CertificateTerms, Option<Arc<RootCertStore>>) {
    let mut path = None;
    let roots = fields.read_scalar(
        "client_ca",
        None,
        parse_or_none(|text| {
            let found = load_named_file(text, folder, "client_ca", pem::load_certificates)?;
            let mut roots = RootCertStore::empty();
            for certificate in found {
                certificate.hash(&mut *digest.borrow_mut());
                roots.add(certificate).map_err(|_| {
                    let message = format!("the file `{text}` holds a certificate that cannot be read");
                    ValueError::new(codes::TLS, message)
                })?;
            }
            Ok(Arc::new(roots))
        }),
    );
    if let Some(value) = fields.get_field("client_ca") {
        path = value.as_text().filter(|text| *text != "none").map(|text| folder.join(text));
    }
    let min_version = fields.read_scalar("min_version", TlsVersion::Tls12, parse_word(&VERSIONS));
    (CertificateTerms { client_ca: path, min_version }, roots)
}

/// The certificate of one entry, and the value that names its file.
fn read_certificate<'a>(
    fields: &mut FieldReader<'a>,
    folder: &Path,
    digest: &RefCell<DefaultHasher>,
) -> Option<(ListenCertificate, FieldValue<'a>)> {
    let (cert, key) = (fields.get_field("cert"), fields.get_field("key"));
    if cert.is_none() {
        fields.report_missing(
            "cert",
            "write cert: chain.pem, the certificate and those that lead to its authority",
        );
    }
    if key.is_none() {
        fields.report_missing("key", "write key: key.pem, the certificate's private key");
    }
    let (cert, key) = (cert?, key?);
    let chain = cert.parse_with(|text| {
        let chain = load_named_file(text, folder, "cert", pem::load_certificates)?;
        check_chain(text, &chain).map(|()| chain)
    });
    let signing = key.parse_with(|text| {
        let secret = load_named_file(text, folder, "key", pem::load_private_key)?;
        secret.secret_der().hash(&mut *digest.borrow_mut());
        any_supported_type(&secret).map_err(|_| {
            let message = format!("the file `{text}` holds a key of a kind that is not supported");
            ValueError::new(codes::TLS, message).with_help("make one of ECDSA (P-256, P-384), RSA or Ed25519")
        })
    });
    let (chain, signing) = (chain?, signing?);
    chain.hash(&mut *digest.borrow_mut());
    let names = certificate_hosts(&chain[0]);
    warn_of_dates(&chain[0], &cert);
    let certified = CertifiedKey::new(chain, signing);
    if let Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) =
        certified.keys_match()
    {
        let message = format!("the key in `{}` is not the one of the certificate", key.written_text());
        let help = format!("the certificate is the first in `{}`", cert.written_text());
        key.report_at_value(ValueError::new(codes::TLS, message).with_help(help));
        return None;
    }
    Some((ListenCertificate { key: Arc::new(certified), names }, cert))
}

/// Loads the file named `text` with `read`.
fn load_named_file<T>(
    text: &str,
    folder: &Path,
    field: &str,
    read: impl FnOnce(&Path) -> Result<T, String>,
) -> Parsed<T> {
    if text.is_empty() || text.contains('\0') {
        return Err(ValueError::new(codes::UNREADABLE, format!("`{field}` names no file")));
    }
    if text.contains("-----BEGIN") {
        let message = format!("`{field}` takes the name of a file, not its contents");
        return Err(ValueError::new(codes::UNREADABLE, message));
    }
    read(&folder.join(text)).map_err(|reason| {
        let code = if reason.starts_with("holds") { codes::TLS } else { codes::UNREADABLE };
        ValueError::new(code, format!("the file `{text}` {reason}"))
    })
}

fn check_chain(text: &str, chain: &[CertificateDer<'_>]) -> Parsed<()> {
    for certificate in chain {
        if EndEntityCert::try_from(certificate).is_err() {
            let message = format!("the file `{text}` holds a certificate that cannot be read");
            return Err(ValueError::new(codes::TLS, message));
        }
    }
    Ok(())
}

/// The hosts that a certificate names, in lower case.
fn certificate_hosts(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let mut names: Vec<String> = certificate.valid_dns_names().map(str::to_lowercase).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Warns if clients will reject the certificate for its dates.
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
        _ => return,
    };
    let message = format!("the certificate in `{}` {state}", value.written_text());
    warn_at(value, ValueError::new(codes::CERTIFICATE, message).with_help(help));
}

/// Warns if the certificate, or one of its names, can never be selected.
fn warn_of_names(certificate: &ListenCertificate, before: &[ListenCertificate], value: &FieldValue<'_>) {
    if certificate.names.is_empty() && !before.is_empty() {
        let message =
            format!("the certificate in `{}` names no host, so no client gets it", value.written_text());
        let help = "only the first certificate of a listener serves clients that name another host";
        warn_at(value, ValueError::new(codes::CERTIFICATE, message).with_help(help));
    }
    // A client may support the key type of one certificate and not that of another.
    let alike = |one: &&ListenCertificate| one.key.key.algorithm() == certificate.key.key.algorithm();
    let taken = |name: &&String| before.iter().filter(alike).any(|one| one.names.contains(name));
    if let Some(name) = certificate.names.iter().find(taken) {
        let message = format!("`{name}` is named by a certificate before this one, which is the one shown");
        let help = "remove one of the two";
        warn_at(value, ValueError::new(codes::CERTIFICATE, message).with_help(help));
    }
}

fn warn_at(value: &FieldValue<'_>, error: ValueError) {
    value.sink.add_warning(value.node.position, &value.path, error);
}
