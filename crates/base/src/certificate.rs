//! What a certificate (RFC 5280) says of itself: its hosts, its dates, and its identity.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

/// The object identifier 2.5.29.35 of the authority key identifier, as DER.
const AUTHORITY_KEY_ID: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x23];

/// The hosts that a certificate names, in lower case; empty if it cannot be read.
pub fn host_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let mut names: Vec<String> = certificate.valid_dns_names().map(str::to_lowercase).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The begin and the end of its validity, in seconds since 1970; `None` if they cannot be read, as of version 1.
pub fn validity(certificate: &CertificateDer<'_>) -> Option<(u64, u64)> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    // The dates are checked before the chain, and the error has them.
    let judged_at = |seconds| {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        parsed.verify_for_usage(&[], &[], &[], at, KeyUsage::server_auth(), None, None).err()
    };
    let end = match judged_at(u64::MAX)? {
        Error::CertExpired { not_after, .. } => not_after.as_secs(),
        _ => return None,
    };
    let begin = match judged_at(0)? {
        Error::CertNotValidYet { not_before, .. } => not_before.as_secs(),
        _ => 0,
    };
    Some((begin, end))
}

/// The earliest end of the validity of these certificates, in seconds since 1970.
pub fn earliest_end(certificates: &[CertificateDer<'_>]) -> Option<u64> {
    certificates.iter().filter_map(|certificate| Some(validity(certificate)?.1)).min()
}

/// The identifier of the authority's key and the serial number, by which an authority knows a certificate (RFC 9773).
pub fn identity<'a>(certificate: &'a CertificateDer<'_>) -> Option<(&'a [u8], Vec<u8>)> {
    let serial = EndEntityCert::try_from(certificate).ok()?.serial().to_vec();
    let at = certificate.windows(AUTHORITY_KEY_ID.len()).position(|bytes| bytes == AUTHORITY_KEY_ID)?;
    // An octet string with a sequence, whose first member is the identifier, each shorter than 128 bytes.
    match certificate.get(at + AUTHORITY_KEY_ID.len()..)? {
        [0x04, _, 0x30, _, 0x80, length, rest @ ..] => Some((rest.get(..usize::from(*length))?, serial)),
        _ => None,
    }
}
