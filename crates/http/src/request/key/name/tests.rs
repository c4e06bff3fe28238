//! Names that operators read, and the keys that they lead back to.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;

use super::*;
use crate::request::key::{KeyHasher, KeyOutcome, hash_shared};
use sluicegate_config as config;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{Config, KeyPart, LocationId, MissingKey, ValueSource};

/// A configuration with the locations `/a/`, `/b/` twice, and clients by /24 and /64.
struct Named {
    config: Config,
    clients: ClientIp,
    identities: Locations,
    keys: KeyHasher,
    hasher: Option<ValueHasher>,
}

impl Named {
    fn new(server: &str, hasher: Option<&str>) -> Named {
        let yaml = format!(
            "server: {{ {server} }}
locations:
  - {{ path: /a/, upstream: demo }}
  - {{ path: /b/, upstream: demo }}
  - {{ path: /b/, host: b.test, upstream: demo }}
  - {{ path: \"~ \\\\.(png|a=b)$\", upstream: demo }}
"
        );
        let loaded = config::parse(&yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
        Named {
            clients: ClientIp::from(&loaded.config.server),
            identities: Locations::new(&loaded.config.locations),
            config: loaded.config,
            keys: KeyHasher::random(),
            hasher: hasher.map(ValueHasher::from_secret),
        }
    }

    fn naming(&self) -> KeyNaming<'_> {
        KeyNaming {
            clients: &self.clients,
            locations: &self.config.locations,
            identities: &self.identities,
            hashes_values: self.hasher.is_some(),
        }
    }

    /// The name of a request's key, and its hashes.
    fn name(&self, spec: &KeySpec, request: &NamedRequest) -> Option<(String, CounterKey, [u8; 16])> {
        request.with_subject(self, |subject| {
            let KeyOutcome::Key(key) = self.keys.hash_key(spec, subject) else { return None };
            let name = KeyName::capture(spec, subject, self.hasher.as_ref());
            Some((self.naming().render_name(spec, &name), key, hash_shared(spec, subject)?))
        })
    }

    fn shown(&self, parts: &[KeyPart], missing: MissingKey, request: &NamedRequest) -> String {
        self.name(&KeySpec::new(parts, missing), request).expect("a key").0
    }

    fn parse(&self, parts: &[KeyPart], missing: MissingKey, text: &str) -> Result<NamedKey, String> {
        let spec = KeySpec::new(parts, missing);
        self.naming().parse_name("per-x", &spec, text).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn assert_wrong(&self, parts: &[KeyPart], missing: MissingKey, text: &str, message: &str) {
        assert_eq!(self.parse(parts, missing, text), Err(message.to_owned()), "{text}");
    }
}

#[derive(Debug, Clone)]
struct NamedRequest {
    ip: IpAddr,
    account: Option<Vec<u8>>,
    tier: &'static str,
    path: Vec<u8>,
    location: Option<usize>,
    host: &'static str,
    method: Method,
    header: Option<Vec<u8>>,
}

impl NamedRequest {
    fn from(ip: &str) -> NamedRequest {
        NamedRequest {
            ip: ip.parse().unwrap(),
            account: None,
            tier: "default",
            path: b"/".to_vec(),
            location: Some(0),
            host: "a.test",
            method: Method::GET,
            header: None,
        }
    }

    fn of_account(account: &str) -> NamedRequest {
        NamedRequest { account: Some(account.into()), ..NamedRequest::from("192.0.2.7") }
    }

    fn with_subject<T>(&self, named: &Named, act: impl FnOnce(&KeyInput<'_>) -> T) -> T {
        let mut headers = HeaderMap::new();
        if let Some(value) = &self.header {
            headers.insert("x-key", HeaderValue::from_bytes(value).unwrap());
        }
        act(&KeyInput {
            ip: named.clients.mask_address(self.ip),
            ip_key: None,
            account: self.account.as_deref(),
            tier: self.tier,
            path: &self.path,
            query: None,
            location: self.location.map(|index| named.identities.identity_of(LocationId(index))),
            host: self.host,
            method: &self.method,
            headers: &headers,
            trusted_peer: false,
            token: None,
            body: None,
        })
    }
}

fn x_key() -> KeyPart {
    KeyPart::Source(ValueSource::Header(HeaderName::from_static("x-key")))
}

fn plain() -> Named {
    Named::new("ipv4_prefix: 32", None)
}

#[test]
fn each_part_has_its_name() {
    let named = plain();
    let request = NamedRequest {
        header: Some(b"k 1".to_vec()),
        path: b"/caf\xc3\xa9/100%,a=b".to_vec(),
        ..NamedRequest::of_account("al,ice\n<b>\u{ff}")
    };
    for (part, shown) in [
        (KeyPart::Ip, "ip=192.0.2.7"),
        (KeyPart::Account, "account=al%2Cice%0A%3Cb%3E%C3%BF"),
        (KeyPart::Tier, "tier=default"),
        (KeyPart::Priority, "priority=3"),
        (KeyPart::Uri, "uri=/caf%C3%A9/100%25%2Ca%3Db"),
        (KeyPart::Location, "location=/a/"),
        (KeyPart::Host, "host=a.test"),
        (KeyPart::Method, "method=GET"),
        (KeyPart::Global, "global"),
        (x_key(), "header:x-key=k%201"),
    ] {
        assert_eq!(named.shown(&[part], MissingKey::Reject, &request), shown);
    }
    let compound = [KeyPart::Method, KeyPart::Ip, KeyPart::Global];
    assert_eq!(named.shown(&compound, MissingKey::Ip, &request), "method=GET,ip=192.0.2.7,global");
}

#[test]
fn addresses_are_shown_as_they_are_masked() {
    let named = Named::new("ipv4_prefix: 24", None);
    let shown = |ip| named.shown(&[KeyPart::Ip], MissingKey::Ip, &NamedRequest::from(ip));
    assert_eq!(
        (shown("192.0.2.7"), shown("2001:db8:1:2:3::4")),
        ("ip=192.0.2.0/24".into(), "ip=2001:db8:1:2::/64".into())
    );
}

#[test]
fn what_stands_in_for_a_missing_part_is_told_apart() {
    let named = plain();
    let shown = |part, missing| named.shown(&[part], missing, &NamedRequest::from("192.0.2.7"));
    assert_eq!(shown(KeyPart::Account, MissingKey::Ip), "missing:account=192.0.2.7");
    assert_eq!(shown(KeyPart::Account, MissingKey::Shared), "missing:account");
    assert_eq!(shown(x_key(), MissingKey::Ip), "missing:header:x-key=192.0.2.7");
    let nowhere = NamedRequest { location: None, ..NamedRequest::from("192.0.2.7") };
    assert_eq!(named.shown(&[KeyPart::Location], MissingKey::Ip, &nowhere), "location=none");
}

#[test]
fn locations_of_one_name_are_told_apart() {
    let named = plain();
    let at = |location| NamedRequest { location: Some(location), ..NamedRequest::from("192.0.2.7") };
    let [first, second] = [1, 2].map(|index| named.shown(&[KeyPart::Location], MissingKey::Ip, &at(index)));
    assert!(first.starts_with("location=/b/#") && second.starts_with("location=/b/#") && first != second);
    let error = named.parse(&[KeyPart::Location], MissingKey::Ip, "location=/b/").unwrap_err();
    assert!(
        error.starts_with("several locations are called `/b/`: write ") && error.contains(&first),
        "{error}"
    );
    named.assert_wrong(&[KeyPart::Location], MissingKey::Ip, "location=/c/", "no location is called `/c/`");
}

#[test]
fn long_values_are_cut_and_hidden() {
    let named = plain();
    let long = "x".repeat(300);
    let both = [KeyPart::Account, KeyPart::Ip];
    let shown = named.shown(&both, MissingKey::Ip, &NamedRequest::of_account(&long));
    assert_eq!(shown, format!("account={}…,ip=…", "x".repeat(45)));
    assert_eq!(named.parse(&both, MissingKey::Ip, &shown), Ok(NamedKey::Hidden));
    let encoded = shown.replace('…', "%E2%80%A6");
    assert_eq!(named.parse(&both, MissingKey::Ip, &encoded), Ok(NamedKey::Hidden));
    assert!(is_same_name(&encoded, &shown) && !is_same_name(&encoded, "account=x…,ip=…"));
    assert_eq!(size_of::<KeyName>(), 48);
}

/// What is left of the bytes after the parts is the account's, and without a hash there is nothing to show.
#[test]
fn a_hashed_account_is_kept_in_clear_as_far_as_it_fits() {
    let named = Named::new("ipv4_prefix: 32", Some("salt"));
    let open = |parts: &[KeyPart], account: Option<&str>| {
        let request = account.map_or_else(|| NamedRequest::from("192.0.2.7"), NamedRequest::of_account);
        let spec = KeySpec::new(parts, MissingKey::Ip);
        let capture = |hasher| {
            request.with_subject(&named, |subject| {
                named.naming().render_account(&spec, &KeyName::capture(&spec, subject, hasher))
            })
        };
        assert_eq!(capture(None), None, "it is in clear anyway");
        capture(named.hasher.as_ref())
    };
    let uuid = "550e8400-e29b-41d4-a716-446655440000";
    assert_eq!(open(&[KeyPart::Account], Some(uuid)), Some(format!("account={uuid}")));
    let longer = format!("{uuid}x");
    assert_eq!(open(&[KeyPart::Account], Some(&longer)), Some(format!("account={uuid}…")));
    let both = [KeyPart::Ip, KeyPart::Account];
    assert_eq!(open(&both, Some("joe")).as_deref(), Some("ip=192.0.2.7,account=joe"));
    assert_eq!(open(&[KeyPart::Uri, x_key()], Some("joe")), None);
    assert_eq!(open(&both, None), None, "the request has none");
}

#[test]
fn secrets_are_kept_and_shown_as_hashes() {
    let named = Named::new("ipv4_prefix: 32", Some("salt"));
    let long = format!("hunter2{}", "x".repeat(300));
    let request =
        NamedRequest { header: Some(long.clone().into_bytes()), ..NamedRequest::of_account("alice") };
    let parts = [KeyPart::Account, x_key(), KeyPart::Uri, KeyPart::Ip];
    let hasher = ValueHasher::from_secret("salt");
    let hash = |value: &str| hasher.hash_value(value.as_bytes());
    let shown = named.shown(&parts, MissingKey::Ip, &request);
    let expected =
        format!("account=#{:016x},header:x-key=#{:016x},uri=/,ip=192.0.2.7", hash("alice"), hash(&long));
    assert_eq!(shown, expected);
    assert_eq!(named.parse(&parts, MissingKey::Ip, &shown), Ok(NamedKey::Hidden));
    let typed = shown.replace('#', "%23");
    assert_eq!(named.parse(&parts, MissingKey::Ip, &typed), Ok(NamedKey::Hidden));
    assert!(is_same_name(&typed, &shown));
    let spec = KeySpec::new(&parts, MissingKey::Ip);
    let name =
        request.with_subject(&named, |subject| KeyName::capture(&spec, subject, named.hasher.as_ref()));
    assert!(!format!("{name:?}").contains("alice"));
    let open = expected.replacen(&format!("#{:016x}", hash("alice")), "alice", 1);
    assert_eq!(named.naming().render_account(&spec, &name), Some(open));
    // A plain name leads to the key as well, and a text that is no hash is a name.
    assert!(matches!(
        named.parse(&[KeyPart::Account], MissingKey::Ip, "account=alice"),
        Ok(NamedKey::Known(_))
    ));
    assert!(matches!(
        named.parse(&[KeyPart::Account], MissingKey::Ip, "account=#12"),
        Ok(NamedKey::Known(_))
    ));
}

#[test]
fn an_address_is_masked_as_a_clients() {
    let named = Named::new("ipv4_prefix: 24", None);
    let spec = KeySpec::new(&[KeyPart::Ip], MissingKey::Ip);
    for (typed, client) in [
        ("ip=192.0.2.7", "192.0.2.200"),
        ("ip=192.0.2.0/24", "192.0.2.1"),
        ("ip=::ffff:192.0.2.9", "192.0.2.1"),
        ("ip=2001:db8:1:2:ffff::", "2001:db8:1:2::1"),
        ("ip=2001:db8:1:2::/64", "2001:db8:1:2::1"),
        ("ip=2001%3Adb8:1:2::%2F64", "2001:db8:1:2::1"),
    ] {
        let (_, key, shared) = named.name(&spec, &NamedRequest::from(client)).unwrap();
        let Ok(NamedKey::Known(parsed)) = named.parse(&[KeyPart::Ip], MissingKey::Ip, typed) else {
            panic!("{typed}");
        };
        assert_eq!((parsed.counter_key(&named.keys), parsed.shared_key()), (key, shared), "{typed}");
    }
    let wrong = "limit per-x counts such clients by /24, not by /32: write ip=192.0.2.0";
    named.assert_wrong(&[KeyPart::Ip], MissingKey::Ip, "ip=192.0.2.7/32", wrong);
}

#[test]
fn a_wrong_name_is_told_how_to_be_written() {
    let named = plain();
    let by_ip = "limit per-x counts by ip: write ip=ADDRESS";
    for text in ["", "ip", "192.0.2.7", "account=alice", "missing:account=192.0.2.7", "ipx=1"] {
        named.assert_wrong(&[KeyPart::Ip], MissingKey::Ip, text, by_ip);
    }
    named.assert_wrong(&[KeyPart::Ip], MissingKey::Ip, "ip=", "`ip` has no value: write ip=ADDRESS");
    named.assert_wrong(&[KeyPart::Ip], MissingKey::Ip, "ip=x", "`x` is not an address: write ip=ADDRESS");
    let both = [KeyPart::Account, x_key(), KeyPart::Global];
    let by_both = "limit per-x counts by account and header:x-key and global: \
                   write account=NAME,header:x-key=VALUE,global";
    for text in [
        "account=a",
        "header:x-key=1,account=a,global",
        "account=a,header:x-key=1,global=1",
        "account=a,,global",
    ] {
        named.assert_wrong(&both, MissingKey::Ip, text, by_both);
    }
    let by_account = "limit per-x counts by account: write account=NAME";
    named.assert_wrong(&[KeyPart::Account], MissingKey::Shared, "missing:account=192.0.2.7", by_account);
    named.assert_wrong(&[KeyPart::Account], MissingKey::Reject, "missing:account", by_account);
    named.assert_wrong(&[KeyPart::Host], MissingKey::Ip, "host=a%20b", "`a%20b` is not a host");
    named.assert_wrong(&[KeyPart::Method], MissingKey::Ip, "method=a b", "`a b` is not a method");
}

#[test]
fn spellings_of_one_value_are_one_key() {
    let named = plain();
    let same = |part: KeyPart, one: &str, other: &str| {
        let parse = |text| named.parse(std::slice::from_ref(&part), MissingKey::Ip, text).unwrap();
        assert_eq!(parse(one), parse(other));
        assert_ne!(parse(one), NamedKey::Hidden);
    };
    same(KeyPart::Host, "host=A.test.:80", "host=a.test");
    same(KeyPart::Method, "method=get", "method=GET");
    same(KeyPart::Account, "account=a,b", "account=a%2Cb");
    same(x_key(), "header:x-key=1", "header%3Ax-key=1");
}

fn any_part() -> impl Strategy<Value = KeyPart> {
    prop::sample::select(vec![
        KeyPart::Ip,
        KeyPart::Account,
        KeyPart::Tier,
        KeyPart::Uri,
        KeyPart::Location,
        KeyPart::Host,
        KeyPart::Method,
        KeyPart::Global,
        x_key(),
        KeyPart::Source(ValueSource::Query("a=b,c".to_owned())),
    ])
}

fn any_request() -> impl Strategy<Value = NamedRequest> {
    let address = prop_oneof![
        any::<u32>().prop_map(|v4| IpAddr::V4(v4.into())),
        any::<u128>().prop_map(|v6| IpAddr::V6(v6.into()))
    ];
    let value = || prop::collection::vec(any::<u8>(), 0..8);
    let header = prop::collection::vec(prop_oneof![32_u8..127, 128_u8..], 1..8);
    let rest =
        (prop::option::of(0..4_usize), prop::sample::select(vec!["", "a.test", "[::1]"]), any::<bool>());
    (address, prop::option::of(value()), value(), prop::option::of(header), rest).prop_map(
        |(ip, account, path, header, (location, host, posts))| NamedRequest {
            ip,
            account,
            tier: "gold!#",
            path: [b"/", &path[..]].concat(),
            location,
            host,
            method: if posts { Method::POST } else { Method::GET },
            header,
        },
    )
}

proptest! {
    /// Every name that is shown leads back to both hashes of the key.
    #[test]
    fn a_shown_name_names_its_key(
        request in any_request(),
        parts in prop::collection::vec(any_part(), 1..4),
        missing in prop::sample::select(vec![MissingKey::Ip, MissingKey::Shared]),
        prefix in prop::sample::select(vec!["ipv4_prefix: 32", "ipv4_prefix: 9, ipv6_prefix: 100"]),
    ) {
        let named = Named::new(prefix, None);
        let spec = KeySpec::new(&parts, missing);
        let (shown, key, shared) = named.name(&spec, &request).unwrap();
        prop_assert!(shown.ends_with('…') || shown.contains('…') || shown.is_ascii(), "{}", shown);
        match named.naming().parse_name("per-x", &spec, &shown) {
            Ok(NamedKey::Known(parsed)) => {
                // The network of a key without an address is not in its name.
                prop_assert_eq!(parsed.counter_key(&named.keys).id, key.id, "{}", shown);
                prop_assert_eq!(parsed.shared_key(), shared);
            }
            Ok(NamedKey::Hidden) => prop_assert!(shown.contains('…'), "{}", shown),
            Err(error) => prop_assert!(false, "{}: {}", shown, error),
        }
    }

    /// Whatever an operator types, there is an answer.
    #[test]
    fn no_text_breaks_the_parser(text in ".{0,60}", parts in prop::collection::vec(any_part(), 1..3)) {
        let named = plain();
        let spec = KeySpec::new(&parts, MissingKey::Ip);
        let _ = named.naming().parse_name("per-x", &spec, &text);
        let _ = named.naming().parse_name("per-x", &spec, &format!("ip={text}"));
    }
}
