//! The answers to challenges of open orders (RFC 8555, section 8.3; RFC 8737), which all workers read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use arc_swap::ArcSwap;
use bytes::Bytes;
use rustls::ServerConfig;
use rustls::server::ClientHello;

use super::tls::{ACME_TLS, canonical_host};

const TOKEN_PATH: &str = "/.well-known/acme-challenge/";

/// The answers of one storage.
#[derive(Clone, Default)]
pub struct ChallengeAnswers {
    /// Key authorizations by their tokens.
    pub tokens: HashMap<String, String>,
    /// Settings of TLS that present the certificate of a challenge, by host names in lower case.
    pub hosts: HashMap<String, Arc<ServerConfig>>,
}

/// The answers to challenges, and the count of orders.
#[derive(Default)]
pub struct AcmeChallenges {
    is_open: AtomicBool,
    answers: ArcSwap<HashMap<PathBuf, ChallengeAnswers>>,
    /// Orders that ended with a certificate.
    pub issued: AtomicU64,
    /// Orders that failed.
    pub failed: AtomicU64,
}

impl AcmeChallenges {
    /// Replaces the answers of one storage; only one thread may call it.
    pub fn set_answers(&self, storage: &Path, answers: ChallengeAnswers) {
        let mut all = HashMap::clone(&self.answers.load());
        all.remove(storage);
        if !answers.tokens.is_empty() || !answers.hosts.is_empty() {
            all.insert(storage.to_owned(), answers);
        }
        self.is_open.store(!all.is_empty(), Relaxed);
        self.answers.store(Arc::new(all));
    }

    /// True while an order is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// The answer to a request for `path`; `None` = no open order has its token.
    #[cold]
    pub fn find_token(&self, path: &str) -> Option<Bytes> {
        let token = path.strip_prefix(TOKEN_PATH)?;
        self.answers.load().values().find_map(|answers| Some(answers.tokens.get(token)?.clone().into()))
    }

    /// The settings for a handshake that asks for nothing but a challenge; `None` = it is a usual one, or no open order
    /// is for its host.
    pub fn find_host(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        let mut protocols = hello.alpn()?;
        if protocols.next() != Some(ACME_TLS) || protocols.next().is_some() {
            return None;
        }
        let host = hello.server_name().map(canonical_host)?;
        self.answers.load().values().find_map(|answers| answers.hosts.get(&host).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_of_open_orders_are_answered() {
        let challenges = AcmeChallenges::default();
        let tokens = HashMap::from([("abc".to_owned(), "abc.print".to_owned())]);
        assert!(!challenges.is_open());
        challenges.set_answers(Path::new("/a"), ChallengeAnswers { tokens, hosts: HashMap::new() });
        assert!(challenges.is_open());
        let found = |path: &str| challenges.find_token(path).is_some();
        assert!(found("/.well-known/acme-challenge/abc"));
        for path in [
            "/abc",
            "/.well-known/acme-challenge/",
            "/.well-known/acme-challenge/abcd",
            "/.well-known/acme-challenge/abc/",
        ] {
            assert!(!found(path), "{path}");
        }
        challenges.set_answers(Path::new("/b"), ChallengeAnswers::default());
        assert!(challenges.is_open() && found("/.well-known/acme-challenge/abc"));
        challenges.set_answers(Path::new("/a"), ChallengeAnswers::default());
        assert!(!challenges.is_open() && !found("/.well-known/acme-challenge/abc"));
    }
}
