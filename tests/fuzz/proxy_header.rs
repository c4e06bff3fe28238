//! The PROXY header: any first bytes of a connection, cut anywhere, are parsed in one way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use sluicegate_http::net::proxy_protocol::{ProxyHeader, V2_MAX, parse_header};

use crate::fuzz;
use crate::support::*;

const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// A header as proxies write it, and the address that it announces.
fn valid_header() -> impl Strategy<Value = (Vec<u8>, Option<IpAddr>)> {
    let v4 = (any::<u32>(), any::<u32>()).prop_map(|(a, b)| (Ipv4Addr::from(a), Ipv4Addr::from(b)));
    let v6 = (any::<u128>(), any::<u128>()).prop_map(|(a, b)| (Ipv6Addr::from(a), Ipv6Addr::from(b)));
    let ports = (any::<u16>(), any::<u16>());
    let tlvs = proptest::collection::vec(any::<u8>(), 0..60);
    prop_oneof![
        (v4.clone(), ports).prop_map(|((a, b), (p, q))| {
            (format!("PROXY TCP4 {a} {b} {p} {q}\r\n").into_bytes(), Some(IpAddr::from(a)))
        }),
        (v6.clone(), ports).prop_map(|((a, b), (p, q))| {
            (format!("PROXY TCP6 {a} {b} {p} {q}\r\n").into_bytes(), Some(IpAddr::from(a).to_canonical()))
        }),
        "[ -~]{0,80}".prop_map(|rest| (format!("PROXY UNKNOWN {rest}\r\n").into_bytes(), None)),
        (v4, ports, tlvs.clone()).prop_map(|((a, b), (p, q), tlvs)| {
            let ends = [&a.octets()[..], &b.octets(), &p.to_be_bytes(), &q.to_be_bytes(), &tlvs].concat();
            (version_2(0x21, 0x11, &ends), Some(IpAddr::from(a)))
        }),
        (v6, ports, tlvs.clone()).prop_map(|((a, b), (p, q), tlvs)| {
            let ends = [&a.octets()[..], &b.octets(), &p.to_be_bytes(), &q.to_be_bytes(), &tlvs].concat();
            (version_2(0x21, 0x21, &ends), Some(IpAddr::from(a).to_canonical()))
        }),
        tlvs.prop_map(|tlvs| (version_2(0x20, 0, &tlvs), None)),
    ]
}

fn version_2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("a short body").to_be_bytes();
    [V2_START, &[command, family], &length, body].concat()
}

/// Input in place of a header: changed valid headers, their pieces, and random bytes.
fn strange_input() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"PROXY ",
        b"TCP4 ",
        b"TCP6 ",
        b"UNKNOWN",
        b"\r\n",
        b"\r",
        b"\n",
        b" ",
        b"1.2.3.4 ",
        b"::1 ",
        b"65535",
        b"0",
        b"\0",
        V2_START,
        b"\x21\x11\x00\x0c",
        b"\x20\x00\x00\x00",
        b"\x21\x11\xff\xff",
        b"\x31",
        b"GET / HTTP/1.1\r\n",
    ];
    let pieces = proptest::collection::vec(select(words), 1..10).prop_map(|words| words.concat());
    let changed = (valid_header(), proptest::collection::vec((any::<Index>(), any::<u8>()), 1..4)).prop_map(
        |((mut bytes, _), changes)| {
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            bytes
        },
    );
    prop_oneof![3 => changed, 2 => pieces, 1 => proptest::collection::vec(any::<u8>(), 0..200)]
}

/// A valid header announces its address; cut anywhere it is incomplete, and bytes behind it do not matter.
#[test]
fn valid_headers_are_parsed() {
    fuzz((valid_header(), any::<Index>(), strange_input()), |((bytes, source), cut, behind)| {
        let expected = ProxyHeader::Header { length: bytes.len(), source };
        prop_assert_eq!(parse_header(&bytes), expected, "{}", bytes.escape_ascii());
        prop_assert_eq!(parse_header(&bytes[..cut.index(bytes.len())]), ProxyHeader::Partial);
        prop_assert_eq!(parse_header(&[&bytes[..], &behind].concat()), expected);
        Ok(())
    });
}

/// More bytes never change a final result, and no wait is unbounded.
#[test]
fn more_bytes_never_change_a_result() {
    fuzz((strange_input(), strange_input()), |(first, second)| {
        let total = first.len() + second.len();
        let bytes = [first, second, vec![b' '; V2_MAX]].concat();
        let whole = parse_header(&bytes);
        let mut is_final = false;
        for cut in (0..=total).chain([V2_MAX.max(total), bytes.len()]) {
            let parsed = parse_header(&bytes[..cut]);
            prop_assert!(!is_final || parsed == whole, "{cut} of {}", bytes.escape_ascii());
            is_final |= parsed != ProxyHeader::Partial;
            prop_assert!(is_final || cut < V2_MAX, "{cut} bytes do not suffice");
            if let ProxyHeader::Header { length, .. } = parsed {
                prop_assert!(length <= cut && length <= V2_MAX);
            }
        }
        Ok(())
    });
}

/// The real program, with headers cut anywhere: the announced client, or not one byte of a response.
#[test]
fn connections_are_announced_or_closed_silently() {
    let gateway = Gateway::start(
        "listen: [{ address: \"127.0.0.1:0\", proxy_protocol: required }]\naccess_log: none\n\
         server: { trusted_proxies: 127.0.0.1, timeouts: { handshake: 400ms } }\n\
         locations: [{ path: /, respond: { body: \"${client_ip}\" } }]\n",
    );
    let header = prop_oneof![valid_header().prop_map(|(bytes, _)| bytes), strange_input()];
    fuzz((header, any::<Index>()), |(header, cut)| {
        let bytes = [&header[..], REQUEST].concat();
        let expected = match parse_header(&bytes) {
            ProxyHeader::Header { length, source } if bytes[length..] == *REQUEST => {
                Some(source.unwrap_or(Ipv4Addr::LOCALHOST.into()).to_string())
            }
            // Other bytes come first: HTTP judges them.
            ProxyHeader::Header { .. } => return Ok(()),
            _ => None,
        };
        let mut client = gateway.client();
        let cut = cut.index(bytes.len());
        if client.try_send(&bytes[..cut]).is_ok() {
            std::thread::sleep(ms(1));
            // It may have been closed already.
            let _ = client.try_send(&bytes[cut..]);
        }
        let (answer, end) = client.rest(PATIENCE);
        prop_assert_ne!(end, End::Deadline, "{}", bytes.escape_ascii());
        match expected {
            Some(ip) => prop_assert!(
                answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(format!("\r\n\r\n{ip}").as_bytes()),
                "{}: {}",
                bytes.escape_ascii(),
                answer.escape_ascii()
            ),
            None => prop_assert!(answer.is_empty(), "{}: {}", bytes.escape_ascii(), answer.escape_ascii()),
        }
        Ok(())
    });
}
