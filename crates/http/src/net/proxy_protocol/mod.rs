//! The PROXY protocol, versions 1 and 2: a proxy in front announces the client's address in the first bytes of a
//! connection.
//!
//! Source: <https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt>. The TLVs that may follow the addresses in
//! version 2 are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Bytes;

/// The longest line of version 1, with its CRLF, in bytes.
pub const V1_MAX: usize = 107;
/// The longest header of version 2 that is accepted, in bytes: the addresses, and the TLVs that proxies add.
pub const V2_MAX: usize = V2_HEAD + 4096;

const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The fixed part: start, version and command, family, length.
const V2_HEAD: usize = 16;

/// The meaning of the first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader {
    /// More bytes are needed to decide.
    Partial,
    /// The bytes are another protocol's.
    NotProxy,
    /// The bytes begin as a header and break its rules.
    Invalid(&'static str),
    /// A whole header.
    Header {
        /// The length of the header in bytes.
        length: usize,
        /// The client's address; `None` when the proxy speaks for itself, or for a client without an internet address.
        /// An IPv4-mapped address is the IPv4 one, so that it is not counted twice.
        source: Option<IpAddr>,
    },
}

/// The header of version 2 of a connection that serves no client: its command is LOCAL.
pub const LOCAL_HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

/// The header of version 2 that announces `client`, which connected to `listener`; an unknown listener is all zeros. A
/// client without an internet address has the family UNSPEC. IPv4 beside IPv6 is IPv4-mapped, as by HAProxy.
pub fn announce_client(client: Option<SocketAddr>, listener: Option<SocketAddr>) -> Bytes {
    let mut header = [V2_START, &[0x21]].concat();
    let Some(client) = client else { return [&header[..], &[0, 0, 0]].concat().into() };
    let any = if client.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let listener = listener.unwrap_or(SocketAddr::new(any, 0));
    match (client.ip().to_canonical(), listener.ip().to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            header.extend([0x11, 0, 12]);
            header.extend([source.octets(), target.octets()].concat());
        }
        (source, target) => {
            header.extend([0x21, 0, 36]);
            header.extend([source, target].map(to_ipv6).map(|ip| ip.octets()).concat());
        }
    }
    header.extend([client.port(), listener.port()].map(u16::to_be_bytes).concat());
    header.into()
}

fn to_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Parses the first bytes of a connection, as many as have come.
pub fn parse_header(bytes: &[u8]) -> ProxyHeader {
    if may_start_with(bytes, V1_START) {
        parse_version_1(bytes)
    } else if may_start_with(bytes, V2_START) {
        parse_version_2(bytes)
    } else {
        ProxyHeader::NotProxy
    }
}

/// True if `bytes` begin with `start`, or may do so once more of them have come.
fn may_start_with(bytes: &[u8], start: &[u8]) -> bool {
    let common = bytes.len().min(start.len());
    bytes[..common] == start[..common]
}

fn parse_version_1(bytes: &[u8]) -> ProxyHeader {
    let window = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if window.len() < V1_MAX {
            ProxyHeader::Partial
        } else {
            ProxyHeader::Invalid("the line has no end")
        };
    };
    let length = end + 2;
    let Ok(line) = str::from_utf8(&window[..end]) else {
        return ProxyHeader::Invalid("the line is not text");
    };
    let mut words = line.split(' ').skip(1);
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        // The rest of the line is to be ignored.
        return ProxyHeader::Header { length, source: None };
    }
    let mut next = || words.next().unwrap_or_default();
    let ends = [next(), next()];
    let ports = [next(), next()];
    let done = words.next().is_none();
    let address: fn(&str) -> Option<IpAddr> = match family {
        "TCP4" => |text| text.parse().ok().map(IpAddr::V4),
        "TCP6" => |text| text.parse().ok().map(IpAddr::V6),
        _ => return ProxyHeader::Invalid("the protocol must be TCP4, TCP6 or UNKNOWN"),
    };
    match (address(ends[0]), address(ends[1]), ports.iter().all(|text| is_port(text)), done) {
        (Some(source), Some(_), true, true) => {
            ProxyHeader::Header { length, source: Some(source.to_canonical()) }
        }
        _ => ProxyHeader::Invalid("an address or port cannot be read"),
    }
}

/// True if `text` is a port: digits only, without leading zeros.
fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'))
        && text.parse::<u16>().is_ok()
}

fn parse_version_2(bytes: &[u8]) -> ProxyHeader {
    let Some(head) = bytes.first_chunk::<V2_HEAD>() else { return ProxyHeader::Partial };
    let (version, command) = (head[12] >> 4, head[12] & 15);
    let length = V2_HEAD + usize::from(u16::from_be_bytes([head[14], head[15]]));
    if version != 2 {
        return ProxyHeader::Invalid("the version is not 2");
    }
    if length > V2_MAX {
        return ProxyHeader::Invalid("the header is too long");
    }
    let Some(body) = bytes.get(V2_HEAD..length) else { return ProxyHeader::Partial };
    match (command, head[13]) {
        (0, _) => ProxyHeader::Header { length, source: None },
        // TCP over IPv4 and over IPv6: source, destination, and a port of each.
        (1, 0x11) => match body.first_chunk::<12>() {
            Some([a, b, c, d, ..]) => {
                let source = Ipv4Addr::new(*a, *b, *c, *d);
                ProxyHeader::Header { length, source: Some(source.into()) }
            }
            None => ProxyHeader::Invalid("the addresses are cut off"),
        },
        (1, 0x21) => match body.first_chunk::<36>().and_then(|addresses| addresses.first_chunk::<16>()) {
            Some(source) => {
                let source = IpAddr::V6(Ipv6Addr::from(*source));
                ProxyHeader::Header { length, source: Some(source.to_canonical()) }
            }
            None => ProxyHeader::Invalid("the addresses are cut off"),
        },
        // Unspecified, or a unix socket: the receiver has to use the address it sees itself.
        (1, 0x00 | 0x31 | 0x32) => ProxyHeader::Header { length, source: None },
        (1, 0x12 | 0x22) => ProxyHeader::Invalid("it announces a datagram"),
        (1, _) => ProxyHeader::Invalid("the protocol is unknown"),
        _ => ProxyHeader::Invalid("the command is neither LOCAL nor PROXY"),
    }
}

#[cfg(test)]
mod tests;
