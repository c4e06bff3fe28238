//! The claims of a request's token (JWT, RFC 7519): verified at most once per request, and only when asked for.
//!
//! A token that is not good in every respect claims nothing. Verifying one costs as much as a hundred limits, so
//! that each worker remembers good tokens until they expire, at most [`CACHED_MAX`] of them; bad ones are not
//! remembered, because whoever sends them could push the good ones out.

mod fault;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation};
use serde_json::{Map, Value};

use crate::config::{JwtConfig, NamedFile, TokenKeys};

pub use fault::TokenFault;

/// Verifies tokens for one worker.
pub struct TokenVerifier {
    header: HeaderName,
    keys: Option<Arc<NamedFile<TokenKeys>>>,
    secret: Option<DecodingKey>,
    rules: Vec<(Algorithm, Validation)>,
    /// The claims that are asked for.
    claim_names: Vec<String>,
    hashers: [RandomState; 2],
    cache: RefCell<TokenCache>,
}

/// The token of one request.
pub struct Token<'r> {
    verifier: &'r TokenVerifier,
    headers: &'r HeaderMap,
    /// Seconds since 1970.
    now: u64,
    verified: OnceCell<Result<Rc<VerifiedToken>, TokenFault>>,
}

/// A token whose signature, issuer and audience are right.
struct VerifiedToken {
    /// In the order of [`TokenVerifier::names`].
    claims: Box<[Option<Box<str>>]>,
    not_before: u64,
    expires: u64,
}

/// Good tokens by the hash of their text: a newcomer goes to the young, and when those are full the old are
/// forgotten for them.
#[derive(Default)]
struct TokenCache {
    recent: HashMap<u128, Rc<VerifiedToken>>,
    older: HashMap<u128, Rc<VerifiedToken>>,
    /// The keys they were verified by.
    keys: Option<Arc<TokenKeys>>,
}

/// Longer tokens are not read.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Keys that a token which names none is tried against.
const TRIES_MAX: usize = 16;
const CACHED_MAX: usize = 1024;
/// How far the clock of an issuer may be ahead of ours, in seconds. A token never lives longer than it says.
const CLOCK_SKEW_MAX: u64 = 5;

// === impl Verifier ===

impl TokenVerifier {
    /// `names` are the claims that tokens will be asked for.
    pub fn new(jwt: &JwtConfig, names: &[String]) -> TokenVerifier {
        let rule = |&algorithm: &Algorithm| (algorithm, build_validation(jwt, algorithm));
        TokenVerifier {
            header: jwt.header.clone(),
            keys: jwt.keys.clone(),
            secret: jwt.secret.as_ref().map(|secret| DecodingKey::from_secret(secret.0.as_bytes())),
            rules: jwt.algorithms.iter().map(rule).collect(),
            claim_names: names.to_vec(),
            hashers: [RandomState::new(), RandomState::new()],
            cache: RefCell::default(),
        }
    }

    /// Signs and verifies once: the library panics at its first token when it was built without its cryptography,
    /// and that must not be a client's.
    ///
    /// # Errors
    /// When a good token is refused.
    pub fn self_test() -> io::Result<()> {
        let claims = Map::from_iter([("exp".to_owned(), Value::from(u64::from(u32::MAX)))]);
        let signed = jsonwebtoken::encode(
            &jsonwebtoken::Header::default(),
            &claims,
            &jsonwebtoken::EncodingKey::from_secret(b"self-test"),
        );
        let key = DecodingKey::from_secret(b"self-test");
        let read =
            |token: String| jsonwebtoken::decode::<Map<String, Value>>(token, &key, &Validation::default());
        signed.and_then(read).map(drop).map_err(io::Error::other)
    }

    /// What the token in `headers` claims at `now`.
    fn verify_cached(&self, headers: &HeaderMap, now: u64) -> Result<Rc<VerifiedToken>, TokenFault> {
        let text = token_text(&self.header, headers)?;
        let keys = self.keys.as_ref().map(|file| file.content());
        let mut memory = self.cache.borrow_mut();
        memory.use_keys(keys.as_deref());
        let id = self.cache_id(text);
        let good = match memory.find_token(id) {
            Some(good) => good,
            None => {
                let good = Rc::new(self.verify_text(text, keys.as_deref().map(|keys| &**keys))?);
                if good.check_time(now).is_ok() {
                    memory.keep_token(id, good.clone());
                }
                good
            }
        };
        good.check_time(now).map(|()| good)
    }

    fn verify_text(&self, text: &[u8], keys: Option<&TokenKeys>) -> Result<VerifiedToken, TokenFault> {
        let header = jsonwebtoken::decode_header(text).map_err(|_| TokenFault::Malformed)?;
        // RFC 7515: what is critical and not understood makes a token invalid, and nothing is understood here.
        if header.crit.is_some() {
            return Err(TokenFault::Critical);
        }
        let rules = self.rules.iter().find(|(algorithm, _)| *algorithm == header.alg);
        let (algorithm, rules) = rules.ok_or(TokenFault::Algorithm)?;
        let mut fault = TokenFault::UnknownKey;
        let read = |key: &DecodingKey| {
            let read = jsonwebtoken::decode::<Map<String, Value>>(text, key, rules);
            read.inspect_err(|error| fault = TokenFault::from_library(error)).ok()
        };
        let read = match algorithm.family() {
            AlgorithmFamily::Hmac => self.secret.as_ref().and_then(read),
            _ => keys.and_then(|keys| {
                keys.keys_for(*algorithm, header.kid.as_deref()).take(TRIES_MAX).find_map(read)
            }),
        };
        let claims = read.ok_or(fault)?.claims;
        Ok(VerifiedToken {
            expires: claims.get("exp").and_then(numeric_date).ok_or(TokenFault::NoExpiry)?,
            not_before: claims.get("nbf").map_or(Some(0), numeric_date).ok_or(TokenFault::NoStart)?,
            claims: self.claim_names.iter().map(|name| claims.get(name).and_then(claim_text)).collect(),
        })
    }

    fn cache_id(&self, text: &[u8]) -> u128 {
        let [high, low] = self.hashers.each_ref().map(|hash| u128::from(hash.hash_one(text)));
        high << 64 | low
    }
}

fn build_validation(jwt: &JwtConfig, algorithm: Algorithm) -> Validation {
    let mut rules = Validation::new(algorithm);
    // Times are judged on every request, also those of remembered tokens.
    rules.validate_exp = false;
    rules.validate_aud = !jwt.audiences.is_empty();
    let mut required = vec!["exp"];
    if !jwt.audiences.is_empty() {
        rules.set_audience(&jwt.audiences);
        required.push("aud");
    }
    if !jwt.issuers.is_empty() {
        rules.set_issuer(&jwt.issuers);
        required.push("iss");
    }
    rules.set_required_spec_claims(&required);
    rules
}

/// The token's text, if there is exactly one. In `Authorization` it follows `Bearer`, elsewhere it may.
fn token_text<'r>(header: &HeaderName, headers: &'r HeaderMap) -> Result<&'r [u8], TokenFault> {
    let mut lines = headers.get_all(header).iter();
    let line = match (lines.next(), lines.next()) {
        (Some(line), None) => line.as_bytes().trim_ascii(),
        (None, _) => return Err(TokenFault::Absent),
        (Some(_), Some(_)) => return Err(TokenFault::Repeated),
    };
    let bearer = match line.split_first_chunk::<7>() {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(rest.trim_ascii_start()),
        _ => None,
    };
    let text = match bearer {
        Some(text) => text,
        None if *header == AUTHORIZATION => return Err(TokenFault::NotBearer),
        None => line,
    };
    match text.len() {
        0 => Err(TokenFault::Absent),
        1..=TOKEN_BYTES_MAX => Ok(text),
        _ => Err(TokenFault::TooLong),
    }
}

/// A NumericDate, in whole seconds; one before 1970 or without meaning is none.
fn numeric_date(claim: &Value) -> Option<u64> {
    let fraction = || claim.as_f64().filter(|time| (0.0..1e15).contains(time)).map(|time| time as u64);
    claim.as_u64().or_else(fraction)
}

/// Text, a number or a truth value. Numbers that were rounded are none: two accounts could become one.
fn claim_text(claim: &Value) -> Option<Box<str>> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    let text = match claim {
        Value::String(text) => text.clone(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().filter(|number| number.abs() < EXACT)?.to_string()
        }
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    (!text.is_empty()).then(|| text.into())
}

// === impl Token ===

impl<'r> Token<'r> {
    /// `now` in seconds since 1970.
    #[inline]
    pub fn new(verifier: &'r TokenVerifier, headers: &'r HeaderMap, now: u64) -> Token<'r> {
        Token { verifier, headers, now, verified: OnceCell::new() }
    }

    /// What a good token claims under `name`; never empty.
    pub fn claim_value(&self, name: &str) -> Option<&[u8]> {
        let good = self.verify_once().as_ref().ok()?;
        let place = self.verifier.claim_names.iter().position(|known| known == name)?;
        good.claims[place].as_deref().map(str::as_bytes)
    }

    /// Why it claims nothing; `None` of a good token.
    pub fn fault(&self) -> Option<TokenFault> {
        self.verify_once().as_ref().err().copied()
    }

    fn verify_once(&self) -> &Result<Rc<VerifiedToken>, TokenFault> {
        self.verified.get_or_init(|| self.verifier.verify_cached(self.headers, self.now))
    }
}

impl std::fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

// === impl Good ===

impl VerifiedToken {
    fn check_time(&self, now: u64) -> Result<(), TokenFault> {
        match (now < self.expires, self.not_before <= now.saturating_add(CLOCK_SKEW_MAX)) {
            (true, true) => Ok(()),
            (false, _) => Err(TokenFault::Expired),
            (true, false) => Err(TokenFault::Early),
        }
    }
}

// === impl Memory ===

impl TokenCache {
    /// What other keys have verified is forgotten: one of them may have been withdrawn.
    fn use_keys(&mut self, keys: Option<&Arc<TokenKeys>>) {
        let same = match (&self.keys, keys) {
            (Some(known), Some(keys)) => Arc::ptr_eq(known, keys),
            (known, keys) => known.is_none() && keys.is_none(),
        };
        if !same {
            *self = TokenCache { keys: keys.cloned(), ..TokenCache::default() };
        }
    }

    fn find_token(&mut self, id: u128) -> Option<Rc<VerifiedToken>> {
        if let Some(good) = self.recent.get(&id) {
            return Some(good.clone());
        }
        let good = self.older.remove(&id)?;
        self.keep_token(id, good.clone());
        Some(good)
    }

    fn keep_token(&mut self, id: u128, good: Rc<VerifiedToken>) {
        if self.recent.len() >= CACHED_MAX / 2 {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(id, good);
    }
}

#[cfg(test)]
mod tests;
