//! The authorities of certificates that the system trusts.

use rustls::RootCertStore;

/// The authorities that the system trusts, or those of `SSL_CERT_FILE`; empty if they cannot be read.
pub fn load_system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
