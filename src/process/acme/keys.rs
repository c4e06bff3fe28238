//! Keys and certificates of orders: requests for them, tests of what was issued, and those that are signed here.

use std::time::Duration;

use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use sluicegate_base::certificate::{host_names, validity};
use sluicegate_base::wall_clock::unix_ns;

/// The life of a certificate that is signed here.
const SELF_SIGNED_LIFE: Duration = Duration::from_secs(7 * 86_400);
/// Clocks of authorities may be ahead.
const EARLY_MAX_S: u64 = 300;

/// The bytes of a SHA-256.
const DIGEST_BYTES: usize = 32;

/// A certificate with its key that can be presented.
pub(super) struct UsableCertificate {
    pub key: CertifiedKey,
    /// The hosts that it names, in lower case.
    pub names: Vec<String>,
    /// Its begin and its end, in seconds since 1970.
    pub life: (u64, u64),
}

/// A new key in PEM, and a request for a certificate of `domains`, which it signs.
pub(super) fn request_certificate(domains: &[String]) -> Result<(String, Vec<u8>), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let request = parameters(domains)?.serialize_request(&key)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}

/// Tests a chain with its key, both in PEM: it can be read, the key fits, and it is valid now.
///
/// # Errors
/// A phrase about the certificate; it quotes nothing.
pub(super) fn test_certificate(pem: &[u8], now: u64) -> Result<UsableCertificate, &'static str> {
    let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain =
        chain.ok().filter(|chain| !chain.is_empty()).ok_or("holds no certificate that can be read")?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| "holds no key that can be read")?;
    let (names, life) = (host_names(&chain[0]), validity(&chain[0]).ok_or("has no dates that can be read")?);
    let fits = CertifiedKey::from_der(chain, key, &default_provider());
    let key = fits.map_err(|_| "holds a key that does not fit")?;
    if life.1 <= now {
        return Err("has expired");
    }
    if life.0 > now + EARLY_MAX_S {
        return Err("is not valid yet by the clock of this machine");
    }
    Ok(UsableCertificate { key, names, life })
}

fn parameters(domains: &[String]) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(domains)?;
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters)
}

/// A certificate for `domains` that no client trusts; with a `digest` it answers a challenge (RFC 8737, section 3).
pub(super) fn sign_here(domains: &[String], digest: Option<&[u8]>) -> Result<CertifiedKey, String> {
    if digest.is_some_and(|digest| digest.len() != DIGEST_BYTES) {
        return Err("the digest is none".to_owned());
    }
    let text = |error: rcgen::Error| error.to_string();
    let mut parameters = parameters(domains).map_err(text)?;
    parameters.custom_extensions = digest.map(CustomExtension::new_acme_identifier).into_iter().collect();
    parameters.not_before = date_time_ymd(1970, 1, 1) + Duration::from_nanos(unix_ns());
    parameters.not_after = parameters.not_before + SELF_SIGNED_LIFE;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(text)?;
    let certificate = parameters.self_signed(&key).map_err(text)?;
    let secret = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    // The library cannot read the critical extension of a challenge, so it does not compare the keys.
    let signing = any_supported_type(&secret).map_err(|error| error.to_string())?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], signing))
}
