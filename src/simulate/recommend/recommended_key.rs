//! The key that a limit is recommended for, as far as a log tells it.

use std::fmt;
use std::net::IpAddr;

use http::HeaderName;

use crate::simulate::log::KnownFields;
use crate::simulate::log::record::{HeaderNames, LogRecord, TextField};

/// A key with a single part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecommendedKey {
    /// Addresses of IPv6 by their /64, as the gateway counts them.
    Ip,
    /// The account, in clear or as its hash.
    Account,
    /// The path without the query.
    Uri,
    /// The host.
    Host,
    /// The request method.
    Method,
    /// The value of this request header.
    Header(HeaderName),
    /// One key for all requests.
    Global,
}

/// The keys that need no name.
const PLAIN: [(&str, RecommendedKey); 7] = [
    ("ip", RecommendedKey::Ip),
    ("account", RecommendedKey::Account),
    ("uri", RecommendedKey::Uri),
    ("path", RecommendedKey::Uri),
    ("host", RecommendedKey::Host),
    ("method", RecommendedKey::Method),
    ("global", RecommendedKey::Global),
];

/// The bytes of the network of an IPv6 client: the gateway's default.
const IPV6_BYTES: usize = 8;

impl RecommendedKey {
    /// Reads a key as `--key` names it.
    ///
    /// # Errors
    /// A sentence that names the valid ones.
    pub fn named(text: &str) -> Result<RecommendedKey, String> {
        if let Some((_, key)) = PLAIN.iter().find(|(word, _)| *word == text) {
            return Ok(key.clone());
        }
        let header =
            text.strip_prefix("header:").and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        header.map(RecommendedKey::Header).ok_or_else(|| {
            let shown = text.escape_debug();
            format!(
                "there is no key `{shown}`; the keys are: ip, account, uri, host, method, global, header:NAME"
            )
        })
    }

    /// # Errors
    /// The log has no such key: a sentence that names those it has.
    pub fn check_fields(&self, fields: &KnownFields) -> Result<(), String> {
        let has = |key: &RecommendedKey| match key {
            RecommendedKey::Ip => fields.ip,
            RecommendedKey::Account => fields.account,
            RecommendedKey::Host => fields.host,
            RecommendedKey::Method => fields.method,
            RecommendedKey::Header(name) => fields.headers.contains(name),
            RecommendedKey::Uri | RecommendedKey::Global => true,
        };
        if has(self) {
            return Ok(());
        }
        let mut known: Vec<String> = PLAIN
            .iter()
            .filter(|(word, key)| *word != "path" && has(key))
            .map(|(word, _)| (*word).to_owned())
            .collect();
        known.extend(fields.headers.iter().map(|name| format!("header:{name}")));
        Err(format!("the log has no {self}; its keys are: {}", known.join(", ")))
    }

    /// Writes the key of a request; false: the request has none.
    pub fn write_name(&self, record: &LogRecord, names: &HeaderNames, out: &mut Vec<u8>) -> bool {
        let text = match self {
            RecommendedKey::Ip => return record.ip.is_some_and(|ip| write_address(ip, out)),
            RecommendedKey::Global => return true,
            RecommendedKey::Account => record.text(TextField::Account),
            RecommendedKey::Uri => record.text(TextField::Target).map(|target| {
                let end = memchr::memchr(b'?', target).unwrap_or(target.len());
                &target[..end]
            }),
            RecommendedKey::Host => record.text(TextField::Host),
            RecommendedKey::Method => record.text(TextField::Method),
            RecommendedKey::Header(wanted) => {
                record.headers().find(|(name, _)| names.get(*name) == Some(wanted)).map(|(_, value)| value)
            }
        };
        text.map(|text| out.extend_from_slice(text)).is_some()
    }

    /// The limit to paste into `gateway.yaml`, as a whole file that `check` accepts; `numbers` are fields of a limit.
    pub fn write_limit(&self, numbers: &str) -> String {
        let name = match self {
            RecommendedKey::Header(_) => "per-header".to_owned(),
            RecommendedKey::Global => "all-clients".to_owned(),
            plain => format!("per-{plain}"),
        };
        let mut out = format!(
            "limits:\n  {name}:\n    key: {self}\n    {numbers}\nlocations:\n  - path: /\n    upstream: demo  \
             # yours\n    limits: {name}\n"
        );
        if *self == RecommendedKey::Account {
            out.push_str("account:\n  from: header:x-account-id  # the source of your file\n");
        }
        out
    }
}

fn write_address(ip: IpAddr, out: &mut Vec<u8>) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => out.extend(v4.octets()),
        IpAddr::V6(v6) => out.extend_from_slice(&v6.octets()[..IPV6_BYTES]),
    }
    true
}

impl fmt::Display for RecommendedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecommendedKey::Header(name) => write!(f, "header:{name}"),
            other => {
                let word = PLAIN.iter().find(|(_, key)| key == other).map_or("", |(word, _)| word);
                f.write_str(word)
            }
        }
    }
}
