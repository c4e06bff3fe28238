//! Loads certificates and keys from PEM files. Errors are phrases that follow the file's name; they never quote its
//! contents.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use sluicegate_base::file::{explain_path, read_capped};
use sluicegate_model::{Parsed, ValueError, codes};

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
