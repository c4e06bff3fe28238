//! Writes X-Forwarded-For, -Proto and -Host for the upstream; values from untrusted peers are replaced.

use std::net::IpAddr;

use http::header::{Entry, FORWARDED, HOST, HeaderName};
use http::{HeaderMap, HeaderValue};

use super::added_fields::AddedFields;
use super::summary::HeaderSummary;
use sluicegate_base::address::write_address;
use sluicegate_model::{self as model, Scheme};

/// The header with the addresses that the request came through.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The header with the scheme of the client's request.
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The header with the host that the client asked for.
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// The header with the address of the client.
pub const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The arrival of a request.
#[derive(Debug, Clone, Copy)]
pub struct ForwardedHop<'a> {
    /// The [`peer_value`] of the peer, built once per connection; `None` is a unix socket.
    pub peer: Option<&'a HeaderValue>,
    /// The peer is a trusted proxy: its values are kept and extended.
    pub trusted_peer: bool,
    /// The value of X-Forwarded-Proto, unless a trusted proxy has set one.
    pub scheme: Scheme,
}

/// The headers of one configuration that only trusted proxies may set.
#[derive(Debug, Clone, Default)]
pub struct ForwardedHeaders {
    /// `server.client_ip: header:NAME`; from untrusted peers it is removed as well.
    client_header: Option<HeaderName>,
}

impl From<&model::ServerConfig> for ForwardedHeaders {
    fn from(server: &model::ServerConfig) -> ForwardedHeaders {
        let client_header = match &server.client_ip {
            // These are rewritten, not removed.
            model::ClientIpConfig::Header(name)
                if ![X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST, HOST].contains(name) =>
            {
                Some(name.clone())
            }
            _ => None,
        };
        ForwardedHeaders { client_header }
    }
}

/// Bytes of the longest address.
const ADDRESS_MAX: usize = 45;

/// An address for X-Forwarded-For.
pub fn peer_value(peer: IpAddr) -> HeaderValue {
    let mut text = Vec::with_capacity(ADDRESS_MAX);
    write_address(&mut text, peer.to_canonical());
    // The text of an address is always a valid value.
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("unknown"))
}

impl ForwardedHeaders {
    /// Rewrites a request with this `summary` for its upstream; fields that it lacks become `added`. The Host header
    /// must still be the client's, and agree with the target (see [`crate::request::location::set_host_header`]).
    #[inline]
    pub fn rewrite_headers(
        &self,
        headers: &mut HeaderMap,
        summary: HeaderSummary,
        hop: ForwardedHop<'_>,
        added: &mut AddedFields,
    ) {
        if hop.trusted_peer {
            return extend_claims(headers, hop);
        }
        // All values of an untrusted peer are replaced.
        if summary.has_any(HeaderSummary::ORIGIN) {
            for name in [FORWARDED, X_REAL_IP, X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST] {
                headers.remove(name);
            }
        }
        if let Some(name) = &self.client_header {
            headers.remove(name);
        }
        if let Some(peer) = hop.peer {
            added.set(X_FORWARDED_FOR, peer.clone());
        }
        added.set(X_FORWARDED_PROTO, scheme_value(hop.scheme));
        if let Some((_, host)) = headers.iter().find(|(name, _)| **name == HOST) {
            added.set(X_FORWARDED_HOST, host.clone());
        }
    }
}

/// Keeps the values of a trusted proxy, and adds its address.
fn extend_claims(headers: &mut HeaderMap, hop: ForwardedHop<'_>) {
    if let Some(peer) = hop.peer {
        let hops = append_peer(headers, peer);
        headers.insert(X_FORWARDED_FOR, hops);
    }
    if let Entry::Vacant(entry) = headers.entry(X_FORWARDED_PROTO) {
        entry.insert(scheme_value(hop.scheme));
    }
    if !headers.contains_key(X_FORWARDED_HOST)
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

/// Joins all lines in order and appends the peer.
fn append_peer(headers: &HeaderMap, peer: &HeaderValue) -> HeaderValue {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
    let mut lines = lines.filter(|line| !line.trim_ascii().is_empty()).peekable();
    if lines.peek().is_none() {
        return peer.clone();
    }
    let mut joined = Vec::with_capacity(64);
    for line in lines {
        joined.extend_from_slice(line);
        joined.extend_from_slice(b", ");
    }
    joined.extend_from_slice(peer.as_bytes());
    // Valid values joined are valid; otherwise the peer alone is correct.
    HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)).unwrap_or_else(|_| peer.clone())
}

/// The scheme by which the client sent a request with this `summary`: that of the connection, unless a trusted proxy
/// tells another. Of several values the last one counts, which the nearest proxy wrote.
#[inline]
pub fn find_scheme(
    headers: &HeaderMap,
    summary: HeaderSummary,
    trusted_peer: bool,
    connection: Scheme,
) -> Scheme {
    if !trusted_peer || !summary.has_any(HeaderSummary::ORIGIN) {
        return connection;
    }
    let last_line = headers.get_all(X_FORWARDED_PROTO).iter().next_back();
    last_line.and_then(parse_scheme).unwrap_or(connection)
}

/// The last member of a line of X-Forwarded-Proto; some proxies name the scheme of a WebSocket.
pub fn parse_scheme(line: &HeaderValue) -> Option<Scheme> {
    let member = line.as_bytes().rsplit(|&byte| byte == b',').next()?.trim_ascii();
    let is_word = |word: &str| member.eq_ignore_ascii_case(word.as_bytes());
    match () {
        () if is_word("https") || is_word("wss") => Some(Scheme::Https),
        () if is_word("http") || is_word("ws") => Some(Scheme::Http),
        () => None,
    }
}

fn scheme_value(scheme: Scheme) -> HeaderValue {
    HeaderValue::from_static(scheme.as_str())
}

#[cfg(test)]
mod tests;
