//! The facts that a log tells of its requests, by its first lines.

use http::HeaderName;

use super::record::{HeaderNames, LogRecord, TextField};

/// The facts that at least one of the first lines has.
#[derive(Debug, Clone, Default)]
pub struct KnownFields {
    pub ip: bool,
    pub method: bool,
    pub host: bool,
    pub account: bool,
    /// Every account looks like a hash: the gateway writes them so unless it is told otherwise.
    pub accounts_are_hashes: bool,
    pub tier: bool,
    pub scheme: bool,
    pub query: bool,
    pub duration: bool,
    pub verdict: bool,
    /// Arrivals are known to the second only.
    pub whole_seconds: bool,
    headers: Vec<HeaderName>,
    has_plain_account: bool,
    names_seen: usize,
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
        if self.names_seen < HeaderNames::MAX {
            for (index, _) in record.headers() {
                if let Some(name) = names.get(index).filter(|name| !self.headers.contains(name)) {
                    self.headers.push(name.clone());
                    self.names_seen += 1;
                }
            }
        }
    }

    /// True if the log has the request header.
    pub fn has_header(&self, name: &HeaderName) -> bool {
        self.headers.contains(name)
    }

    pub fn headers(&self) -> &[HeaderName] {
        &self.headers
    }
}
