//! Requests that share a key, and requests that must not.

use std::collections::HashMap;

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use sluicegate_model::ValueSource;

/// The facts of a request that tests vary.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct KeyedRequest {
    ip: IpAddr,
    account: Option<Vec<u8>>,
    tier: &'static str,
    path: &'static str,
    query: Option<&'static str>,
    location: Option<u64>,
    host: &'static str,
    method: Method,
    header: Vec<Vec<u8>>,
}

fn request() -> KeyedRequest {
    KeyedRequest {
        ip: ip("192.0.2.1"),
        account: None,
        tier: "default",
        path: "/",
        query: None,
        location: Some(7),
        host: "a.test",
        method: Method::GET,
        header: Vec::new(),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn x_key() -> KeyPart {
    KeyPart::Source(ValueSource::Header(HeaderName::from_static("x-key")))
}

fn outcome_of(
    keys: &KeyHasher,
    parts: &[KeyPart],
    missing: MissingKey,
    request: &KeyedRequest,
) -> KeyOutcome {
    let mut headers = HeaderMap::new();
    for value in &request.header {
        headers.append("x-key", HeaderValue::from_bytes(value).expect("a header value"));
    }
    let subject = KeyInput {
        ip: request.ip,
        ip_key: None,
        account: request.account.as_deref(),
        tier: request.tier,
        path: request.path.as_bytes(),
        query: request.query,
        location: request.location,
        host: request.host,
        method: &request.method,
        headers: &headers,
        trusted_peer: false,
        token: None,
        body: None,
    };
    keys.hash_key(&KeySpec::new(parts, missing), &subject)
}

fn key(keys: &KeyHasher, parts: &[KeyPart], request: &KeyedRequest) -> CounterKey {
    match outcome_of(keys, parts, MissingKey::Ip, request) {
        KeyOutcome::Key(key) => key,
        other => panic!("no key but {other:?}"),
    }
}

fn with_account(account: &str) -> KeyedRequest {
    KeyedRequest { account: Some(account.as_bytes().to_vec()), ..request() }
}

fn with_header(values: &[&str]) -> KeyedRequest {
    KeyedRequest { header: values.iter().map(|value| value.as_bytes().to_vec()).collect(), ..request() }
}

#[test]
fn each_part_counts_by_its_own_fact_alone() {
    let keys = KeyHasher::random();
    let base = KeyedRequest { account: Some(b"alice".to_vec()), header: vec![b"h".to_vec()], ..request() };
    let changes: [(KeyPart, KeyedRequest); 8] = [
        (KeyPart::Ip, KeyedRequest { ip: ip("192.0.2.2"), ..base.clone() }),
        (KeyPart::Account, KeyedRequest { account: Some(b"bob".to_vec()), ..base.clone() }),
        (KeyPart::Tier, KeyedRequest { tier: "gold", ..base.clone() }),
        (KeyPart::Uri, KeyedRequest { path: "/other", ..base.clone() }),
        (KeyPart::Location, KeyedRequest { location: Some(8), ..base.clone() }),
        (KeyPart::Host, KeyedRequest { host: "b.test", ..base.clone() }),
        (KeyPart::Method, KeyedRequest { method: Method::POST, ..base.clone() }),
        (x_key(), KeyedRequest { header: vec![b"i".to_vec()], ..base.clone() }),
    ];
    for (part, _) in &changes {
        for (changed, other) in &changes {
            let same = key(&keys, std::slice::from_ref(part), &base)
                == key(&keys, std::slice::from_ref(part), other);
            assert_eq!(same, part != changed, "{part:?} when {changed:?} changes");
        }
    }
    for (_, other) in &changes {
        assert_eq!(key(&keys, &[KeyPart::Global], &base), key(&keys, &[KeyPart::Global], other));
    }
    let query = KeyedRequest { query: Some("x=1"), ..base.clone() };
    assert_eq!(
        key(&keys, &[KeyPart::Uri], &base),
        key(&keys, &[KeyPart::Uri], &query),
        "the query is no part of uri"
    );
}

#[test]
fn the_key_of_a_connection_is_the_key_of_its_requests() {
    let keys = KeyHasher::random();
    let (headers, method) = (HeaderMap::new(), Method::GET);
    for address in ["192.0.2.1", "2001:db8:1:2::"] {
        let plain = key(&keys, &[KeyPart::Ip], &KeyedRequest { ip: ip(address), ..request() });
        assert_eq!(plain, keys.hash_ip(ip(address)));
    }
    let kept = CounterKey::new(1, 2);
    let subject = KeyInput {
        ip: ip("192.0.2.1"),
        ip_key: Some(kept),
        account: None,
        tier: "default",
        path: b"/",
        query: None,
        location: None,
        host: "",
        method: &method,
        headers: &headers,
        trusted_peer: false,
        token: None,
        body: None,
    };
    let spec = KeySpec::new(&[KeyPart::Ip], MissingKey::Reject);
    assert_eq!(keys.hash_key(&spec, &subject), KeyOutcome::Key(kept));
    assert_eq!(keys.clone().hash_ip(ip("192.0.2.1")), keys.hash_ip(ip("192.0.2.1")), "workers agree");
    assert_ne!(
        KeyHasher::random().hash_ip(ip("192.0.2.1")),
        keys.hash_ip(ip("192.0.2.1")),
        "processes do not"
    );
}

#[test]
fn the_secret_brings_every_key_back() {
    let (keys, strange) = (KeyHasher::random(), KeyHasher::random());
    let again = KeyHasher::from_secret(keys.secret());
    let parts = [KeyPart::Account, x_key(), KeyPart::Uri, KeyPart::Location];
    let request = KeyedRequest { header: vec![b"h".to_vec()], ..with_account("alice") };
    assert_eq!(key(&again, &parts, &request), key(&keys, &parts, &request));
    assert_eq!(again.hash_ip(ip("192.0.2.1")), keys.hash_ip(ip("192.0.2.1")), "its prefix too");
    assert_ne!(strange.hash_ip(ip("192.0.2.1")).prefix, keys.hash_ip(ip("192.0.2.1")).prefix);
}

/// A file of counters outlives the program that wrote it, so these numbers must not change.
#[test]
fn keys_are_the_same_in_every_version() {
    let keys = KeyHasher::from_secret(*b"0123456789abcdef");
    let id = |parts: &[KeyPart]| key(&keys, parts, &with_account("alice")).id;
    let ids = [id(&[KeyPart::Ip]), id(&[KeyPart::Account, KeyPart::Location])];
    assert_eq!(ids, [0x728723db5694910d1167595a910c617e, 0x875d2955dcd050cf09672bba2a29fca]);
}

#[test]
fn a_missing_part_falls_back_as_configured() {
    let keys = KeyHasher::random();
    let absent: [(KeyPart, KeyedRequest); 4] = [
        (KeyPart::Account, request()),
        (KeyPart::Account, with_account("")),
        (x_key(), with_header(&[""])),
        (KeyPart::Host, KeyedRequest { host: "", ..request() }),
    ];
    for (part, absent) in absent {
        let outcome = |missing, ip| {
            outcome_of(&keys, std::slice::from_ref(&part), missing, &KeyedRequest { ip, ..absent.clone() })
        };
        let (here, there) = (ip("192.0.2.1"), ip("192.0.2.2"));
        assert_eq!(outcome(MissingKey::Reject, here), KeyOutcome::Missing);
        assert_eq!(outcome(MissingKey::Skip, here), KeyOutcome::Skip);
        assert_eq!(outcome(MissingKey::Ip, here), outcome(MissingKey::Ip, here));
        assert_ne!(outcome(MissingKey::Ip, here), outcome(MissingKey::Ip, there));
        assert_eq!(outcome(MissingKey::Shared, here), outcome(MissingKey::Shared, there));
        assert!(matches!(outcome(MissingKey::Shared, here), KeyOutcome::Key(_)));
    }
}

#[test]
fn a_fallback_is_no_account() {
    let keys = KeyHasher::random();
    let fallback = key(&keys, &[KeyPart::Account], &request());
    let octets = KeyedRequest { account: Some(vec![192, 0, 2, 1]), ..request() };
    for other in [with_account("192.0.2.1"), with_account("\u{4}\u{c0}"), octets] {
        assert_ne!(key(&keys, &[KeyPart::Account], &other).id, fallback.id);
    }
    assert_ne!(keys.hash_ip(ip("192.0.2.1")).id, fallback.id, "nor the client's own key");
    let shared = outcome_of(&keys, &[KeyPart::Account], MissingKey::Shared, &request());
    let global = outcome_of(&keys, &[KeyPart::Global], MissingKey::Shared, &request());
    assert_ne!(shared, global);
}

#[test]
fn in_a_compound_key_only_the_missing_part_falls_back() {
    let keys = KeyHasher::random();
    let parts = [x_key(), KeyPart::Account];
    let of = |header: &str, account: &str, address| {
        let header = vec![header.as_bytes().to_vec()];
        let request = KeyedRequest { ip: ip(address), header, ..with_account(account) };
        key(&keys, &parts, &request).id
    };
    assert_ne!(of("a", "", "192.0.2.1"), of("b", "", "192.0.2.1"), "the header still counts");
    assert_ne!(of("a", "", "192.0.2.1"), of("a", "", "192.0.2.2"), "the address stands in for the account");
    assert_eq!(of("a", "x", "192.0.2.1"), of("a", "x", "192.0.2.2"), "nothing is missing here");
    assert_ne!(of("", "a", "192.0.2.1"), of("a", "", "192.0.2.1"), "which part is missing matters");
}

#[test]
fn a_repeated_source_is_rejected_under_any_missing_key() {
    let keys = KeyHasher::random();
    for missing in [MissingKey::Ip, MissingKey::Shared, MissingKey::Reject, MissingKey::Skip] {
        let twice = with_header(&["a", "a"]);
        assert_eq!(outcome_of(&keys, &[KeyPart::Ip, x_key()], missing, &twice), KeyOutcome::Duplicate);
    }
}

#[test]
fn parts_do_not_run_into_each_other() {
    let keys = KeyHasher::random();
    let parts = [KeyPart::Account, x_key()];
    let of = |account: &str, header: &str| {
        let request = KeyedRequest { header: vec![header.as_bytes().to_vec()], ..with_account(account) };
        key(&keys, &parts, &request).id
    };
    assert_ne!(of("ab", "c"), of("a", "bc"));
    assert_ne!(of("a", "b"), of("b", "a"));
}

#[test]
fn an_address_does_not_run_into_the_next_part() {
    let keys = KeyHasher::random();
    let parts = [KeyPart::Ip, KeyPart::Account];
    // Without the mark of its family, the text of the second would be that of the first.
    let tail = [&[KeyPartTag::Account as u8][..], &1_u64.to_le_bytes(), b"z"].concat();
    let account = [b"abc", &tail[..]].concat();
    let octets =
        [&[192, 0, 2, 1, KeyPartTag::Account as u8][..], &(account.len() as u64).to_le_bytes(), b"abc"]
            .concat();
    let octets: [u8; 16] = octets.try_into().expect("sixteen bytes");
    let long = KeyedRequest { account: Some(account), ..request() };
    let short = KeyedRequest { ip: IpAddr::from(octets), ..with_account("z") };
    assert_ne!(key(&keys, &parts, &long).id, key(&keys, &parts, &short).id);
}

#[test]
fn long_values_stay_distinct() {
    let keys = KeyHasher::random();
    let long = "x".repeat(32 * 1024);
    let ids: Vec<_> =
        ["a", "b", ""].map(|end| key(&keys, &[x_key()], &with_header(&[&(long.clone() + end)])).id).into();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
}

#[test]
fn requests_without_a_location_share_a_key_of_their_own() {
    let keys = KeyHasher::random();
    let none = KeyedRequest { location: None, ..request() };
    assert!(matches!(outcome_of(&keys, &[KeyPart::Location], MissingKey::Reject, &none), KeyOutcome::Key(_)));
    let zero = KeyedRequest { location: Some(0), ..request() };
    assert_ne!(key(&keys, &[KeyPart::Location], &none).id, key(&keys, &[KeyPart::Location], &zero).id);
}

#[test]
fn neighbours_share_a_prefix_and_strangers_do_not() {
    let keys = KeyHasher::random();
    let prefix = |address: &str| keys.hash_ip(ip(address)).prefix;
    assert_eq!(prefix("192.0.2.1"), prefix("192.0.255.255"));
    assert_ne!(prefix("192.0.2.1"), prefix("192.1.2.1"));
    assert_eq!(prefix("2001:db8:1::"), prefix("2001:db8:ffff:1::"));
    assert_ne!(prefix("2001:db8:1::"), prefix("2001:db9:1::"));
    assert_ne!(prefix("192.0.2.1"), prefix("0:c000::"), "families do not meet");
    let compound = KeyedRequest { ip: ip("192.0.9.9"), ..with_account("alice") };
    assert_eq!(key(&keys, &[KeyPart::Account, KeyPart::Ip], &compound).prefix, prefix("192.0.2.1"));
    let fallback = KeyedRequest { ip: ip("192.0.9.9"), ..request() };
    assert_eq!(key(&keys, &[KeyPart::Account], &fallback).prefix, prefix("192.0.2.1"));
    let named = KeyedRequest { ip: ip("192.0.9.9"), ..with_account("alice") };
    assert_eq!(key(&keys, &[KeyPart::Account], &named).prefix, prefix("192.0.2.1"));
    let unknown = |account| {
        let request = KeyedRequest { ip: ip("0.0.0.0"), ..with_account(account) };
        key(&keys, &[KeyPart::Account], &request).prefix
    };
    let prefixes: Vec<u64> = ["a", "b", "c", "d"].map(unknown).into();
    assert!(prefixes.iter().any(|one| *one != prefixes[0]) && prefixes.iter().all(|one| *one < 1024));
    let elsewhere = KeyedRequest { ip: ip("198.51.100.1"), ..with_account("alice") };
    assert_eq!(key(&keys, &[KeyPart::Account], &elsewhere).id, key(&keys, &[KeyPart::Account], &named).id);
    let distinct: std::collections::HashSet<_> =
        (0..=255).map(|net| prefix(&format!("10.{net}.0.1"))).collect();
    assert_eq!(distinct.len(), 256);
}

#[test]
fn turns_fall_back_to_the_ip_under_any_missing_key() {
    let text =
        "limits: { sms: { algorithm: leaky_bucket, rate: 1/s, missing_key: reject, fair_by: account } }
locations: [{ path: /, upstream: demo, limits: sms }]";
    let limit = &sluicegate_config::parse(text, "gateway.yaml").expect("valid").config.limits[0];
    assert_eq!(
        LimitKeys::from_limit(limit).fair_key,
        Some(KeySpec::new(&[KeyPart::Account], MissingKey::Ip))
    );
    assert!(
        LimitKeys::from_limit(&sluicegate_model::LimitConfig { fair_by: vec![], ..limit.clone() })
            .fair_key
            .is_none()
    );
}

fn any_request() -> impl Strategy<Value = KeyedRequest> {
    let text = || proptest::collection::vec(b'a'..=b'c', 0..3);
    let address = prop_oneof![
        (0..4_u32).prop_map(|last| IpAddr::V4(std::net::Ipv4Addr::from_bits(last))),
        (0..4_u128).prop_map(|last| IpAddr::V6(std::net::Ipv6Addr::from_bits(last))),
    ];
    let rest = (proptest::option::of(0..3_u64), proptest::sample::select(vec!["", "a", "b", "ab"]));
    let heads = proptest::collection::vec(text(), 0..2);
    (address, proptest::option::of(text()), heads, rest).prop_map(
        |(ip, account, header, (location, host))| KeyedRequest {
            ip,
            account,
            header,
            location,
            host,
            ..request()
        },
    )
}

proptest! {
    /// Equal subjects have equal keys, distinct ones distinct keys; an empty value is an absent one.
    #[test]
    fn distinct_subjects_have_distinct_ids(requests in proptest::collection::vec(any_request(), 2..40)) {
        let keys = KeyHasher::random();
        let parts = [KeyPart::Account, x_key(), KeyPart::Ip, KeyPart::Host, KeyPart::Location];
        let mut seen: HashMap<u128, KeyedRequest> = HashMap::new();
        for mut request in requests {
            let id = key(&keys, &parts, &request).id;
            request.account = request.account.filter(|account| !account.is_empty());
            request.header.retain(|value| !value.is_empty());
            prop_assert_eq!(seen.entry(id).or_insert_with(|| request.clone()), &request);
        }
        let distinct: std::collections::HashSet<_> = seen.values().collect();
        prop_assert_eq!(distinct.len(), seen.len());
    }
}

/// Another text would make every snapshot of bans foreign to the next version.
#[test]
fn the_debug_text_of_a_key_is_stable() {
    let spec = KeySpec::new(&[KeyPart::Ip], MissingKey::Ip);
    assert_eq!(format!("{spec:?}"), "KeySpec { parts: [Ip], missing: Ip, shape: Ip }");
}

#[test]
fn only_trusted_proxies_tell_a_priority() {
    let mut headers = HeaderMap::new();
    let urgency = |headers: &HeaderMap, trusted_peer| {
        let subject = KeyInput {
            ip: ip("192.0.2.1"),
            ip_key: None,
            account: None,
            tier: "default",
            path: b"/",
            query: None,
            location: None,
            host: "",
            method: &Method::GET,
            headers,
            trusted_peer,
            token: None,
            body: None,
        };
        let spec = KeySpec::new(&[KeyPart::Priority], MissingKey::Reject);
        let KeyOutcome::Key(key) = KeyHasher::from_secret([7; 16]).hash_key(&spec, &subject) else {
            panic!("a request has always a priority");
        };
        (subject.urgency(), key)
    };
    let default = urgency(&headers, false);
    headers.insert("priority", HeaderValue::from_static("u=1, i"));
    let trusted = urgency(&headers, true);
    assert_eq!((default.0, trusted.0), (3, 1));
    assert_ne!(default.1, trusted.1);
    assert_eq!(urgency(&headers, false), default);
}
