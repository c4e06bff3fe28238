//! The claims of a request's token (JWT, RFC 7519), verified at most once per request, and only if a claim is read.
//!
//! An invalid token has no claims. Verifying one costs as much as a hundred limits, so each worker caches valid tokens
//! until they expire, at most [`CACHED_MAX`] of them; invalid ones are not cached, because their sender could evict the
//! valid ones.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::{fmt, io};

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation};
use serde_json::{Map, Value};

use sluicegate_base::file::NamedFile;
use sluicegate_base::labelled::labelled_enum;
use sluicegate_model::{JwtConfig, TokenKeys};

mod key_set;

pub use key_set::{FetchedKeys, KeySet, KeySetStatus};

/// Verifies tokens for one worker.
pub struct TokenVerifier {
    header: HeaderName,
    keys: Option<Arc<NamedFile<TokenKeys>>>,
    secret: Option<DecodingKey>,
    rules: Vec<(Algorithm, Validation)>,
    /// The claims that the configuration reads.
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

/// A token with a valid signature, issuer and audience.
struct VerifiedToken {
    /// Claims in the order of [`TokenVerifier::claim_names`].
    claims: Box<[Option<Box<str>>]>,
    not_before: u64,
    expires: u64,
}

/// Valid tokens by the hash of their text, in two generations: tokens are added to the recent one; once it is full, it
/// replaces the older one.
#[derive(Default)]
struct TokenCache {
    recent: HashMap<u128, Rc<VerifiedToken>>,
    older: HashMap<u128, Rc<VerifiedToken>>,
    /// The keys that verified them.
    keys: Option<Arc<TokenKeys>>,
}

/// Longer tokens are rejected unread.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Most keys that a token without a key id is tried against.
const TRIES_MAX: usize = 16;
const CACHED_MAX: usize = 1024;
/// The maximum lead of an issuer's clock, in seconds. It never extends the lifetime of a token.
const CLOCK_SKEW_MAX: u64 = 5;

// === impl TokenVerifier ===

impl TokenVerifier {
    /// `names` are the claims that will be read.
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

    /// Signs and verifies one token at start: built without its cryptography, the library panics at its first token,
    /// which must not be a client's.
    ///
    /// # Errors
    /// A valid token was rejected.
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

    /// The token in `headers`, if it is valid at `now`.
    fn verify_cached(&self, headers: &HeaderMap, now: u64) -> Result<Rc<VerifiedToken>, TokenFault> {
        let text = token_text(&self.header, headers)?;
        let keys = self.keys.as_ref().map(|file| file.content());
        let mut cache = self.cache.borrow_mut();
        cache.use_keys(keys.as_deref());
        let id = self.cache_id(text);
        let token = match cache.find_token(id) {
            Some(token) => token,
            None => {
                let token = Rc::new(self.verify_text(text, keys.as_deref().map(|keys| &**keys))?);
                if token.check_time(now).is_ok() {
                    cache.keep_token(id, token.clone());
                }
                token
            }
        };
        token.check_time(now).map(|()| token)
    }

    fn verify_text(&self, text: &[u8], keys: Option<&TokenKeys>) -> Result<VerifiedToken, TokenFault> {
        let header = jsonwebtoken::decode_header(text).map_err(|_| TokenFault::Malformed)?;
        // RFC 7515: an unknown critical extension makes a token invalid, and none is known here.
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
    // Times are checked on every request, also those of cached tokens.
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

/// The text of the token, if there is exactly one. `Bearer` precedes it: always in `Authorization`, optionally
/// elsewhere.
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

/// A NumericDate in whole seconds; `None` if it is before 1970 or not a time.
fn numeric_date(claim: &Value) -> Option<u64> {
    let fraction = || claim.as_f64().filter(|time| (0.0..1e15).contains(time)).map(|time| time as u64);
    claim.as_u64().or_else(fraction)
}

/// A string, a number or a boolean as text. A rounded number is none: two accounts could become one.
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

    /// A token that needs no verification, because a trusted caller states its claims.
    pub fn with_claims(
        verifier: &'r TokenVerifier,
        headers: &'r HeaderMap,
        claims: &[(String, String)],
    ) -> Token<'r> {
        let stated = |name: &String| {
            let claim = claims.iter().find(|(known, _)| known == name)?;
            Some(claim.1.as_str().into())
        };
        let claims = verifier.claim_names.iter().map(stated).collect();
        let token = VerifiedToken { claims, not_before: 0, expires: u64::MAX };
        Token { verifier, headers, now: 0, verified: OnceCell::from(Ok(Rc::new(token))) }
    }

    /// The claim `name` of a valid token; never empty.
    pub fn claim_value(&self, name: &str) -> Option<&[u8]> {
        let token = self.verify_once().as_ref().ok()?;
        let index = self.verifier.claim_names.iter().position(|known| known == name)?;
        token.claims[index].as_deref().map(str::as_bytes)
    }

    /// The reason why the token is invalid; `None` for a valid token.
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

// === impl VerifiedToken ===

impl VerifiedToken {
    fn check_time(&self, now: u64) -> Result<(), TokenFault> {
        match (now < self.expires, self.not_before <= now.saturating_add(CLOCK_SKEW_MAX)) {
            (true, true) => Ok(()),
            (false, _) => Err(TokenFault::Expired),
            (true, false) => Err(TokenFault::Early),
        }
    }
}

// === impl TokenCache ===

impl TokenCache {
    /// Empties the cache if the keys have changed: one of them may have been withdrawn.
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
        if let Some(token) = self.recent.get(&id) {
            return Some(token.clone());
        }
        let token = self.older.remove(&id)?;
        self.keep_token(id, token.clone());
        Some(token)
    }

    fn keep_token(&mut self, id: u128, token: Rc<VerifiedToken>) {
        if self.recent.len() >= CACHED_MAX / 2 {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(id, token);
    }
}

labelled_enum! {
    /// The reason why the claims of a request's token do not count.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TokenFault: text -> &'static str {
        /// The request has no such header.
        Absent = "the request has none",
        /// The request has the header of the token more than once.
        Repeated = "the request has its header more than once",
        /// `Authorization` is empty or has another scheme.
        NotBearer = "its header is not `Bearer` and a token",
        /// The token is longer than 8 KiB.
        TooLong = "it is longer than 8 KiB",
        /// The token is malformed.
        Malformed = "it is malformed",
        /// The header of the token has `crit`, and no extension is supported.
        Critical = "its header has `crit`, and no extension is supported",
        /// The algorithm is not among `account.jwt.algorithms`.
        Algorithm = "its algorithm is not among account.jwt.algorithms",
        /// No key of `account.jwt` fits the token.
        UnknownKey = "no key of account.jwt fits it",
        /// The signature is invalid.
        Signature = "its signature is invalid",
        /// The issuer (`iss`) is missing, or not in `account.jwt.issuer`.
        Issuer = "its issuer (iss) is not in account.jwt.issuer, or is missing",
        /// The audience (`aud`) is missing, or not in `account.jwt.audience`.
        Audience = "its audience (aud) is not in account.jwt.audience, or is missing",
        /// The token has no expiry time (`exp`), which is required.
        NoExpiry = "it has no expiry time (exp), which is required",
        /// The start time (`nbf`) is not a time.
        NoStart = "its start time (nbf) is not a time",
        /// The token has expired (`exp`).
        Expired = "it has expired (exp)",
        /// The token is not valid yet (`nbf`).
        Early = "it is not valid yet (nbf)",
    }
}

impl TokenFault {
    /// Translates an error of the library, for a token with a valid header.
    pub(super) fn from_library(error: &Error) -> TokenFault {
        match error.kind() {
            ErrorKind::InvalidSignature => TokenFault::Signature,
            ErrorKind::InvalidIssuer => TokenFault::Issuer,
            ErrorKind::InvalidAudience => TokenFault::Audience,
            ErrorKind::MissingRequiredClaim(claim) => match claim.as_str() {
                "iss" => TokenFault::Issuer,
                "aud" => TokenFault::Audience,
                _ => TokenFault::NoExpiry,
            },
            ErrorKind::InvalidAlgorithm => TokenFault::UnknownKey,
            _ => TokenFault::Malformed,
        }
    }
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests;
