//! Valid headers, whole and cut at every byte; invalid headers; other protocols.

use proptest::prelude::*;

use super::*;

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = V2_START.to_vec();
    bytes.extend([0x20 | command, family]);
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn header(length: usize, source: Option<&str>) -> ProxyHeader {
    ProxyHeader::Header { length, source: source.map(|text| text.parse().unwrap()) }
}

const IPV4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 7, 0x30, 0x39, 0, 80];

fn valid_headers() -> Vec<(Vec<u8>, Option<&'static str>)> {
    let mut ipv6 = [0; 36];
    ipv6[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    ipv6[15] = 9;
    let mut mapped = [0; 36];
    mapped[10..16].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
    let with_tlvs = [IPV4.as_slice(), &[3, 0, 4, 1, 2, 3, 4]].concat();
    vec![
        (b"PROXY TCP4 192.0.2.1 198.51.100.7 12345 80\r\n".to_vec(), Some("192.0.2.1")),
        (b"PROXY TCP6 2001:db8::9 ::1 65535 0\r\n".to_vec(), Some("2001:db8::9")),
        (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n".to_vec(), Some("192.0.2.1")),
        (b"PROXY UNKNOWN\r\n".to_vec(), None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 x\r\n".to_vec(), None),
        (v2(1, 0x11, &IPV4), Some("192.0.2.1")),
        (v2(1, 0x11, &with_tlvs), Some("192.0.2.1")),
        (v2(1, 0x21, &ipv6), Some("2001:db8::9")),
        (v2(1, 0x21, &mapped), Some("192.0.2.1")),
        (v2(0, 0x11, &IPV4), None),
        (v2(0, 0x00, &[]), None),
        (v2(1, 0x00, &[]), None),
        (v2(1, 0x31, &[0; 216]), None),
        (v2(1, 0x11, &[&IPV4[..], &[0; 4084]].concat()), Some("192.0.2.1")),
    ]
}

#[test]
fn headers_are_parsed_whole_cut_and_with_more_behind() {
    for (bytes, source) in valid_headers() {
        let shown = bytes.escape_ascii().to_string();
        assert_eq!(parse_header(&bytes), header(bytes.len(), source), "{shown}");
        for cut in 0..bytes.len() {
            assert_eq!(parse_header(&bytes[..cut]), ProxyHeader::Partial, "{cut} of {shown}");
        }
        let more = [&bytes[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
        assert_eq!(parse_header(&more), header(bytes.len(), source), "{shown}");
    }
}

#[test]
fn wrong_headers_are_invalid() {
    let too_long = [V2_START, &[0x21, 0x11, 0x10, 0x01]].concat();
    for bytes in [
        b"PROXY TCP4 192.0.2.1 198.51.100.7 12345\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 198.51.100.7 1 2 3\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 198.51.100.7 1 65536\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 198.51.100.7 01 2\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 198.51.100.7 +1 2\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1  198.51.100.7 1 2\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.01 198.51.100.7 1 2\r\n".to_vec(),
        b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(),
        b"PROXY TCP6 192.0.2.1 198.51.100.7 1 2\r\n".to_vec(),
        b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n".to_vec(),
        b"PROXY TCP5 a b c d\r\n".to_vec(),
        b"PROXY tcp4 192.0.2.1 198.51.100.7 1 2\r\n".to_vec(),
        b"PROXY \r\n".to_vec(),
        b"PROXY TCP4 192.0.2.1 198.51.100.7 1 2\n\r\n".to_vec(),
        b"PROXY TCP4 \xff\r\n".to_vec(),
        [b"PROXY UNKNOWN ", [b'x'; 93].as_slice()].concat(),
        v2(1, 0x11, &IPV4[..11]),
        v2(1, 0x21, &[0; 35]),
        v2(1, 0x12, &IPV4),
        v2(1, 0x41, &IPV4),
        v2(2, 0x11, &IPV4),
        too_long,
        [V2_START, &[0x11, 0x11, 0, 0]].concat(),
    ] {
        let parsed = parse_header(&bytes);
        assert!(matches!(parsed, ProxyHeader::Invalid(_)), "{} is {parsed:?}", bytes.escape_ascii());
    }
}

#[test]
fn other_protocols_are_recognised_by_their_first_bytes() {
    for bytes in
        [&b"GET / HTTP/1.1"[..], b"PRI * HTTP/2.0", b"PUT /", b"\x16\x03\x01", b"\r\nGET", b"PROXY\t"]
    {
        assert_eq!(parse_header(bytes), ProxyHeader::NotProxy, "{}", bytes.escape_ascii());
    }
    for bytes in [&b""[..], b"P", b"PR", b"PROXY", b"\r\n\r\n"] {
        assert_eq!(parse_header(bytes), ProxyHeader::Partial, "{}", bytes.escape_ascii());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any input is parsed in bounds, and more bytes never change a final result.
    #[test]
    fn more_bytes_never_change_a_result(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        tail in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (mut bytes, _) = which.get(&valid_headers()).clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(tail);
        let whole = parse_header(&bytes);
        if let ProxyHeader::Header { length, .. } = whole {
            prop_assert!(length <= bytes.len() && length <= V2_MAX);
        }
        for cut in (0..bytes.len()).rev().take(300) {
            let parsed = parse_header(&bytes[..cut]);
            prop_assert!(parsed == ProxyHeader::Partial || parsed == whole, "{parsed:?} then {whole:?}");
        }
    }
}

/// The bytes of the specification, and what the parser of this crate reads in them.
#[test]
fn announcements_are_headers() {
    let address = |text: &str| Some(text.parse::<std::net::SocketAddr>().unwrap());
    let start = b"\r\n\r\n\0\r\nQUIT\n";
    let [v4, v6] = ["192.0.2.1", "2001:db8::9"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let mapped = |tail: [u8; 4]| [&[0; 10][..], &[0xff, 0xff], &tail].concat();
    let long = "2001:db8::9".parse::<Ipv6Addr>().unwrap().octets();
    let other = "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets();
    let ports = [0x30, 0x39, 0x01, 0xbb];
    let short = [&[0x21, 0x11, 0, 12, 192, 0, 2, 1, 198, 51, 100, 7][..], &ports].concat();
    let six =
        |source: &[u8], target: &[u8], ports: &[u8]| [&[0x21, 0x21, 0, 36], source, target, ports].concat();
    for (client, listener, rest, source) in [
        (address("192.0.2.1:12345"), address("198.51.100.7:443"), short.clone(), Some(v4)),
        (address("192.0.2.1:12345"), address("[::ffff:198.51.100.7]:443"), short, Some(v4)),
        (address("[2001:db8::9]:12345"), address("[2001:db8::1]:443"), six(&long, &other, &ports), Some(v6)),
        (
            address("[2001:db8::9]:12345"),
            address("198.51.100.7:443"),
            six(&long, &mapped([198, 51, 100, 7]), &ports),
            Some(v6),
        ),
        (
            address("192.0.2.1:12345"),
            address("[2001:db8::1]:443"),
            six(&mapped([192, 0, 2, 1]), &other, &ports),
            Some(v4),
        ),
        (address("192.0.2.1:0"), None, [&[0x21, 0x11, 0, 12, 192, 0, 2, 1][..], &[0; 8]].concat(), Some(v4)),
        (address("[2001:db8::9]:0"), None, six(&long, &[0; 16], &[0; 4]), Some(v6)),
        (None, address("198.51.100.7:443"), vec![0x21, 0, 0, 0], None),
    ] {
        let header = announce_client(client, listener);
        assert_eq!(&header[..], [&start[..], &rest].concat(), "{client:?} {listener:?}");
        assert_eq!(parse_header(&header), ProxyHeader::Header { length: header.len(), source });
    }
    assert_eq!(parse_header(LOCAL_HEADER), ProxyHeader::Header { length: 16, source: None });
}
