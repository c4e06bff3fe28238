//! The walk over forwarded hops: no header a client writes changes its address.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use proptest::sample::select;
use sluicegate_config as config;
use sluicegate_http::request::client::ClientIp;

use crate::fuzz;

const TRUSTED: &str = "[127.0.0.1, 10.0.0.0/8, \"fd00::/8\"]";

fn walker(client_ip: &str) -> ClientIp {
    let yaml = format!(
        "server: {{ trusted_proxies: {TRUSTED}, client_ip: \"{client_ip}\" }}\n\
         locations: [{{ path: /, upstream: demo }}]\n"
    );
    let loaded = config::parse(&yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    ClientIp::from(&loaded.config.server)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn trusted(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => {
            v4.is_loopback() && v4.octets()[3] == 1 && v4.octets()[1..3] == [0, 0] || v4.octets()[0] == 10
        }
        IpAddr::V6(v6) => v6.segments()[0] >> 8 == 0xfd,
    }
}

fn address() -> impl Strategy<Value = String> {
    select(vec![
        "192.0.2.1",
        "10.0.0.1",
        "127.0.0.1",
        "10.9.9.9",
        "2001:db8::1",
        "fd00::1",
        "::ffff:10.0.0.1",
        "::ffff:192.0.2.9",
    ])
    .prop_map(str::to_owned)
}

/// A hop as proxies write it, or a malformed one.
fn hop() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => address(),
        2 => address().prop_map(|ip| if ip.contains(':') { format!("for=\"[{ip}]\"") } else { format!("for={ip}") }),
        1 => select(vec!["", "unknown", "_hidden", "1.2.3", "1.2.3.4:80", "[::1]:80", "for=", "for=_x", "for=unknown", "\"", "\\\"", "for=\"", "by=10.0.0.1", ";", "for=1.2.3.4;for=5.6.7.8"])
            .prop_map(str::to_owned),
        1 => "[ -~]{0,12}",
    ]
}

fn line() -> impl Strategy<Value = String> {
    let joint = select(vec![",", ", ", " , ", "\t,", ",,", ";"]);
    (proptest::collection::vec(hop(), 0..8), joint).prop_map(|(hops, joint)| hops.join(joint))
}

fn headers(name: &HeaderName, lines: &[String]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(name.clone(), HeaderValue::from_str(line).expect("a value"));
    }
    headers
}

/// The right-most hop that is not trusted, or the left-most one reported by a trusted proxy.
fn model(peer: IpAddr, lines: &[String]) -> IpAddr {
    let joined = lines.join(",");
    let mut client = peer;
    for hop in joined.split(',').rev().map(str::trim).filter(|hop| !hop.is_empty()).take(64) {
        let with_port =
            || hop.parse::<SocketAddr>().ok().filter(|with| with.port() != 0).map(|with| with.ip());
        let Some(next) = hop.parse::<IpAddr>().ok().or_else(with_port) else { break };
        client = next.to_canonical();
        if !trusted(client) {
            break;
        }
    }
    client
}

#[test]
fn plain_lists_are_walked_as_the_model_does() {
    let clients = walker("x-forwarded-for");
    let name = clients.header().clone();
    let peers = select(vec!["127.0.0.1", "10.1.1.1", "192.0.2.77", "fd00::5", "2001:db8::5"]);
    fuzz((peers, proptest::collection::vec(line(), 0..4)), |(peer, lines)| {
        let peer = ip(peer);
        let found = clients.find_client(Some(peer.to_canonical()), &headers(&name, &lines)).ip;
        let expected = if trusted(peer) { model(peer, &lines) } else { peer };
        prop_assert_eq!(found, expected, "{:?}", lines);
        Ok(())
    });
}

/// Text to the left of a trusted proxy's entry changes nothing.
#[test]
fn no_client_changes_its_address_by_writing_first() {
    let walkers = ["x-forwarded-for", "forwarded", "header:X-Real-Client"].map(walker);
    let strategy = (0..3usize, proptest::collection::vec(line(), 0..4), "[ -~]{0,30}", address());
    fuzz(strategy, |(kind, lines, forged, who)| {
        let (clients, peer) = (&walkers[kind], ip("127.0.0.1"));
        let name = clients.header().clone();
        let who = if trusted(ip(&who)) { "192.0.2.55".to_owned() } else { who };
        let written = match (kind, who.contains(':')) {
            (1, true) => format!("for=\"[{who}]\""),
            (1, false) => format!("for={who};proto=http"),
            _ => who.clone(),
        };
        let honest = clients
            .find_client(Some(peer.to_canonical()), &headers(&name, std::slice::from_ref(&written)))
            .ip;
        prop_assert_eq!(honest, ip(&who).to_canonical());
        for proxies in [vec![format!("{forged}, {written}")], vec![forged, written.clone()]] {
            let all: Vec<String> = lines.iter().cloned().chain(proxies).collect();
            let found = clients.find_client(Some(peer.to_canonical()), &headers(&name, &all)).ip;
            prop_assert_eq!(found, honest, "{:?}", all);
        }
        Ok(())
    });
}

/// Entries of untrusted peers are ignored, and nothing panics.
#[test]
fn untrusted_peers_keep_their_address() {
    let walkers = ["x-forwarded-for", "forwarded", "header:X-Real-Client"].map(walker);
    let bytes = proptest::collection::vec(
        prop_oneof![Just(b','), Just(b'"'), Just(b'='), 32..=126u8, 128..=255u8],
        0..80,
    );
    fuzz((0..3usize, proptest::collection::vec(bytes, 0..4)), |(kind, lines)| {
        let clients = &walkers[kind];
        let mut map = HeaderMap::new();
        for line in &lines {
            map.append(clients.header().clone(), HeaderValue::from_bytes(line).expect("a value"));
        }
        let stranger = ip("192.0.2.200");
        let client = clients.find_client(Some(stranger.to_canonical()), &map);
        prop_assert!(client.ip == stranger && !client.trusted_peer);
        clients.find_client(Some(ip("127.0.0.1")), &map);
        clients.find_client(None, &map);
        Ok(())
    });
}
