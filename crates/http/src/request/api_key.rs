//! The API key that a request presents: read from its places, found in the table, removed before the upstream gets it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, COOKIE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use siphasher::sip128::SipHasher13;

use super::headers::summary::HeaderSummary;
use super::source::{self, SourceInput, SourceValue, read_source};
use sluicegate_model::api_keys::{self, ApiKey, ApiKeyHash, ApiKeyTable};
use sluicegate_model::{ApiKeysConfig, KeySource, ValueSource};

/// Longer keys are unknown, and are not hashed.
const KEY_BYTES_MAX: usize = 1024;

/// The shown value of a header or a parameter that holds an API key.
pub const HIDDEN_VALUE: &str = "***";

/// Why the key of a request gives it no account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFault {
    /// The request presents no key.
    Missing,
    /// No line of the file has it, or that line is expired or disabled.
    Unknown,
}

/// The further columns of a key by their names.
pub type KeyColumnValues = Box<[(Arc<str>, Box<str>)]>;

/// The key that a request presents. It presents two if one place holds two values, or two places different ones.
pub fn presented_key<'a>(
    keys: &ApiKeysConfig,
    summary: HeaderSummary,
    input: &SourceInput<'a>,
) -> SourceValue<'a> {
    let mut found = None;
    for place in keys.from.iter().filter(|place| may_be_present(place, summary)) {
        match (read_place(place, keys.has_tokens, input), &found) {
            (SourceValue::Repeated, _) => return SourceValue::Repeated,
            (SourceValue::One(key), Some(other)) if key != *other => return SourceValue::Repeated,
            (SourceValue::One(key), _) => found = Some(key),
            (SourceValue::Absent, _) => {}
        }
    }
    found.map_or(SourceValue::Absent, SourceValue::One)
}

/// The line of a key. `now` in seconds since 1970.
pub fn find_key<'t>(table: &'t ApiKeyTable, key: &[u8], now: u64) -> Option<ApiKey<'t>> {
    if key.len() > KEY_BYTES_MAX || api_keys::is_mistyped(key) {
        return None;
    }
    table.find_key(&RECENT_HASHES.with_borrow_mut(|recent| recent.hash_key(key)), now)
}

thread_local! {
    static RECENT_HASHES: RefCell<RecentHashes> = RefCell::new(RecentHashes::new());
}

/// The hashes of keys that were presented lately. SHA-256 costs five times as much as the fingerprint that finds one.
struct RecentHashes {
    /// Its secret is the worker's own, so nobody can find two keys with one fingerprint.
    hasher: SipHasher13,
    entries: Box<[(u128, ApiKeyHash)]>,
}

const RECENT_MAX: usize = 256;

impl RecentHashes {
    fn new() -> RecentHashes {
        let secret = RandomState::new();
        let hasher = SipHasher13::new_with_keys(secret.hash_one(0), secret.hash_one(1));
        RecentHashes { hasher, entries: vec![(0, ApiKeyHash::of_key(b"")); RECENT_MAX].into() }
    }

    fn hash_key(&mut self, key: &[u8]) -> ApiKeyHash {
        let fingerprint = self.hasher.hash(key).as_u128();
        let (known, hash) = &mut self.entries[fingerprint as usize % RECENT_MAX];
        if *known != fingerprint {
            (*known, *hash) = (fingerprint, ApiKeyHash::of_key(key));
        }
        *hash
    }
}

fn read_place<'a>(place: &KeySource, has_tokens: bool, input: &SourceInput<'a>) -> SourceValue<'a> {
    if let KeySource::Value(source) = place {
        return read_source(source, input);
    }
    let mut lines = input.headers.get_all(AUTHORIZATION).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => read_credentials(place, has_tokens, line.as_bytes()),
        (None, _) => SourceValue::Absent,
        (Some(_), Some(_)) => SourceValue::Repeated,
    }
}

/// False if the head has no field of that place, which costs less than a look-up.
fn may_be_present(place: &KeySource, summary: HeaderSummary) -> bool {
    matches!(place, KeySource::Value(_)) || summary.has_any(HeaderSummary::AUTHORIZATION)
}

/// The key in the value of `Authorization`.
fn read_credentials<'a>(place: &KeySource, has_tokens: bool, line: &'a [u8]) -> SourceValue<'a> {
    let line = line.trim_ascii();
    let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    let (scheme, rest) = (&line[..end], line[end..].trim_ascii());
    let key = match place {
        KeySource::Bearer if scheme.eq_ignore_ascii_case(b"bearer") && !(has_tokens && is_token(rest)) => {
            Cow::Borrowed(rest)
        }
        KeySource::Basic if scheme.eq_ignore_ascii_case(b"basic") => {
            // Undecodable, they are a key that no line has.
            let Ok(pair) = STANDARD.decode(rest) else { return SourceValue::One(Cow::Borrowed(rest)) };
            let colon = pair.iter().position(|byte| *byte == b':').map_or(pair.len(), |colon| colon + 1);
            Cow::Owned(pair[colon..].to_vec())
        }
        _ => return SourceValue::Absent,
    };
    if key.is_empty() { SourceValue::Absent } else { SourceValue::One(key) }
}

/// True if a text has the form of a JWT: three parts, the first of them a JSON object with `alg`.
fn is_token(text: &[u8]) -> bool {
    let mut parts = text.split(|byte| *byte == b'.');
    let (Some(head), Some(_), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let head = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(head).unwrap_or_default();
    serde_json::from_slice::<serde_json::Value>(&head).is_ok_and(|head| head.get("alg").is_some())
}

/// Removes the key from the fields of a request: the field that holds it, or its own pair of a cookie.
pub fn strip_fields(keys: &ApiKeysConfig, summary: HeaderSummary, headers: &mut HeaderMap) {
    for place in keys.from.iter().filter(|place| may_be_present(place, summary)) {
        if let KeySource::Value(ValueSource::Header(name)) = place {
            headers.remove(name);
            continue;
        }
        let input = SourceInput { headers, query: None, token: None, body: None };
        match place {
            _ if read_place(place, keys.has_tokens, &input) == SourceValue::Absent => {}
            KeySource::Bearer | KeySource::Basic => drop(headers.remove(AUTHORIZATION)),
            KeySource::Value(ValueSource::Cookie(name)) => strip_cookie(name.as_bytes(), headers),
            // In no field.
            KeySource::Value(_) => {}
        }
    }
}

/// Removes the key from the query.
pub fn strip_query(keys: &ApiKeysConfig, uri: &mut Uri) {
    keys.queries().for_each(|name| strip_parameter(name, uri));
}

fn strip_cookie(name: &[u8], headers: &mut HeaderMap) {
    let kept = |line: &HeaderValue| {
        let pairs = line.as_bytes().split(|byte| *byte == b';');
        let others: Vec<&[u8]> =
            pairs.filter(|pair| !source::is_cookie(pair, name)).map(<[u8]>::trim_ascii).collect();
        HeaderValue::from_bytes(&others.join(&b"; "[..])).ok().filter(|line| !line.is_empty())
    };
    let lines: Vec<HeaderValue> = headers.get_all(COOKIE).iter().filter_map(kept).collect();
    headers.remove(COOKIE);
    headers.extend(lines.into_iter().map(|line| (COOKIE, line)));
}

fn strip_parameter(name: &[u8], uri: &mut Uri) {
    let Some(target) = uri.path_and_query() else {
        return;
    };
    // Cannot fail: the rest of a target is a target.
    let Ok(target) = PathAndQuery::try_from(edit_query(target.as_str().as_bytes(), name, None)) else {
        return;
    };
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(target);
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

/// A header as a log may show it: its value is `***` if it may hold an API key, and so are those in the query of a URL.
pub fn shown_header(keys: &ApiKeysConfig, name: &HeaderName, value: &HeaderValue) -> Option<HeaderValue> {
    if keys.holds_key(name) {
        return Some(HeaderValue::from_static(HIDDEN_VALUE));
    }
    keys.queries().try_fold(value.clone(), |url, name| {
        HeaderValue::from_bytes(&edit_query(url.as_bytes(), name, Some(HIDDEN_VALUE))).ok()
    })
}

/// A URL without the pairs of its query that may be read as `name`, or with another value of them.
fn edit_query(url: &[u8], name: &[u8], shown: Option<&str>) -> Vec<u8> {
    let Some(mark) = url.iter().position(|byte| *byte == b'?') else { return url.to_vec() };
    let edited = |pair: &[u8]| match (source::is_parameter(pair, name), shown) {
        (false, _) => Some(pair.to_vec()),
        (true, None) => None,
        (true, Some(shown)) => Some([name, b"=", shown.as_bytes()].concat()),
    };
    let pairs: Vec<Vec<u8>> = url[mark + 1..].split(|byte| *byte == b'&').filter_map(edited).collect();
    let end = if pairs.is_empty() { mark } else { mark + 1 };
    [&url[..end], &pairs.join(&b"&"[..])].concat()
}
