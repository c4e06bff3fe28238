//! The winning address for every way to write the header.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use sluicegate_model::ServerTimeouts;

fn server(trusted: &[&str], client_ip: model::ClientIpConfig) -> model::ServerConfig {
    let second = Duration::from_secs(1);
    model::ServerConfig {
        workers: 1,
        trusted_proxies: trusted.iter().map(|network| network.parse().expect("a network")).collect(),
        client_ip,
        ipv6_prefix: 64,
        ipv4_prefix: 32,
        limits: Vec::new(),
        views: Vec::new(),
        is_max_connections_written: false,
        max_connections: 1,
        connections_per_ip: None,
        keepalive_requests: 1,
        keepalive_age: None,
        max_waiting: 1,
        max_in_flight: None,
        max_header_size: 1,
        max_headers: 1,
        max_body: None,
        body_memory: 1,
        timeouts: ServerTimeouts {
            header: second,
            idle: second,
            body: second,
            write: second,
            handshake: second,
            drain: second,
            shutdown: second,
        },
        request_id: HeaderName::from_static("x-request-id"),
        underscore_headers: model::UnderscoreHeaders::Drop,
        headers: model::HeaderEdits::default(),
    }
}

const TRUSTED: [&str; 3] = ["127.0.0.1/32", "10.0.1.0/24", "fd00::/8"];

fn lines(name: &'static str, values: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(name, HeaderValue::from_str(value).expect("a header value"));
    }
    headers
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// The client of a request that the trusted 127.0.0.1 forwards.
fn behind_proxy(client_ip: model::ClientIpConfig, name: &'static str, values: &[&str]) -> String {
    let rule = ClientIp::from(&server(&TRUSTED, client_ip));
    rule.find_client(Some(ip("127.0.0.1")), &lines(name, values)).ip.to_string()
}

#[test]
fn a_stranger_cannot_name_its_address() {
    let headers = ["x-forwarded-for", "forwarded", "x-real-ip", "true-client-ip"];
    let rules = [
        model::ClientIpConfig::XForwardedFor,
        model::ClientIpConfig::Forwarded,
        model::ClientIpConfig::Header(HeaderName::from_static("x-real-ip")),
    ];
    for client_ip in rules {
        let rule = ClientIp::from(&server(&TRUSTED, client_ip));
        for number in 0..1000_u32 {
            let forged = Ipv4Addr::from_bits(0x0100_0000 + number).to_string();
            let mut sent = HeaderMap::new();
            for name in headers {
                let value = if name == "forwarded" { format!("for={forged}") } else { forged.clone() };
                sent.insert(name, HeaderValue::from_str(&value).expect("an address"));
            }
            let client = rule.find_client(Some(ip("192.0.2.9")), &sent);
            assert_eq!(client, Client { ip: ip("192.0.2.9"), trusted_peer: false });
        }
    }
}

#[test]
fn the_right_most_untrusted_hop_wins() {
    let rows: [(&[&str], &str); 20] = [
        (&["10.0.0.1, 192.0.2.1"], "192.0.2.1"),
        (&["192.0.2.1, 10.0.1.1, 127.0.0.1"], "192.0.2.1"),
        (&["10.0.1.1, 192.0.2.1, 127.0.0.1"], "192.0.2.1"),
        (&["192.0.2.1", "127.0.0.1, 10.0.1.1"], "192.0.2.1"),
        (&["10.0.1.1", "192.0.2.1", "127.0.0.1"], "192.0.2.1"),
        (&["198.51.100.7", "192.0.2.1"], "192.0.2.1"),
        (&["10.0.1.1, 10.0.1.2", "127.0.0.1"], "10.0.1.1"),
        (&[], "127.0.0.1"),
        (&[""], "127.0.0.1"),
        (&[" , ,192.0.2.1,, "], "192.0.2.1"),
        (&["2001:db8::1"], "2001:db8::1"),
        (&["2001:db8::1, fd00::7"], "2001:db8::1"),
        (&["::ffff:192.0.2.1"], "192.0.2.1"),
        (&["192.0.2.1, ::ffff:10.0.1.5"], "192.0.2.1"),
        (&["192.0.2.1\t,\t10.0.1.1"], "192.0.2.1"),
        (&["junk, 192.0.2.1"], "192.0.2.1"),
        (&["192.0.2.1:80"], "192.0.2.1"),
        (&["192.0.2.1:65535, 10.0.1.1:1"], "192.0.2.1"),
        (&["[2001:db8::1]:80, [fd00::7]:80"], "2001:db8::1"),
        (&["[::ffff:192.0.2.1]:80"], "192.0.2.1"),
    ];
    for (values, expected) in rows {
        assert_eq!(
            behind_proxy(model::ClientIpConfig::XForwardedFor, "x-forwarded-for", values),
            expected,
            "{values:?}"
        );
    }
}

#[test]
fn an_invalid_address_ends_the_walk() {
    let junk = [
        "junk",
        "unknown",
        "192.0.2.1:0",
        "192.0.2.1:65536",
        "192.0.2.1:+80",
        "192.0.2.1:",
        "2001:db8::1]:80",
        "[2001:db8::1]",
        "[2001:db8::1]:",
        "[2001:db8::1]80",
        "[192.0.2.1]:80",
        "192.0.2",
        "192.0.2.256",
        "192.0.2.01",
        "0x7f.1",
        "fe80::1%eth0",
        "192.0.2.1 192.0.2.2",
        "\"192.0.2.1\"",
        "-",
    ];
    for hop in junk {
        let values = [format!("192.0.2.7, {hop}, 10.0.1.1")];
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        assert_eq!(
            behind_proxy(model::ClientIpConfig::XForwardedFor, "x-forwarded-for", &values),
            "10.0.1.1",
            "{hop}"
        );
        assert_eq!(
            behind_proxy(model::ClientIpConfig::XForwardedFor, "x-forwarded-for", &[hop]),
            "127.0.0.1",
            "{hop}"
        );
    }
}

#[test]
fn the_standard_header_is_read_by_its_grammar() {
    let rows: [(&[&str], &str); 23] = [
        (&[r#"for=192.0.2.1;by="a,b\"c""#], "192.0.2.1"),
        (&["for=192.0.2.60;proto=http;by=203.0.113.43"], "192.0.2.60"),
        (&["proto=https; For=192.0.2.60"], "192.0.2.60"),
        (&[r#"for="192.0.2.60""#], "192.0.2.60"),
        (&[r#"for="192.0.2.60:8080""#], "192.0.2.60"),
        (&[r#"for="[2001:db8:cafe::17]""#], "2001:db8:cafe::17"),
        (&[r#"for="[2001:db8:cafe::17]:4711""#], "2001:db8:cafe::17"),
        (&[r#"for="[2001:db8:cafe::17]:_port""#], "2001:db8:cafe::17"),
        (&["for=192.0.2.43, for=198.51.100.17"], "198.51.100.17"),
        (&["for=192.0.2.43, for=10.0.1.1;by=x"], "192.0.2.43"),
        (&["for=192.0.2.43", "for=10.0.1.1, for=10.0.1.2"], "192.0.2.43"),
        (&[r#"by="a,b;for=1.1.1.1";for=192.0.2.1"#], "192.0.2.1"),
        (&[r#"by="\"";for=192.0.2.1"#], "192.0.2.1"),
        (&["for=unknown"], "127.0.0.1"),
        (&["for=_hidden, for=10.0.1.1"], "10.0.1.1"),
        (&["for=192.0.2.1, for=unknown, for=10.0.1.1"], "10.0.1.1"),
        (&["proto=http"], "127.0.0.1"),
        (&["for=192.0.2.1;for=192.0.2.2"], "127.0.0.1"),
        (&["for=192.0.2.1:x"], "127.0.0.1"),
        (&[r#"for="[192.0.2.1]""#], "127.0.0.1"),
        (&["for=2001:db8::1"], "127.0.0.1"),
        (&["192.0.2.1"], "127.0.0.1"),
        (&[r#"for="192.0.2.1"#], "127.0.0.1"),
    ];
    for (values, expected) in rows {
        assert_eq!(
            behind_proxy(model::ClientIpConfig::Forwarded, "forwarded", values),
            expected,
            "{values:?}"
        );
    }
}

#[test]
fn an_open_quote_cannot_swallow_an_appended_address() {
    for claim in [r#"for=6.6.6.6;x=""#, r#"""#, r#"for=6.6.6.6;x="\"#, r#"for="6.6.6.6"#, r#"\"#] {
        for honest in ["for=192.0.2.1", r#"for="192.0.2.1""#, r#"by="_a,b";for=192.0.2.1"#] {
            let line = format!("{claim}, {honest}");
            assert_eq!(
                behind_proxy(model::ClientIpConfig::Forwarded, "forwarded", &[&line]),
                "192.0.2.1",
                "{line}"
            );
        }
    }
}

#[test]
fn a_header_of_ones_own_choice_is_walked_alike() {
    let named = |name: &'static str| model::ClientIpConfig::Header(HeaderName::from_static(name));
    assert_eq!(behind_proxy(named("cf-connecting-ip"), "cf-connecting-ip", &["192.0.2.1"]), "192.0.2.1");
    assert_eq!(behind_proxy(named("x-real-ip"), "x-real-ip", &["192.0.2.1, 10.0.1.1"]), "192.0.2.1");
    assert_eq!(behind_proxy(named("x-real-ip"), "x-forwarded-for", &["192.0.2.1"]), "127.0.0.1");
    assert_eq!(behind_proxy(named("forwarded"), "forwarded", &["for=192.0.2.1"]), "192.0.2.1");
}

#[test]
fn a_unix_peer_is_trusted_and_shares_one_client() {
    let rule = ClientIp::from(&server(&[], model::ClientIpConfig::XForwardedFor));
    let found = rule.find_client(None, &lines("x-forwarded-for", &["198.51.100.1, 192.0.2.1"]));
    assert_eq!(found, Client { ip: ip("192.0.2.1"), trusted_peer: true });
    assert_eq!(rule.find_client(None, &HeaderMap::new()), Client { ip: UNIX_CLIENT, trusted_peer: true });
    assert_eq!(rule.find_client(None, &lines("x-forwarded-for", &["junk"])).ip, UNIX_CLIENT);
}

#[test]
fn a_mapped_address_is_its_ipv4_address() {
    let rule = ClientIp::from(&server(
        &["::ffff:10.0.1.0/120", "127.0.0.1/32"],
        model::ClientIpConfig::XForwardedFor,
    ));
    let headers = lines("x-forwarded-for", &["192.0.2.1, 10.0.1.77"]);
    let client = rule.find_client(Some(ip("::ffff:127.0.0.1").to_canonical()), &headers);
    assert_eq!(client, Client { ip: ip("192.0.2.1"), trusted_peer: true });
    let stranger = rule.find_client(Some(ip("::ffff:192.0.2.8").to_canonical()), &headers);
    assert_eq!(stranger, Client { ip: ip("192.0.2.8"), trusted_peer: false });
}

#[test]
fn the_walk_is_bounded() {
    let hops = vec!["10.0.1.1"; 10_000].join(",");
    let line = format!("192.0.2.1,{hops}");
    assert_eq!(behind_proxy(model::ClientIpConfig::XForwardedFor, "x-forwarded-for", &[&line]), "10.0.1.1");
    let near = format!("192.0.2.1,{}", vec!["10.0.1.1"; HOPS_MAX - 1].join(","));
    assert_eq!(behind_proxy(model::ClientIpConfig::XForwardedFor, "x-forwarded-for", &[&near]), "192.0.2.1");
    let empty = format!("192.0.2.1{}", ",".repeat(HOPS_MAX));
    assert_eq!(behind_proxy(model::ClientIpConfig::XForwardedFor, "x-forwarded-for", &[&empty]), "127.0.0.1");
}

#[test]
fn a_network_counts_as_one_client() {
    let masked = |v4, v6, address: &str| {
        let mut server = server(&[], model::ClientIpConfig::XForwardedFor);
        (server.ipv4_prefix, server.ipv6_prefix) = (v4, v6);
        ClientIp::from(&server).mask_address(ip(address)).to_string()
    };
    for host in 0..1000_u128 {
        let address = Ipv6Addr::from_bits(0x2001_0db8_0001_0002_u128 << 64 | host << 54 | host);
        assert_eq!(masked(32, 64, &address.to_string()), "2001:db8:1:2::");
    }
    assert_eq!(masked(32, 64, "2001:db8:1:2:ffff:ffff:ffff:ffff"), "2001:db8:1:2::");
    assert_eq!(masked(32, 64, "2001:db8:1:3::1"), "2001:db8:1:3::");
    assert_eq!(masked(32, 48, "2001:db8:1:3::1"), "2001:db8:1::");
    assert_eq!(masked(32, 128, "2001:db8::1"), "2001:db8::1");
    assert_eq!(masked(32, 0, "2001:db8::1"), "::");
    assert_eq!(masked(32, 64, "192.0.2.77"), "192.0.2.77");
    assert_eq!(masked(24, 64, "192.0.2.77"), "192.0.2.0");
    assert_eq!(masked(0, 64, "192.0.2.77"), "0.0.0.0");
    assert_eq!(masked(24, 64, "::ffff:192.0.2.77"), "192.0.2.0", "IPv4 is masked as IPv4, however it came");
}

/// Header values of the characters that the walk acts on, and of any others.
fn tricky_value() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"10.0.1.1".to_vec()),
        Just(b"for=".to_vec()),
        Just(b"[fd00::1]".to_vec()),
        "[,;=\"\\\\: ._]".prop_map(String::into_bytes),
        any::<u8>().prop_map(|byte| vec![byte]),
    ];
    proptest::collection::vec(piece, 0..32).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_bytes_are_walked(
        values in proptest::collection::vec(tricky_value(), 0..4),
        standard in any::<bool>(),
    ) {
        let client_ip = match standard {
            true => model::ClientIpConfig::Forwarded,
            false => model::ClientIpConfig::XForwardedFor,
        };
        let rule = ClientIp::from(&server(&TRUSTED, client_ip));
        let mut headers = HeaderMap::new();
        for value in values.iter().filter_map(|value| HeaderValue::from_bytes(value).ok()) {
            headers.append(rule.header().clone(), value);
        }
        let found = rule.find_client(Some(ip("127.0.0.1")), &headers);
        prop_assert!(found.trusted_peer);
        let stranger = rule.find_client(Some(ip("192.0.2.9")), &headers);
        prop_assert_eq!(stranger, Client { ip: ip("192.0.2.9"), trusted_peer: false });
    }

    /// The address that the proxy appended is found, whatever precedes it.
    #[test]
    fn nothing_in_front_moves_the_appended_address(claim in tricky_value(), standard in any::<bool>()) {
        let (client_ip, appended): (_, &[u8]) = if standard {
            (model::ClientIpConfig::Forwarded, br#",for="192.0.2.1:80";by=_x"#)
        } else {
            (model::ClientIpConfig::XForwardedFor, b", 192.0.2.1")
        };
        let rule = ClientIp::from(&server(&TRUSTED, client_ip));
        if let Ok(value) = HeaderValue::from_bytes(&[&claim, appended].concat()) {
            let headers = HeaderMap::from_iter([(rule.header().clone(), value)]);
            prop_assert_eq!(rule.find_client(Some(ip("127.0.0.1")), &headers).ip, ip("192.0.2.1"));
        }
    }
}
