//! Parses the address lists of proxies from the right, where the last proxy appended.

use std::net::{IpAddr, Ipv6Addr};

/// The trimmed elements of a list, right-most first.
///
/// Reading from the right separates the elements of a trusted proxy from any text of an untrusted client before them:
/// an open quote on the left cannot swallow an element on the right.
pub(super) struct ElementsFromRight<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
    /// Separators inside double quotes are text.
    quoting: bool,
}

impl<'a> ElementsFromRight<'a> {
    pub(super) fn new(list: &'a [u8], separator: u8, quoting: bool) -> ElementsFromRight<'a> {
        ElementsFromRight { rest: Some(list), separator, quoting }
    }
}

impl<'a> Iterator for ElementsFromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let mut quoted = false;
        let mut at = rest.len();
        while at > 0 {
            at -= 1;
            if rest[at] == b'"' && self.quoting {
                let backslashes = rest[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
                quoted ^= backslashes % 2 == 0;
            } else if rest[at] == self.separator && !quoted {
                self.rest = Some(&rest[..at]);
                return Some(rest[at + 1..].trim_ascii());
            }
        }
        self.rest = None;
        Some(rest.trim_ascii())
    }
}

/// Parses an address with an optional port, as nginx does; an IPv6 address with a port is in brackets.
pub(super) fn parse_address(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?;
    hop.parse().ok().or_else(|| address_before_port(hop))
}

fn address_before_port(hop: &str) -> Option<IpAddr> {
    let (address, port) = hop.rsplit_once(':')?;
    let is_port =
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    if !is_port {
        return None;
    }
    match address.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => address.parse().ok().map(IpAddr::V4),
    }
}

/// The address in the one `for` parameter of a `Forwarded` element.
pub(super) fn parse_forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut node = None;
    for pair in ElementsFromRight::new(element, b';', true) {
        let equals = pair.iter().position(|&byte| byte == b'=');
        if let Some(equals) = equals
            && pair[..equals].eq_ignore_ascii_case(b"for")
            && node.replace(&pair[equals + 1..]).is_some()
        {
            return None;
        }
    }
    node_address(std::str::from_utf8(node?).ok()?)
}

/// RFC 7239's `node`: an IPv4 address bare or quoted, an IPv6 address quoted and in brackets; a port may follow.
fn node_address(node: &str) -> Option<IpAddr> {
    let unquoted = node.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(node);
    if let Some(rest) = unquoted.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let is_whole = port.is_empty() || port.strip_prefix(':').is_some_and(is_node_port);
        return if is_whole { address.parse().ok().map(|v6: Ipv6Addr| v6.into()) } else { None };
    }
    match unquoted.split_once(':') {
        Some((address, port)) if is_node_port(port) => address.parse().ok().map(IpAddr::V4),
        Some(_) => None,
        None => unquoted.parse().ok().map(IpAddr::V4),
    }
}

/// Digits, or an obfuscated port: an underscore and a name.
fn is_node_port(port: &str) -> bool {
    let is_number = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_obfuscated =
        port.strip_prefix('_').is_some_and(|name| !name.is_empty() && !name.contains([' ', '"', '\\']));
    is_number || is_obfuscated
}
