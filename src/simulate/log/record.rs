//! One line of a log as facts about a request. A record is filled again for each line, so that no line allocates.

use std::net::IpAddr;

use http::HeaderName;

use sluicegate_limit::LimitOutcome;

/// A part of [`LogRecord::text`]: its start and its length.
type TextSpan = (u32, u32);

/// The texts of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextField {
    /// The request method.
    Method,
    /// The target as sent.
    Target,
    /// The host, as far as the log has it apart from the target.
    Host,
    /// The account, in clear or as its hash.
    Account,
    /// The tier of the account.
    Tier,
    /// `http` or `https`.
    Scheme,
    /// The text after the question mark, where the log has it apart.
    Query,
    /// The limit that rejected it or made it wait.
    Limit,
    /// The decisions of dry runs, as `LIMIT=WORD,...`.
    DryRun,
}

/// The number of [`TextField`]s.
const TEXT_FIELDS: usize = 9;
/// The most request headers that a line is read for.
const HEADERS_MAX: usize = 32;

/// The facts of one line.
#[derive(Debug, Clone, Default)]
pub struct LogRecord {
    /// The arrival of the request, in nanoseconds since 1970.
    pub arrival_ns: u64,
    /// Time of the request from its arrival to its end, ns; `None` = the log does not tell.
    pub duration_ns: Option<u64>,
    /// The part of it that it waited in queues.
    pub waited_ns: u64,
    /// The arrival is known to the second only.
    pub is_whole_second: bool,
    /// The address of the client; `None` = the log does not tell.
    pub ip: Option<IpAddr>,
    /// The status of the response; `None` = the log does not tell.
    pub status: Option<u16>,
    /// The verdict of the log.
    pub verdict: Option<LimitOutcome>,
    text: Vec<u8>,
    fields: [Option<TextSpan>; TEXT_FIELDS],
    headers: Vec<(u16, TextSpan)>,
}

/// The names of the request headers that a log contains; records refer to them by their index.
#[derive(Debug, Clone, Default)]
pub struct HeaderNames(Vec<HeaderName>);

// === impl LogRecord ===

impl LogRecord {
    /// Forgets the line before; its memory stays.
    pub fn clear(&mut self) {
        let LogRecord { text, headers, .. } = self;
        let (mut text, mut headers) = (std::mem::take(text), std::mem::take(headers));
        text.clear();
        headers.clear();
        *self = LogRecord { text, headers, ..LogRecord::default() };
    }

    /// Stores a text of the line; a later one for the same field replaces it.
    pub fn set_text(&mut self, field: TextField, value: &[u8]) {
        let span = self.push(value);
        self.fields[field as usize] = Some(span);
    }

    /// A text of the line; `None` = the log does not tell.
    pub fn text(&self, field: TextField) -> Option<&[u8]> {
        self.fields[field as usize].map(|span| self.slice(span))
    }

    /// Adds a request header; those beyond the maximum are left out.
    pub fn push_header(&mut self, name: u16, value: &[u8]) {
        if self.headers.len() < HEADERS_MAX {
            let span = self.push(value);
            self.headers.push((name, span));
        }
    }

    /// The names of the limits that did not simply admit it, dry runs included.
    pub fn deciding_limits(&self) -> impl Iterator<Item = &[u8]> {
        let told = [TextField::Limit, TextField::DryRun].into_iter().filter_map(|field| self.text(field));
        let each = told.flat_map(|text| text.split(|byte| *byte == b','));
        each.map(|one| one.split(|byte| *byte == b'=').next().unwrap_or_default())
    }

    /// The request headers of the line, by the index of their names.
    pub fn headers(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.headers.iter().map(|(name, span)| (*name, self.slice(*span)))
    }

    /// The end of the request, at which its line was written, in nanoseconds since 1970.
    pub fn end_ns(&self) -> u64 {
        self.arrival_ns.saturating_add(self.duration_ns.unwrap_or(0))
    }

    fn push(&mut self, value: &[u8]) -> TextSpan {
        // Cannot overflow: a line has at most `LINE_MAX` bytes, and nothing of it is written more than twice.
        let span = (self.text.len() as u32, value.len() as u32);
        self.text.extend_from_slice(value);
        span
    }

    fn slice(&self, (start, len): TextSpan) -> &[u8] {
        self.text.get(start as usize..(start + len) as usize).unwrap_or_default()
    }
}

// === impl HeaderNames ===

impl HeaderNames {
    /// More names than any sane log has are not kept.
    pub const MAX: usize = 256;

    /// The index of a name, which is added if it is new; `None`: it is no name, or there are too many.
    pub fn index_of(&mut self, name: &[u8]) -> Option<u16> {
        let known = |known: &HeaderName| known.as_str().as_bytes().eq_ignore_ascii_case(name);
        if let Some(index) = self.0.iter().position(known) {
            return Some(index as u16);
        }
        if self.0.len() >= HeaderNames::MAX {
            return None;
        }
        self.0.push(HeaderName::from_bytes(name).ok()?);
        Some((self.0.len() - 1) as u16)
    }

    /// The name at an index that [`HeaderNames::index_of`] gave.
    pub fn get(&self, index: u16) -> Option<&HeaderName> {
        self.0.get(usize::from(index))
    }
}

/// The facts that at least one of the first lines has.
#[derive(Debug, Clone, Default)]
pub struct KnownFields {
    /// The address of the client.
    pub ip: bool,
    /// The request method.
    pub method: bool,
    /// The host.
    pub host: bool,
    /// The account, in clear or as its hash.
    pub account: bool,
    /// Every account looks like a hash: the gateway writes them so unless it is told otherwise.
    pub accounts_are_hashes: bool,
    /// The tier of the account.
    pub tier: bool,
    /// The scheme.
    pub scheme: bool,
    /// The query, apart or within the target.
    pub query: bool,
    /// The time from the arrival of a request to its end.
    pub duration: bool,
    /// The verdict of a limit.
    pub verdict: bool,
    /// Arrivals are known to the second only.
    pub whole_seconds: bool,
    /// The names of the request headers.
    pub headers: Vec<HeaderName>,
    has_plain_account: bool,
}

impl KnownFields {
    pub(super) fn note_record(&mut self, record: &LogRecord, names: &HeaderNames) {
        let has = |field| record.text(field).is_some();
        self.ip |= record.ip.is_some();
        self.method |= has(TextField::Method);
        self.host |= has(TextField::Host);
        self.tier |= has(TextField::Tier);
        self.scheme |= has(TextField::Scheme);
        self.query |= has(TextField::Query)
            || record.text(TextField::Target).is_some_and(|target| target.contains(&b'?'));
        self.duration |= record.duration_ns.is_some();
        self.verdict |= record.verdict.is_some();
        self.whole_seconds |= record.is_whole_second;
        if let Some(account) = record.text(TextField::Account) {
            self.account = true;
            self.has_plain_account |= account.len() != 16 || !account.iter().all(u8::is_ascii_hexdigit);
            self.accounts_are_hashes = !self.has_plain_account;
        }
        // Usually all of them are known after a few lines.
        if self.headers.len() < HeaderNames::MAX {
            for (index, _) in record.headers() {
                if let Some(name) = names.get(index).filter(|name| !self.headers.contains(name)) {
                    self.headers.push(name.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_record_knows_nothing_of_the_line_before() {
        let mut names = HeaderNames::default();
        let name = names.index_of(b"X-A").unwrap();
        let mut record = LogRecord { arrival_ns: 7, status: Some(200), ..LogRecord::default() };
        record.set_text(TextField::Method, b"GET");
        record.push_header(name, b"one");
        assert_eq!(record.text(TextField::Method), Some(&b"GET"[..]));
        assert_eq!(record.headers().collect::<Vec<_>>(), [(name, &b"one"[..])]);
        record.clear();
        assert_eq!(record.text(TextField::Method), None);
        assert_eq!((record.headers().count(), record.status, record.arrival_ns), (0, None, 0));
    }

    #[test]
    fn names_of_headers_are_bounded_and_known_again() {
        let mut names = HeaderNames::default();
        assert_eq!(names.index_of(b"x-a"), names.index_of(b"X-A"));
        assert_eq!(names.index_of(b"not a name"), None);
        for index in 0..1_000 {
            names.index_of(format!("x-{index}").as_bytes());
        }
        assert_eq!(names.0.len(), HeaderNames::MAX);
        assert_eq!(names.get(0).map(HeaderName::as_str), Some("x-a"));
    }
}
