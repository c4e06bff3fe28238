//! TLS towards clients: the certificates a listener presents, and the versions and client certificates it requires.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerSessionMemoryCache, WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};

use sluicegate_model::{CurrentCertificate, ListenCertificate, ListenTlsConfig, TlsVersion};

/// Sessions remembered for clients of TLS 1.2 without tickets; a new one replaces the oldest.
const SESSIONS: usize = 1024;

const FROM_TLS12: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
const FROM_TLS13: &[&SupportedProtocolVersion] = &[&TLS13];

/// The protocol's name in a handshake (ALPN, RFC 7301).
pub const H2: &[u8] = b"h2";
pub(crate) const HTTP_1_1: &[u8] = b"http/1.1";
/// The name of the challenge in the handshake (RFC 8737).
pub const ACME_TLS: &[u8] = b"acme-tls/1";

/// The rustls configuration of a listener. Sessions can be resumed as long as this very value serves them. Early data
/// is not accepted, because it can be replayed.
///
/// # Errors
/// A phrase that names the part rustls cannot build.
pub fn server_config(tls: &ListenTlsConfig, http2: bool) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(default_provider());
    let versions = match tls.min_version {
        TlsVersion::Tls12 => FROM_TLS12,
        TlsVersion::Tls13 => FROM_TLS13,
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider).build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| format!("clients cannot be verified: {error}"))?,
            )
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(CertificateResolver::new(&tls.certificates)));
    config.alpn_protocols =
        if http2 { vec![H2.to_vec(), HTTP_1_1.to_vec()] } else { vec![HTTP_1_1.to_vec()] };
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    config.ticketer = Ticketer::new().map_err(|error| format!("session tickets cannot be made: {error}"))?;
    Ok(Arc::new(config))
}

/// The rustls configuration of connections that end after the handshake: it presents the `certificate` of a challenge,
/// and asks clients for none.
///
/// # Errors
/// A phrase that names the part rustls cannot build.
pub fn challenge_config(certificate: CertifiedKey) -> Result<Arc<ServerConfig>, String> {
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(FROM_TLS12)
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let resolver = Arc::new(SingleCertAndKey::from(certificate));
    let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The certificates of a listener, by the hosts they name.
#[derive(Debug)]
struct CertificateResolver {
    keys: Vec<CurrentCertificate>,
    named: HashMap<String, Vec<usize>>,
}

impl CertificateResolver {
    fn new(certificates: &[ListenCertificate]) -> CertificateResolver {
        let mut named: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, certificate) in certificates.iter().enumerate() {
            for name in &certificate.names {
                named.entry(name.clone()).or_default().push(index);
            }
        }
        CertificateResolver {
            keys: certificates.iter().map(|certificate| certificate.key.clone()).collect(),
            named,
        }
    }

    /// The candidates for `host`, in lower case: certificates of its own name, those with `*` for its first label,
    /// then the first certificate of all.
    fn candidate_indexes(&self, host: Option<&str>) -> impl Iterator<Item = usize> {
        let exact = host.map(|host| self.certificates_named(host)).unwrap_or_default();
        let parent = host.and_then(|host| host.split_once('.')).map(|(_, parent)| parent);
        let wild = parent.map(|parent| self.certificates_named(&format!("*.{parent}"))).unwrap_or_default();
        exact.iter().chain(wild).copied().chain([0])
    }

    fn certificates_named(&self, name: &str) -> &[usize] {
        self.named.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The first candidate for `host` that is `usable`, else the first candidate.
    fn choose_certificate(
        &self,
        host: Option<&str>,
        usable: impl Fn(&CertifiedKey) -> bool,
    ) -> Option<Arc<CertifiedKey>> {
        let keys = || self.candidate_indexes(host).filter_map(|index| self.keys.get(index)?.load_full());
        keys().find(|key| usable(key)).or_else(|| keys().next())
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let usable = |key: &CertifiedKey| key.key.choose_scheme(hello.signature_schemes()).is_some();
        self.choose_certificate(hello.server_name().map(canonical_host).as_deref(), usable)
    }
}

/// A host as certificates name it: in lower case, and without the final dot of a fully qualified name, which clients
/// should not send (RFC 6066, section 3).
pub(super) fn canonical_host(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use arc_swap::ArcSwapOption;
    use rustls::crypto::aws_lc_rs::sign::any_supported_type;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;

    fn certificate(names: &[&str]) -> ListenCertificate {
        let pair = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::CertificateParams::new(names.clone()).unwrap().self_signed(&pair).unwrap();
        let secret = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        let key = CertifiedKey::new(vec![made.der().clone()], any_supported_type(&secret).unwrap());
        ListenCertificate { key: Arc::new(ArcSwapOption::from_pointee(key)), names, acme: None }
    }

    fn chosen_index(resolver: &CertificateResolver, host: Option<&str>, unusable: &[usize]) -> usize {
        let index = |key: &CertifiedKey| {
            resolver.keys.iter().position(|own| own.load_full().unwrap().cert == key.cert).unwrap()
        };
        index(&resolver.choose_certificate(host, |key| !unusable.contains(&index(key))).unwrap())
    }

    #[test]
    fn an_exact_name_comes_before_a_wildcard_and_the_first_certificate_serves_the_rest() {
        let resolver = CertificateResolver::new(&[
            certificate(&["first.test"]),
            certificate(&["*.example.test"]),
            certificate(&["www.example.test", "other.test"]),
            certificate(&["www.example.test"]),
        ]);
        for (host, expected) in [
            (Some("first.test"), 0),
            (Some("www.example.test"), 2),
            (Some("other.test"), 2),
            (Some("api.example.test"), 1),
            (Some("a.api.example.test"), 0),
            (Some("example.test"), 0),
            (Some("nobody.test"), 0),
            (Some("test"), 0),
            (None, 0),
        ] {
            assert_eq!(chosen_index(&resolver, host, &[]), expected, "{host:?}");
        }
        // A client that cannot use one kind of key gets the next certificate that names its host.
        assert_eq!(chosen_index(&resolver, Some("www.example.test"), &[2]), 3);
        assert_eq!(chosen_index(&resolver, Some("www.example.test"), &[2, 3]), 1);
        assert_eq!(chosen_index(&resolver, Some("www.example.test"), &[0, 1, 2, 3]), 2);
    }

    #[test]
    fn a_final_dot_does_not_change_the_host() {
        let resolver =
            CertificateResolver::new(&[certificate(&["first.test"]), certificate(&["a.test", "*.b.test"])]);
        for (host, expected) in [("a.test.", 1), ("A.Test.", 1), ("x.b.test.", 1), ("a.test..", 0), (".", 0)]
        {
            assert_eq!(chosen_index(&resolver, Some(&canonical_host(host)), &[]), expected, "{host}");
        }
    }

    #[test]
    fn a_listener_offers_alpn_tickets_and_no_early_data() {
        let mut tls = ListenTlsConfig {
            certificates: vec![certificate(&["a.test"])],
            client_ca: None,
            min_version: TlsVersion::Tls12,
            files: Vec::new(),
            digest: 0,
        };
        let config = server_config(&tls, true).unwrap();
        assert_eq!(config.alpn_protocols, [H2.to_vec(), HTTP_1_1.to_vec()]);
        assert!(config.ticketer.enabled() && config.max_early_data_size == 0);
        assert_eq!(server_config(&tls, false).unwrap().alpn_protocols, [HTTP_1_1.to_vec()]);
        tls.client_ca = Some(Arc::new(rustls::RootCertStore::empty()));
        assert!(server_config(&tls, true).unwrap_err().contains("clients cannot be verified"));
    }
}
