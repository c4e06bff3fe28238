//! Behaviours of envoyproxy/ratelimit, as tables of calls: rules, hits, shadow mode, replaces, units.

use super::client::*;
use crate::*;

const RULES: &str = "
service:
  listen: 127.0.0.1:0
  domains:
    basic:
      - { match: { key1: \"*\" }, exact: true, limits: one }
      - { match: { key1: value1 }, exact: true, limits: two }
      - { match: { key1: \"pre*\" }, exact: true, limits: shared }
      - { match: { free: \"*\" }, limits: [] }
      - { match: { shadow: \"*\" }, limits: shadow }
    replaced:
      - { match: { group: \"*\" }, name: group, limits: narrow }
      - { match: { vip: \"yes\" }, replaces: [group], limits: wide }
    units:
      - { match: { unit: second }, limits: per-second }
      - { match: { unit: minute }, limits: per-minute }
      - { match: { unit: day }, limits: per-day }
limits:
  one: { key: header:key1, algorithm: fixed_window, rate: 1/1h }
  two: { key: header:key1, algorithm: fixed_window, rate: 2/1h }
  shared: { key: global, algorithm: fixed_window, rate: 3/1h }
  shadow: { key: header:shadow, algorithm: fixed_window, rate: 1/1h, dry_run: true }
  narrow: { key: header:group, algorithm: fixed_window, rate: 1/1h }
  wide: { key: header:vip, algorithm: fixed_window, rate: 5/1h }
  per-second: { key: global, rate: 100/1s, burst: 100 }
  per-minute: { key: global, rate: 100/1m, burst: 100 }
  per-day: { key: global, rate: 100/1d, burst: 100 }
locations: []
";

/// The codes of a call with one descriptor, asked several times.
fn codes(envoy: &mut Envoy, domain: &str, entries: &[(&str, &str)], times: usize) -> Vec<i32> {
    (0..times).map(|_| envoy.ask(domain, &[entries]).ok().overall).collect()
}

#[test]
fn rules_by_value_by_prefix_and_without_limits() {
    let gateway = Gateway::start(RULES);
    let mut envoy = Envoy::connect(&gateway);
    const OVER: i32 = OVER_LIMIT;
    for (entries, expected) in [
        (&[("key1", "any")][..], &[OK, OVER][..]),
        // Each value of a wildcard has a counter of its own.
        (&[("key1", "other")], &[OK, OVER]),
        // The rule of the value comes before the wildcard.
        (&[("key1", "value1")], &[OK, OK, OVER]),
        // The values of a prefix share one counter, by the key of the limit.
        (&[("key1", "pre1")], &[OK, OK]),
        (&[("key1", "pre2")], &[OK, OVER]),
        // An exact rule leaves no room for other entries.
        (&[("key1", "any"), ("key2", "x")], &[OK, OK, OK]),
        (&[("free", "1")], &[OK, OK, OK]),
        (&[("shadow", "1")], &[OK, OK, OK]),
    ] {
        assert_eq!(codes(&mut envoy, "basic", entries, expected.len()), expected, "{entries:?}");
    }
    // A limit in shadow mode is told although it does not act.
    let shadow = envoy.ask("basic", &[&[("shadow", "1")]]).ok();
    assert_eq!(shadow.statuses[0].limit, Some(("shadow".into(), 1, HOUR)));
    assert_eq!(shadow.statuses[0].remaining, 0);
}

#[test]
fn hits_are_counted_peeked_at_and_given_back() {
    let gateway = Gateway::start(RULES);
    let mut envoy = Envoy::connect(&gateway);
    let mut ask = |request: u32, own: Option<u64>, negative: bool| {
        let mut call = call_of("replaced", &[&[("vip", "yes")]]);
        call.hits = request;
        call.descriptors[0].hits = own.map(|value| Number { value });
        call.descriptors[0].negative = negative;
        let answer = envoy.call(&call).ok();
        (answer.overall, answer.statuses[0].remaining)
    };
    for (request, own, negative, expected) in [
        // Hits of 0 for the whole call count 1.
        (0, None, false, (OK, 4)),
        (2, None, false, (OK, 2)),
        // Those of a descriptor replace them, and 0 only looks.
        (5, Some(1), false, (OK, 1)),
        (5, Some(0), false, (OK, 1)),
        (2, None, false, (OVER_LIMIT, 1)),
        (1, None, false, (OK, 0)),
        (0, Some(0), false, (OVER_LIMIT, 0)),
        // Hits that are given back never make more than there is.
        (0, Some(2), true, (OK, 2)),
        (3, None, true, (OK, 5)),
        (0, Some(100), true, (OK, 5)),
        (0, None, false, (OK, 4)),
        // More than the limit never passes.
        (6, None, false, (OVER_LIMIT, 4)),
    ] {
        assert_eq!(ask(request, own, negative), expected, "{request} {own:?} {negative}");
    }
}

#[test]
fn a_call_is_one_transaction_also_of_one_limit() {
    let gateway = Gateway::start(RULES);
    let mut envoy = Envoy::connect(&gateway);
    // Two values of one wildcard are two counters; the same value twice is one, which counts both.
    let two = envoy.ask("basic", &[&[("key1", "a")], &[("key1", "b")]]).ok();
    assert_eq!((two.overall, two.statuses[0].remaining, two.statuses[1].remaining), (OK, 0, 0));
    let twice = envoy.ask("basic", &[&[("key1", "c")], &[("key1", "c")]]).ok();
    assert_eq!((twice.overall, twice.statuses.len()), (OVER_LIMIT, 2));
    assert_eq!(codes(&mut envoy, "basic", &[("key1", "c")], 2), [OK, OVER_LIMIT]);
    let value: &[(&str, &str)] = &[("key1", "value1")];
    let both = envoy.ask("basic", &[value, value]).ok();
    assert_eq!((both.overall, both.statuses[0].remaining, both.statuses[1].remaining), (OK, 0, 0));
    // A look that refuses keeps the rest from being charged.
    let mut call = call_of("basic", &[value, &[("key1", "d")]]);
    call.descriptors[0].hits = Some(Number { value: 0 });
    let refused = envoy.call(&call).ok();
    assert_eq!(
        (refused.overall, refused.statuses[0].code, refused.statuses[1].code),
        (OVER_LIMIT, OVER_LIMIT, OK)
    );
    assert_eq!(codes(&mut envoy, "basic", &[("key1", "d")], 2), [OK, OVER_LIMIT]);
}

#[test]
fn a_rule_replaces_another_of_the_same_call() {
    let gateway = Gateway::start(RULES);
    let mut envoy = Envoy::connect(&gateway);
    let group: &[(&str, &str)] = &[("group", "a")];
    let vip: &[(&str, &str)] = &[("vip", "yes")];
    for left in [4, 3, 2] {
        let answer = envoy.ask("replaced", &[group, vip]).ok();
        assert_eq!((answer.overall, answer.statuses[1].remaining), (OK, left));
        assert_eq!((answer.statuses[0].code, answer.statuses[0].limit.clone()), (OK, None));
    }
    // The replaced limit was not charged.
    assert_eq!(codes(&mut envoy, "replaced", group, 2), [OK, OVER_LIMIT]);
}

#[test]
fn limits_are_told_in_their_units() {
    let gateway = Gateway::start(RULES);
    let mut envoy = Envoy::connect(&gateway);
    for (unit, name, expected) in
        [("second", "per-second", SECOND), ("minute", "per-minute", MINUTE), ("day", "per-day", 4)]
    {
        let answer = envoy.ask("units", &[&[("unit", unit)]]).ok();
        assert_eq!(answer.statuses[0].limit, Some((name.into(), 100, expected)));
    }
}

/// Clients are banned by what descriptors say of them.
#[test]
fn refused_calls_are_strikes_of_the_client() {
    let gateway = Gateway::start(
        "service: { listen: 127.0.0.1:0, domains: { d: [{ match: { remote_address: \"*\" }, limits: per-ip }] } }
limits: { per-ip: { rate: 1/1h, burst: 1 } }
bans: { after: 2/1m, for: 1h }
locations: []
",
    );
    let mut envoy = Envoy::connect(&gateway);
    let of = |ip: &'static str| [("remote_address", ip)];
    assert_eq!(codes(&mut envoy, "d", &of("192.0.2.1"), 4), [OK, OVER_LIMIT, OVER_LIMIT, OVER_LIMIT]);
    let banned = envoy.ask("d", &[&of("192.0.2.1")]).ok();
    assert_eq!((banned.overall, banned.statuses[0].limit.clone()), (OVER_LIMIT, None), "{banned:?}");
    assert!(banned.header("retry-after").is_some(), "{banned:?}");
    assert_eq!(codes(&mut envoy, "d", &of("192.0.2.2"), 1), [OK]);
}

/// Counts and log lines name the protocol of a call.
#[test]
fn calls_are_counted_and_logged() {
    let gateway = Gateway::start(RULES);
    let mut envoy = Envoy::connect(&gateway);
    assert_eq!(codes(&mut envoy, "basic", &[("key1", "x")], 2), [OK, OVER_LIMIT]);
    let counted = |result: &str| {
        let labels = ["protocol=\"rls\"", "call=\"should_rate_limit\"", &format!("result=\"{result}\"")];
        gateway.metric("sluicegate_service_calls_total", &labels)
    };
    eventually("both calls", || (counted("admit"), counted("reject")) == (1.0, 1.0));
    let lines = gateway.wait_log(2);
    let shown = |line: &Value| (line["protocol"].clone(), line["verdict"].clone());
    let mut lines: Vec<_> = lines.iter().map(shown).collect();
    lines.sort_by_key(|(_, verdict)| verdict.to_string());
    assert_eq!(lines, [(json!("rls"), json!("admit")), (json!("rls"), json!("reject"))]);
}
