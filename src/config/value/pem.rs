//! Certificates and keys out of PEM files. What is wrong is told in a phrase that follows the name of the file, and
//! never with a piece of the file.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::yaml::file::read_capped;

/// More than any bundle of authorities needs.
const BYTES_MAX: u64 = 4 << 20;

/// All certificates of the file, at least one, in its order.
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
        return Err("holds a key under a passphrase; write one without".to_owned());
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
