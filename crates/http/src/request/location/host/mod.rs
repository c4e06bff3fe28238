//! The host of a request in one canonical form: lower case, no port, no trailing dot.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Version};

/// The reason why a request has no usable host; each is a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostError {
    /// The request names no host, or lacks the Host header that HTTP/1.1 requires.
    Missing,
    /// The Host header comes more than once.
    Repeated,
    /// The host is not a valid one.
    Invalid,
    /// HTTP/2 only: `:authority` and `host` name two hosts.
    Contradiction,
}

/// The canonical host: that of an absolute target's authority, else that of the one Host header.
///
/// The Host header must be valid even if an absolute target overrides it, because other software on the way may read
/// it. HTTP/1.0 may omit it; its host is empty then, which no host rule matches.
#[inline]
pub fn request_host<'a>(
    version: Version,
    headers: &'a HeaderMap,
    authority: Option<&'a Authority>,
) -> Result<Cow<'a, str>, HostError> {
    let mut lines = headers.get_all(HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(HostError::Repeated);
    }
    match (authority, line) {
        (None, Some(line)) => host_of_header(line),
        (None, None) if version < Version::HTTP_11 => Ok(Cow::Borrowed("")),
        (None, None) => Err(HostError::Missing),
        (Some(authority), line) => host_of_authority(version, authority.as_str(), line),
    }
}

fn host_of_header(line: &HeaderValue) -> Result<Cow<'_, str>, HostError> {
    canonical_host(line.to_str().map_err(|_| HostError::Invalid)?)
}

#[cold]
fn host_of_authority<'a>(
    version: Version,
    authority: &'a str,
    line: Option<&HeaderValue>,
) -> Result<Cow<'a, str>, HostError> {
    let host = canonical_host(authority)?;
    match line.map(host_of_header).transpose()? {
        None if version == Version::HTTP_11 => Err(HostError::Missing),
        Some(named) if version > Version::HTTP_11 && named != host => Err(HostError::Contradiction),
        _ => Ok(host),
    }
}

/// The host as the request writes it.
pub fn named_host(headers: &HeaderMap, authority: Option<&Authority>) -> Option<HeaderValue> {
    match authority {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => headers.get(HOST).cloned(),
    }
}

/// Sets the Host header to the authority of an absolute target, so that the upstream sees the same host in both.
pub fn set_host_header(headers: &mut HeaderMap, authority: &Authority) {
    if let Ok(value) = HeaderValue::from_str(authority.as_str()) {
        headers.insert(HOST, value);
    }
}

/// A character that stays as it is in the canonical form.
const NAME: u8 = 0;
const UPPER: u8 = 1;
const DOT: u8 = 2;
const COLON: u8 = 3;
const INVALID: u8 = 4;

/// RFC 3986's `reg-name` without percent escapes, which would be a second spelling, and without the comma, which
/// appears when two Host values are joined.
const CLASS: [u8; 256] = {
    let mut class = [INVALID; 256];
    let mut letter = 0;
    while letter < 26 {
        class[b'a' as usize + letter] = NAME;
        class[b'A' as usize + letter] = UPPER;
        letter += 1;
    }
    let others = b"0123456789-_~!$&'()*+;=";
    let mut at = 0;
    while at < others.len() {
        class[others[at] as usize] = NAME;
        at += 1;
    }
    class[b'.' as usize] = DOT;
    class[b':' as usize] = COLON;
    class
};

/// The longest DNS name, including its trailing dot.
const HOST_BYTES_MAX: usize = 254;

/// Lower case, no port, no trailing dot; an IPv6 literal keeps its brackets. Borrowed if `text` is canonical already.
#[inline]
pub fn canonical_host(text: &str) -> Result<Cow<'_, str>, HostError> {
    if text.starts_with('[') {
        return canonical_ip_literal(text);
    }
    let mut has_upper = false;
    let mut after_dot = true;
    let mut end = text.len();
    for (at, byte) in text.bytes().enumerate() {
        match CLASS[usize::from(byte)] {
            NAME => after_dot = false,
            UPPER => {
                after_dot = false;
                has_upper = true;
            }
            DOT if !after_dot => after_dot = true,
            COLON => {
                check_port(&text[at + 1..])?;
                end = at;
                break;
            }
            _ => return Err(HostError::Invalid),
        }
    }
    if end == 0 || end > HOST_BYTES_MAX {
        return Err(HostError::Invalid);
    }
    let name = &text[..end - usize::from(after_dot)];
    Ok(if has_upper { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) })
}

/// RFC 3986 allows a colon without digits.
fn check_port(port: &str) -> Result<(), HostError> {
    let is_port =
        port.is_empty() || (port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok());
    if is_port { Ok(()) } else { Err(HostError::Invalid) }
}

#[cold]
fn canonical_ip_literal(text: &str) -> Result<Cow<'_, str>, HostError> {
    let close = text.find(']').ok_or(HostError::Invalid)?;
    match &text[close + 1..] {
        "" => {}
        rest => check_port(rest.strip_prefix(':').ok_or(HostError::Invalid)?)?,
    }
    let address = &text[1..close];
    if close >= HOST_BYTES_MAX || !(address.parse::<Ipv6Addr>().is_ok() || is_future_address(address)) {
        return Err(HostError::Invalid);
    }
    let literal = &text[..=close];
    let has_upper = literal.bytes().any(|byte| byte.is_ascii_uppercase());
    Ok(if has_upper { Cow::Owned(literal.to_ascii_lowercase()) } else { Cow::Borrowed(literal) })
}

/// RFC 3986's `IPvFuture`: `v`, hex digits, a dot, any characters but separators.
fn is_future_address(address: &str) -> bool {
    let Some((version, rest)) = address.strip_prefix(['v', 'V']).and_then(|tail| tail.split_once('.')) else {
        return false;
    };
    let is_version = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_rest =
        !rest.is_empty() && rest.bytes().all(|byte| byte == b',' || CLASS[usize::from(byte)] != INVALID);
    is_version && is_rest
}

#[cfg(test)]
mod tests;
