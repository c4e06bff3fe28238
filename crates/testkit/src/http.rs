//! HTTP/1 messages as sent on the wire.

use std::fmt;
use std::time::Instant;

use super::wire::{Body, End};

/// Header lines in order: lower-case names, values as bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, Vec<u8>)>);

impl Headers {
    /// Parses the lines of `head` after its first one. Lines without a colon are kept under their whole text.
    pub fn parse(head: &[u8]) -> Headers {
        let lines = head.split(|&b| b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l)).skip(1);
        let fields = lines.filter(|l| !l.is_empty()).map(|line| {
            let colon = line.iter().position(|&b| b == b':').unwrap_or(line.len());
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            let value = line.get(colon + 1..).unwrap_or_default().trim_ascii().to_vec();
            (name, value)
        });
        Headers(fields.collect())
    }

    /// The values of one name, in order.
    pub fn all(&self, name: &str) -> Vec<String> {
        let mine = self.0.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        mine.map(|(_, v)| String::from_utf8_lossy(v).into_owned()).collect()
    }

    /// The value of a name that may occur at most once.
    #[track_caller]
    pub fn get(&self, name: &str) -> Option<String> {
        let mut all = self.all(name);
        assert!(all.len() <= 1, "{name} came {} times: {self:?}", all.len());
        all.pop()
    }

    pub fn has(&self, name: &str) -> bool {
        !self.all(name).is_empty()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(n, v)| (n, String::from_utf8_lossy(v)))).finish()
    }
}

/// One answer as a client read it.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub headers: Headers,
    pub body: Vec<u8>,
    pub trailers: Headers,
    /// `None`: the body ended as its framing announced. Otherwise the cause of its early end.
    pub cut: Option<End>,
    /// Statuses of the interim answers before it.
    pub interim: Vec<u16>,
    /// The moment at which the head was complete.
    pub at: Instant,
    /// The moment at which the body was complete.
    pub done: Instant,
}

impl Response {
    pub fn new(head: &[u8], body: Body, interim: Vec<u16>, at: Instant) -> Response {
        let status = status_of(head).unwrap_or(0);
        let headers = Headers::parse(head);
        let Body { bytes, trailers, end } = body;
        Response { status, headers, body: bytes, trailers, cut: end, interim, at, done: Instant::now() }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.text()))
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name)
    }

    /// `retry_after_ms` of a problem body.
    #[track_caller]
    pub fn retry_after_ms(&self) -> u64 {
        let json = self.json();
        json["retry_after_ms"].as_u64().unwrap_or_else(|| panic!("no retry_after_ms in {json}"))
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Response {
        assert_eq!(self.status, status, "{:?} {}", self.headers, self.text());
        assert_eq!(self.cut, None, "the answer was cut: {:?}", self.headers);
        self
    }
}

/// The status of a response head; `None` for anything else.
pub fn status_of(head: &[u8]) -> Option<u16> {
    let line = head.split(|&b| b == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "))?;
    rest.get(..3)?.parse().ok()
}
