//! The claims of a request's token (JWT, RFC 7519), verified at most once per request, and only if a claim is read.
//!
//! An invalid token has no claims. Verifying one costs as much as a hundred limits, so each worker caches valid tokens
//! until they expire, at most [`CACHED_MAX`] of them; invalid ones are not cached, because their sender could evict the
//! valid ones.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, dangerous};
use serde::Deserialize;
use serde_json::{Map, Value};

use sluicegate_base::file::NamedFile;
use sluicegate_base::labelled::labelled_enum;
use sluicegate_model::{JwtConfig, TokenKeySource, TokenKeys, TokenRules};

mod key_set;

pub use key_set::{FetchedKeys, KeySet, KeySetStatus};

/// The verification of tokens, for all workers.
pub struct TokenVerification {
    config: JwtConfig,
    /// The claims that the configuration reads.
    claim_names: Vec<String>,
    /// One for each entry whose keys are fetched, by the index of the entry.
    key_sets: Vec<Option<Arc<KeySet>>>,
}

/// Verifies tokens for one worker.
pub struct TokenVerifier {
    header: HeaderName,
    entries: Vec<EntryVerifier>,
    /// The issuer that a token names chooses its entry.
    reads_issuer: bool,
    /// The claims that the configuration reads.
    claim_names: Vec<String>,
    hashers: [RandomState; 2],
    cache: RefCell<TokenCache>,
}

/// Verifies the tokens of one entry.
struct EntryVerifier {
    issuers: Vec<String>,
    keys: Option<LiveKeys>,
    secret: Option<DecodingKey>,
    rules: Vec<(Algorithm, Validation)>,
}

/// Public keys that may change at any time.
enum LiveKeys {
    File(Arc<NamedFile<TokenKeys>>),
    Fetched(Arc<KeySet>),
}

/// The issuer that a token names, before its signature is verified.
#[derive(Deserialize)]
struct NamedIssuer {
    iss: String,
}

/// The reason why a token is invalid, and the index of the entry whose set may get a key for it.
#[derive(Clone, Copy)]
struct Refusal {
    fault: TokenFault,
    lacking: Option<usize>,
}

/// The token of one request.
pub struct Token<'r> {
    verifier: &'r TokenVerifier,
    headers: &'r HeaderMap,
    /// Seconds since 1970.
    now: u64,
    verified: OnceCell<Result<Rc<VerifiedToken>, Refusal>>,
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
    /// The keys that verified them, of each entry.
    keys: Vec<Option<Arc<TokenKeys>>>,
}

/// Longer tokens are rejected unread.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Most keys that a token without a key id is tried against.
const TRIES_MAX: usize = 16;
const CACHED_MAX: usize = 1024;
/// The maximum lead of an issuer's clock, in seconds. It never extends the lifetime of a token.
const CLOCK_SKEW_MAX: u64 = 5;

// === impl TokenVerification ===

impl TokenVerification {
    /// `claims` are those that will be read. The sets of issuers that `previous` fetched in the same way continue.
    pub fn new(
        config: &JwtConfig,
        claims: Vec<String>,
        previous: Option<&TokenVerification>,
    ) -> TokenVerification {
        let set_of = |rules: &TokenRules| match &rules.keys {
            Some(TokenKeySource::Issuer(source)) => {
                let before = previous.iter().flat_map(|previous| previous.key_sets());
                let adopted = before.into_iter().find(|set| set.config == *source).cloned();
                Some(adopted.unwrap_or_else(|| Arc::new(KeySet::new(source.clone()))))
            }
            _ => None,
        };
        let key_sets = config.entries.iter().map(set_of).collect();
        TokenVerification { config: config.clone(), claim_names: claims, key_sets }
    }

    /// The sets that are fetched.
    pub fn key_sets(&self) -> impl Iterator<Item = &Arc<KeySet>> {
        self.key_sets.iter().flatten()
    }
}

// === impl TokenVerifier ===

impl TokenVerifier {
    /// A verifier with an empty cache.
    pub fn new(verification: &TokenVerification) -> TokenVerifier {
        let TokenVerification { config, claim_names, key_sets } = verification;
        let entry =
            |(rules, set): (&TokenRules, &Option<Arc<KeySet>>)| EntryVerifier::new(rules, set.as_ref());
        TokenVerifier {
            header: config.header.clone(),
            entries: config.entries.iter().zip(key_sets).map(entry).collect(),
            reads_issuer: config.entries.len() > 1 || key_sets.iter().any(Option::is_some),
            claim_names: claim_names.clone(),
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
    fn verify_cached(&self, headers: &HeaderMap, now: u64) -> Result<Rc<VerifiedToken>, Refusal> {
        let text = token_text(&self.header, headers)?;
        let mut cache = self.cache.borrow_mut();
        cache.use_keys(&self.entries);
        let id = self.cache_id(text);
        let token = match cache.find_token(id) {
            Some(token) => token,
            None => {
                let token = Rc::new(self.verify_text(text)?);
                if token.check_time(now).is_ok() {
                    cache.keep_token(id, token.clone());
                }
                token
            }
        };
        token.check_time(now)?;
        Ok(token)
    }

    fn verify_text(&self, text: &[u8]) -> Result<VerifiedToken, Refusal> {
        let header = jsonwebtoken::decode_header(text).map_err(|_| TokenFault::Malformed)?;
        // RFC 7515: an unknown critical extension makes a token invalid, and none is known here.
        if header.crit.is_some() {
            return Err(TokenFault::Critical.into());
        }
        let (index, entry) = self.find_entry(text)?;
        let rules = entry.rules.iter().find(|(algorithm, _)| *algorithm == header.alg);
        let (algorithm, rules) = rules.ok_or(TokenFault::Algorithm)?;
        let fitting = |keys: &TokenKeys| {
            try_keys(text, rules, keys.keys_for(*algorithm, header.kid.as_deref()).take(TRIES_MAX))
        };
        let claims = match (algorithm.family(), &entry.keys) {
            (AlgorithmFamily::Hmac, _) => try_keys(text, rules, entry.secret.iter())?,
            (_, None) => return Err(TokenFault::UnknownKey.into()),
            (_, Some(LiveKeys::File(file))) => fitting(&file.content())?,
            (_, Some(LiveKeys::Fetched(set))) => {
                let lacks_key = |fault| {
                    let names_unknown = fault == TokenFault::UnknownKey && header.kid.is_some();
                    let lacking = (names_unknown || fault == TokenFault::NoKeys).then_some(index);
                    Refusal { fault, lacking }
                };
                set.keys()
                    .as_ref()
                    .map_or(Err(TokenFault::NoKeys), |keys| fitting(keys))
                    .map_err(lacks_key)?
            }
        };
        Ok(VerifiedToken {
            expires: claims.get("exp").and_then(numeric_date).ok_or(TokenFault::NoExpiry)?,
            not_before: claims.get("nbf").map_or(Some(0), numeric_date).ok_or(TokenFault::NoStart)?,
            claims: self.claim_names.iter().map(|name| claims.get(name).and_then(claim_text)).collect(),
        })
    }

    /// The entry of the issuer that the token names. No other one verifies it, whatever the ids of keys are.
    fn find_entry(&self, text: &[u8]) -> Result<(usize, &EntryVerifier), TokenFault> {
        let named = if self.reads_issuer {
            Some(dangerous::insecure_decode_claims::<NamedIssuer>(text).map_err(|_| TokenFault::Issuer)?)
        } else {
            None
        };
        let is_named = |(_, entry): &(usize, &EntryVerifier)| match &named {
            Some(NamedIssuer { iss }) => entry.issuers.contains(iss),
            None => true,
        };
        self.entries.iter().enumerate().find(is_named).ok_or(TokenFault::Issuer)
    }

    fn cache_id(&self, text: &[u8]) -> u128 {
        let [high, low] = self.hashers.each_ref().map(|hash| u128::from(hash.hash_one(text)));
        high << 64 | low
    }
}

/// The claims of a token that one of these keys signed.
fn try_keys<'k>(
    text: &[u8],
    rules: &Validation,
    mut keys: impl Iterator<Item = &'k DecodingKey>,
) -> Result<Map<String, Value>, TokenFault> {
    let mut fault = TokenFault::UnknownKey;
    let read = keys.find_map(|key| {
        let read = jsonwebtoken::decode::<Map<String, Value>>(text, key, rules);
        read.inspect_err(|error| fault = TokenFault::from_library(error)).ok()
    });
    read.map(|token| token.claims).ok_or(fault)
}

// === impl EntryVerifier ===

impl EntryVerifier {
    fn new(rules: &TokenRules, set: Option<&Arc<KeySet>>) -> EntryVerifier {
        let rule = |&algorithm: &Algorithm| (algorithm, build_validation(rules, algorithm));
        let keys = match &rules.keys {
            Some(TokenKeySource::File(file)) => Some(LiveKeys::File(file.clone())),
            _ => set.cloned().map(LiveKeys::Fetched),
        };
        EntryVerifier {
            issuers: rules.issuers.clone(),
            keys,
            secret: rules.secret.as_ref().map(|secret| DecodingKey::from_secret(secret.0.as_bytes())),
            rules: rules.algorithms.iter().map(rule).collect(),
        }
    }

    /// Replaces `known` by the keys in force; true if they are others.
    fn update_keys(&self, known: &mut Option<Arc<TokenKeys>>) -> bool {
        let replace = |known: &mut Option<Arc<TokenKeys>>, keys: Option<&Arc<TokenKeys>>| {
            let is_other = known.as_ref().map(Arc::as_ptr) != keys.map(Arc::as_ptr);
            if is_other {
                *known = keys.cloned();
            }
            is_other
        };
        match &self.keys {
            Some(LiveKeys::File(file)) => replace(known, Some(&file.content())),
            Some(LiveKeys::Fetched(set)) => replace(known, set.keys().as_ref()),
            None => false,
        }
    }
}

fn build_validation(jwt: &TokenRules, algorithm: Algorithm) -> Validation {
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
        self.verify_once().as_ref().err().map(|refusal| refusal.fault)
    }

    /// The set that may get the key of the token by a fetch, which is asked for; `None` = the token is judged as it is,
    /// or the last fetch was too short ago.
    pub fn awaited_keys(&self) -> Option<&'r Arc<KeySet>> {
        let lacking = self.verify_once().as_ref().err()?.lacking?;
        match &self.verifier.entries[lacking].keys {
            Some(LiveKeys::Fetched(set)) => set.ask_for_fetch().then_some(set),
            _ => None,
        }
    }

    fn verify_once(&self) -> &Result<Rc<VerifiedToken>, Refusal> {
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
    /// Empties the cache if keys have changed: one of them may have been withdrawn.
    fn use_keys(&mut self, entries: &[EntryVerifier]) {
        self.keys.resize_with(entries.len(), || None);
        let mut is_other = false;
        for (entry, known) in entries.iter().zip(&mut self.keys) {
            is_other |= entry.update_keys(known);
        }
        if is_other {
            self.recent.clear();
            self.older.clear();
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
        /// The keys of the issuer were not fetched yet.
        NoKeys = "the keys of its issuer cannot be fetched",
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

impl From<TokenFault> for Refusal {
    fn from(fault: TokenFault) -> Self {
        Refusal { fault, lacking: None }
    }
}

#[cfg(test)]
mod tests;
