//! A PROXY header announces the same address however its bytes come, and the address that it spells.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use sluicegate_http::net::proxy_protocol::{ProxyHeader, V1_MAX, V2_MAX, parse_header};

const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The address in a header of `bytes`, read in the simplest way.
fn announced(bytes: &[u8]) -> Option<IpAddr> {
    let address: IpAddr = match bytes.strip_prefix(V2_START) {
        Some([0x20, ..]) => return None,
        Some([0x21, 0x11, _, _, rest @ ..]) => <[u8; 4]>::try_from(&rest[..4]).ok()?.into(),
        Some([0x21, 0x21, _, _, rest @ ..]) => <[u8; 16]>::try_from(&rest[..16]).ok()?.into(),
        Some(_) => return None,
        None => {
            let line = str::from_utf8(bytes).expect("a header of version 1 is text");
            let mut words = line.trim_end_matches("\r\n").split(' ').skip(1);
            match words.next() {
                Some("UNKNOWN") => return None,
                Some("TCP4" | "TCP6") => words.next()?.parse().ok()?,
                other => panic!("a header with the family {other:?}"),
            }
        }
    };
    Some(address.to_canonical())
}

/// Headers of both versions that announce `address`.
fn headers_of(address: IpAddr) -> [Vec<u8>; 2] {
    let (family, code, octets) = match address {
        IpAddr::V4(address) => ("TCP4", 0x11, address.octets().to_vec()),
        IpAddr::V6(address) => ("TCP6", 0x21, address.octets().to_vec()),
    };
    let line = format!("PROXY {family} {address} {address} 1 65535\r\n");
    let ports = [0, 1, 0xff, 0xff];
    let length = (2 * octets.len() + ports.len()) as u8;
    [line.into_bytes(), [V2_START, &[0x21, code, 0, length], &octets, &octets, &ports].concat()]
}

fuzz_target!(|bytes: &[u8]| {
    let whole = parse_header(bytes);
    // More bytes never change a final result.
    for cut in (0..bytes.len()).take(V1_MAX + 2).chain([bytes.len() / 2]) {
        let parsed = parse_header(&bytes[..cut]);
        assert!(parsed == ProxyHeader::Partial || parsed == whole, "{parsed:?} became {whole:?}");
    }
    // No wait is unbounded.
    let longer = parse_header(&[bytes, &[b' '; V2_MAX]].concat());
    assert_ne!(longer, ProxyHeader::Partial);
    assert!(whole == ProxyHeader::Partial || whole == longer, "{whole:?} became {longer:?}");
    let ProxyHeader::Header { length, source } = whole else { return };
    assert!(length <= bytes.len() && length <= V2_MAX);
    assert_eq!(source, announced(&bytes[..length]));
    let Some(address) = source else { return };
    for header in headers_of(address) {
        let expected = ProxyHeader::Header { length: header.len(), source: Some(address) };
        assert_eq!(parse_header(&header), expected, "{}", header.escape_ascii());
    }
});
