//! The cookie of `sticky`, which leads a client to the same server.
//!
//! Its value is an HMAC of the upstream, the server and the end, with server and end masked by another HMAC of that one
//! (a synthetic initialization vector, as in RFC 5297): nobody can read or forge it, and no number of cookies weakens
//! the key.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac::{Context, HMAC_SHA256, Key};
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{COOKIE, HeaderMap, HeaderValue};

use super::fnv1a;
use sluicegate_base::value_hash::sha256;
use sluicegate_model::{ServerId, UpstreamConfig, UpstreamKind};

/// Bytes of the content, and of the HMAC in front of it. The content is the server's hash, the end in seconds since
/// 1970 in five bytes, and three random bytes, so that equal servers cannot be seen.
const HALF: usize = 16;
/// Characters of a value.
const VALUE_LEN: usize = 43;

/// The cookies of one upstream.
pub struct StickyCookie {
    name: String,
    /// The life of a cookie, in seconds.
    span: u64,
    key: Key,
    upstream: String,
    /// The hashes of the servers' names, by position.
    servers: Vec<u64>,
}

impl StickyCookie {
    /// The cookies of an upstream; `None` = it is not sticky. Without a secret in its section, `secret` seals them.
    pub fn new(upstream: &UpstreamConfig, secret: &[u8]) -> Option<StickyCookie> {
        let sticky = upstream.sticky.as_ref()?;
        let UpstreamKind::Servers(servers) = &upstream.kind else { return None };
        let secret = sticky.secret.as_ref().map_or(secret, |secret| secret.0.as_bytes());
        // The secret has other uses too, so the key only follows from it.
        let key: [u8; 32] = sha256(&[secret, b"sticky"].concat());
        Some(StickyCookie {
            name: sticky.cookie.clone(),
            span: (sticky.span.as_millis().div_ceil(1_000) as u64).max(1),
            key: Key::new(HMAC_SHA256, &key),
            upstream: upstream.name.clone(),
            servers: servers.iter().map(|server| fnv1a(server.address.to_string().as_bytes())).collect(),
        })
    }

    /// Removes the cookie from a request that came at `now`, in seconds since 1970. Returns the server that it names;
    /// `None` if it is absent, forged, old, doubled or another upstream's.
    pub fn take(&self, headers: &mut HeaderMap, now: u64) -> Option<ServerId> {
        let pairs = headers.get_all(COOKIE).iter().flat_map(split_pairs);
        let mut values = pairs.filter_map(|pair| self.own_value(pair));
        let first = values.next()?;
        let named = if values.next().is_none() { self.open(first, now) } else { None };
        drop(values);
        let lines: Vec<HeaderValue> =
            headers.get_all(COOKIE).iter().filter_map(|line| self.strip_line(line)).collect();
        headers.remove(COOKIE);
        headers.extend(lines.into_iter().map(|line| (COOKIE, line)));
        named
    }

    /// The Set-Cookie that names `server` from `now` on.
    pub fn write(&self, server: ServerId, is_https: bool, now: u64) -> Option<HeaderValue> {
        let value = self.seal(*self.servers.get(server.0)?, now.saturating_add(self.span));
        let StickyCookie { name, span, .. } = self;
        let secure = if is_https { "; Secure" } else { "" };
        let line = format!("{name}={value}; Path=/; Max-Age={span}; HttpOnly; SameSite=Lax{secure}");
        HeaderValue::try_from(line).ok()
    }

    /// The value of a pair if it is this cookie, empty where it has none.
    fn own_value<'a>(&self, pair: &'a [u8]) -> Option<&'a [u8]> {
        let mut parts = pair.strip_suffix(b";").unwrap_or(pair).splitn(2, |byte| *byte == b'=');
        let is_own = parts.next()?.trim_ascii() == self.name.as_bytes();
        is_own.then(|| parts.next().unwrap_or_default().trim_ascii())
    }

    /// A line without this cookie, the others byte for byte; `None` if nothing is left of it.
    fn strip_line(&self, line: &HeaderValue) -> Option<HeaderValue> {
        let others: Vec<&[u8]> = split_pairs(line).filter(|pair| self.own_value(pair).is_none()).collect();
        if others.len() == split_pairs(line).count() {
            return Some(line.clone());
        }
        let others = others.concat();
        let others = others.trim_ascii();
        let others = others.strip_suffix(b";").unwrap_or(others);
        HeaderValue::from_bytes(others).ok().filter(|line| !line.is_empty())
    }

    fn seal(&self, server: u64, end: u64) -> String {
        let mut content = (u128::from(server) << 64 | u128::from(end) << 24).to_be_bytes();
        // Without random numbers the value is still sealed.
        let _ = rand::fill(&mut content[HALF - 3..]);
        let tag = self.tag(&content);
        URL_SAFE_NO_PAD.encode([tag, self.mask(&tag, content)].concat())
    }

    fn open(&self, value: &[u8], now: u64) -> Option<ServerId> {
        let bytes = if value.len() == VALUE_LEN { URL_SAFE_NO_PAD.decode(value).ok()? } else { return None };
        let (tag, masked) = bytes.split_first_chunk::<HALF>()?;
        let content = self.mask(tag, masked.try_into().ok()?);
        verify_slices_are_equal(&self.tag(&content), tag).ok()?;
        let content = u128::from_be_bytes(content);
        let (server, end) = ((content >> 64) as u64, content as u64 >> 24);
        let position = self.servers.iter().position(|one| *one == server).filter(|_| now < end)?;
        Some(ServerId(position))
    }

    fn tag(&self, content: &[u8; HALF]) -> [u8; HALF] {
        self.authenticate(&[b"tag", content, self.upstream.as_bytes()])
    }

    /// Masks the content, or unmasks it.
    fn mask(&self, tag: &[u8; HALF], content: [u8; HALF]) -> [u8; HALF] {
        let mask = u128::from_be_bytes(self.authenticate(&[b"mask", tag]));
        (mask ^ u128::from_be_bytes(content)).to_be_bytes()
    }

    fn authenticate(&self, parts: &[&[u8]]) -> [u8; HALF] {
        let mut context = Context::with_key(&self.key);
        parts.iter().for_each(|part| context.update(part));
        let mut half = [0; HALF];
        half.copy_from_slice(&context.sign().as_ref()[..HALF]);
        half
    }
}

/// The pairs of a Cookie line, each with the semicolon behind it.
fn split_pairs(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes().split_inclusive(|byte| *byte == b';')
}

#[cfg(test)]
mod tests;
