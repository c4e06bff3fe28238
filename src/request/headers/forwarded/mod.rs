//! What the upstream is told about the client in X-Forwarded-For, -Proto and -Host; strangers add nothing.

use std::io::Write;
use std::net::IpAddr;

use http::header::{Entry, FORWARDED, HOST, HeaderName};
use http::{HeaderMap, HeaderValue};

use crate::config;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// How a request reached us.
#[derive(Debug, Clone, Copy)]
pub struct ForwardedHop<'a> {
    /// The peer as [`peer_value`] writes it, made once per connection; `None` is a unix socket.
    pub peer: Option<&'a HeaderValue>,
    pub trusted_peer: bool,
    pub proto: Proto,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    Http,
    Https,
}

/// The headers of one configuration that only trusted proxies may set.
#[derive(Debug, Clone, Default)]
pub struct ForwardedHeaders {
    /// `server.client_ip: header:NAME`, which is dropped from strangers too.
    client_header: Option<HeaderName>,
}

impl From<&config::ServerConfig> for ForwardedHeaders {
    fn from(server: &config::ServerConfig) -> ForwardedHeaders {
        let client_header = match &server.client_ip {
            // These are rewritten below, not dropped.
            config::ClientIpConfig::Header(name)
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

/// An address as X-Forwarded-For spells it.
pub fn peer_value(peer: IpAddr) -> HeaderValue {
    let mut text = Vec::with_capacity(ADDRESS_MAX);
    write_address(&mut text, peer.to_canonical());
    // The digits of an address are always a valid value.
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("unknown"))
}

/// Appends an address; the usual kind without the machinery of formatting, which costs more than the rest of a
/// connection's notes.
pub fn write_address(out: &mut Vec<u8>, ip: IpAddr) {
    let IpAddr::V4(v4) = ip else {
        // Writing into a Vec cannot fail.
        return drop(write!(out, "{ip}"));
    };
    for (place, octet) in v4.octets().iter().enumerate() {
        if place > 0 {
            out.push(b'.');
        }
        out.extend_from_slice(itoa::Buffer::new().format(*octet).as_bytes());
    }
}

impl ForwardedHeaders {
    /// Rewrites a request for its upstream. The Host header must be the client's still, and be that of the
    /// target (see [`crate::request::location::settle_host`]).
    #[inline]
    pub fn rewrite_headers(&self, headers: &mut HeaderMap, arrival: ForwardedHop<'_>) {
        if arrival.trusted_peer {
            extend_claims(headers, arrival)
        } else {
            self.replace_claims(headers, arrival)
        }
    }

    /// From a stranger: everything ours, nothing theirs.
    fn replace_claims(&self, headers: &mut HeaderMap, arrival: ForwardedHop<'_>) {
        let mut claims = [None; 3];
        let names = [Some(&FORWARDED), Some(&X_REAL_IP), self.client_header.as_ref()];
        for name in headers.keys() {
            for (claim, candidate) in claims.iter_mut().zip(names) {
                if candidate == Some(name) {
                    *claim = candidate;
                }
            }
        }
        for name in claims.into_iter().flatten() {
            headers.remove(name);
        }
        replace_or_remove(headers, X_FORWARDED_FOR, arrival.peer.cloned());
        headers.insert(X_FORWARDED_PROTO, arrival.proto.header_value());
        let host = headers.get(HOST).cloned();
        replace_or_remove(headers, X_FORWARDED_HOST, host);
    }
}

fn replace_or_remove(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    match value {
        Some(value) => headers.insert(name, value),
        None => headers.remove(name),
    };
}

/// From a trusted proxy: what it says stands, the proxy itself is added.
fn extend_claims(headers: &mut HeaderMap, arrival: ForwardedHop<'_>) {
    if let Some(peer) = arrival.peer {
        let hops = append_peer(headers, peer);
        headers.insert(X_FORWARDED_FOR, hops);
    }
    if let Entry::Vacant(entry) = headers.entry(X_FORWARDED_PROTO) {
        entry.insert(arrival.proto.header_value());
    }
    if !headers.contains_key(X_FORWARDED_HOST)
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

/// All lines joined in order, the peer behind them.
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
    // Joined from valid values it is valid; were it not, the peer alone is the part we vouch for.
    HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)).unwrap_or_else(|_| peer.clone())
}

impl Proto {
    fn header_value(self) -> HeaderValue {
        match self {
            Proto::Http => HeaderValue::from_static("http"),
            Proto::Https => HeaderValue::from_static("https"),
        }
    }
}

#[cfg(test)]
mod tests;
