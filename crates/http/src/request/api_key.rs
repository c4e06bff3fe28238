//! The API key that a request presents: read from its places, found in the table, removed before the upstream gets it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, COOKIE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::account::Tier;
use super::headers::summary::HeaderSummary;
use super::source::{self, SourceInput, SourceValue, read_source};
use sluicegate_model::api_keys::{self, ApiKeyHash, ApiKeyTable};
use sluicegate_model::{ApiKeysConfig, KeySource, ValueSource};

/// Longer keys are unknown, and are not hashed.
const KEY_BYTES_MAX: usize = 1024;

/// The shown value of a header or a parameter that holds an API key.
const HIDDEN_VALUE: &str = "***";

/// Why the key of a request gives it no account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFault {
    /// The request presents no key.
    Missing,
    /// No line of the file has it, or that line is expired or disabled.
    Unknown,
}

/// The caller that a key of the file names.
#[derive(Debug)]
pub struct KeyCaller {
    /// The account of its requests; never empty.
    pub account: Box<str>,
    /// The tier of its requests; `None` = that of the account.
    pub tier: Option<Tier>,
    /// The values of the further columns that the configuration uses, by their names.
    pub columns: Box<[(Arc<str>, Box<str>)]>,
    /// Seconds since 1970.
    until: u64,
}

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

/// The caller that a key names; `None` if no line has the key, or it is expired or disabled. `now` in seconds since
/// 1970.
pub fn find_caller(keys: &ApiKeysConfig, key: &[u8], now: u64) -> Option<Rc<KeyCaller>> {
    let table = keys.file.content();
    RECENT_KEYS.with_borrow_mut(|recent| {
        if recent.table.as_ptr() != Arc::as_ptr(&table) || recent.columns != keys.columns {
            *recent = RecentKeys { table: Arc::downgrade(&table), ..RecentKeys::new(&keys.columns) };
        }
        recent.find_caller(&table, key, now)
    })
}

thread_local! {
    static RECENT_KEYS: RefCell<RecentKeys> = RefCell::new(RecentKeys::new(&[]));
}

/// The callers of keys that were presented lately: the SHA-256 and the search cost ten times as much.
struct RecentKeys {
    /// The table that knows them. It is not kept alive, but its address is not used again.
    table: Weak<ApiKeyTable>,
    columns: Vec<Arc<str>>,
    entries: Box<[Option<RecentKey>]>,
}

struct RecentKey {
    key: Box<[u8]>,
    caller: Rc<KeyCaller>,
}

const RECENT_MAX: usize = 256;

impl RecentKeys {
    fn new(columns: &[Arc<str>]) -> RecentKeys {
        let entries = (0..RECENT_MAX).map(|_| None).collect();
        RecentKeys { table: Weak::new(), columns: columns.to_vec(), entries }
    }

    fn find_caller(&mut self, table: &ApiKeyTable, key: &[u8], now: u64) -> Option<Rc<KeyCaller>> {
        // Any key ends in random characters. A golden-ratio product spreads them (Knuth, volume 3, section 6.4).
        let end = key.last_chunk().map_or(0, |end| u64::from_le_bytes(*end));
        let entry = &mut self.entries[(end.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize];
        match entry {
            Some(known) if is_equal(&known.key, key) => {}
            _ if key.len() > KEY_BYTES_MAX || api_keys::is_mistyped(key) => return None,
            _ => {
                let line = table.find_key(&ApiKeyHash::of_key(key), now)?;
                let text = |value| String::from_utf8_lossy(value).into();
                let column = |name: &Arc<str>| Some((name.clone(), text(line.column(name)?)));
                let caller = KeyCaller {
                    account: text(line.account()),
                    tier: line.tier().map(Tier::from),
                    columns: self.columns.iter().filter_map(column).collect(),
                    until: line.until(),
                };
                *entry = Some(RecentKey { key: key.into(), caller: caller.into() });
            }
        }
        entry.as_ref().map(|known| known.caller.clone()).filter(|caller| now < caller.until)
    }
}

/// True for equal keys. All bytes are compared, so that the time tells nothing about the key of another client.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
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
#[inline]
pub fn strip_query(keys: &ApiKeysConfig, uri: &mut Uri) {
    if uri.query().is_some() {
        keys.queries().for_each(|name| strip_parameter(name, uri));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_base::file::NamedFile;

    /// Account, tier and first column of a key.
    fn found(keys: &ApiKeysConfig, key: &str, now: u64) -> Option<(String, Option<String>, Option<String>)> {
        let caller = find_caller(keys, key.as_bytes(), now)?;
        let tier = caller.tier.as_ref().map(|tier| tier.as_str().to_owned());
        Some((caller.account.to_string(), tier, caller.columns.first().map(|(_, text)| text.to_string())))
    }

    #[test]
    fn a_recent_key_is_what_its_table_says_now() {
        let path = std::env::temp_dir().join(format!("sluicegate-keys-{}.csv", std::process::id()));
        let line = |key: &str, rest: &str| format!("{},{rest}\n", ApiKeyHash::of_key(key.as_bytes()));
        let write = |lines: String| {
            std::fs::write(&path, format!("sha256,account,tier,until,note\n{lines}")).unwrap();
        };
        write(line("key-one-1", "one,gold,2001-09-09T01:46:40Z,x") + &line("key-two-1", "two"));
        let keys = ApiKeysConfig {
            file: NamedFile::load_file(path.clone(), ApiKeyTable::parse).unwrap().into(),
            from: Vec::new(),
            rejects_unknown: true,
            rejects_missing: false,
            is_passed: false,
            columns: Vec::new(),
            has_tokens: false,
        };
        let one = || Some(("one".to_owned(), Some("gold".to_owned()), None));
        // The same last eight bytes share an entry.
        for _ in 0..3 {
            assert_eq!(found(&keys, "key-one-1", 999_999_999), one());
            assert_eq!(found(&keys, "key-one-1", 1_000_000_000), None, "expired");
            assert_eq!(found(&keys, "bey-one-1", 1), None, "another key");
            assert_eq!(found(&keys, "key-two-1", 1), Some(("two".to_owned(), None, None)));
        }
        let with_note = ApiKeysConfig { columns: vec!["note".into()], ..keys.clone() };
        assert_eq!(found(&with_note, "key-one-1", 1).unwrap().2.as_deref(), Some("x"));
        assert_eq!(found(&keys, "key-one-1", 1), one());
        write(line("key-two-1", "other"));
        assert!(keys.file.reload_if_changed().unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found(&keys, "key-one-1", 1), None, "revoked");
        assert_eq!(found(&keys, "key-two-1", 1), Some(("other".to_owned(), None, None)));
        assert_eq!(found(&keys, &"k".repeat(KEY_BYTES_MAX + 1), 1), None);
        assert_eq!(found(&keys, "", 1), None);
    }
}
