//! Envoy's rate limit service over gRPC: what is judged, what is answered, and what a refused call leaves.

mod client;
mod json;
mod page;
mod protocol;
mod redis;
mod rules;

use super::*;
use client::*;

const SHOP: &str = "
service:
  listen: 127.0.0.1:0
  domains:
    shop:
      - match: { remote_address: \"*\" }
        limits: per-ip
      - match: { to_number: \"*\" }
        limits: per-number
      - match: { vip: \"yes\" }
        limits: []
limits:
  per-ip: { rate: 3/1h, burst: 3 }
  per-number: { key: header:to_number, algorithm: fixed_window, rate: 2/1h }
locations: []
";

#[test]
fn a_descriptor_is_charged_and_told_what_is_left() {
    let gateway = Gateway::start(SHOP);
    let mut envoy = Envoy::connect(&gateway);
    for left in [2, 1, 0] {
        let answer = envoy.ask("shop", &[&[("remote_address", "192.0.2.1")]]).ok();
        assert_eq!(answer.overall, OK);
        assert_eq!(answer.statuses.len(), 1);
        let status = &answer.statuses[0];
        assert_eq!(
            (status.code, status.remaining, status.limit.clone()),
            (OK, left, Some(("per-ip".into(), 3, HOUR)))
        );
        assert_eq!(
            answer.header("ratelimit").map(|value| value.contains("per-ip")),
            Some(true),
            "{answer:?}"
        );
    }
    let over = envoy.ask("shop", &[&[("remote_address", "192.0.2.1")]]).ok();
    assert_eq!(
        (over.overall, over.statuses[0].code, over.statuses[0].remaining),
        (OVER_LIMIT, OVER_LIMIT, 0)
    );
    let reset = over.statuses[0].reset_ms.expect("a time");
    assert!((1_100_000..=1_200_000).contains(&reset), "{reset}");
    assert!(over.header("retry-after").is_some(), "{over:?}");
    let other = envoy.ask("shop", &[&[("remote_address", "192.0.2.2")]]).ok();
    assert_eq!(other.overall, OK);
}

#[test]
fn a_refused_call_changed_nothing() {
    let gateway = Gateway::start(SHOP);
    let mut envoy = Envoy::connect(&gateway);
    let both: &[&[(&str, &str)]] = &[&[("remote_address", "192.0.2.1")], &[("to_number", "1")]];
    for left in [(2, 1), (1, 0)] {
        let answer = envoy.ask("shop", both).ok();
        assert_eq!(answer.overall, OK);
        assert_eq!((answer.statuses[0].remaining, answer.statuses[1].remaining), left);
    }
    for _ in 0..3 {
        let over = envoy.ask("shop", both).ok();
        assert_eq!(over.overall, OVER_LIMIT);
        assert_eq!((over.statuses[0].code, over.statuses[0].remaining), (OK, 1));
        assert_eq!((over.statuses[1].code, over.statuses[1].remaining), (OVER_LIMIT, 0));
    }
    let alone = envoy.ask("shop", &both[..1]).ok();
    assert_eq!((alone.overall, alone.statuses[0].remaining), (OK, 0));
}

#[test]
fn without_a_rule_nothing_is_limited() {
    let gateway = Gateway::start(SHOP);
    let mut envoy = Envoy::connect(&gateway);
    for (domain, entries) in [
        ("unknown", [("remote_address", "192.0.2.1")]),
        ("shop", [("nothing", "1")]),
        ("shop", [("vip", "yes")]),
    ] {
        for _ in 0..5 {
            let answer = envoy.ask(domain, &[&entries]).ok();
            assert_eq!((answer.overall, answer.statuses[0].code), (OK, OK));
            assert_eq!(answer.statuses[0].limit, None, "{domain} {entries:?}");
        }
    }
}

/// As envoyproxy/ratelimit tells the end of a window from its first hit on; a bucket tells when it is full.
#[test]
fn the_reset_is_the_end_of_the_window_or_the_time_until_full() {
    let gateway = Gateway::start(
        "
service:
  listen: 127.0.0.1:0
  domains:
    d:
      - match: { window: \"*\" }
        limits: window
      - match: { sliding: \"*\" }
        limits: sliding
      - match: { log: \"*\" }
        limits: log
      - match: { bucket: \"*\" }
        limits: bucket
      - match: { leaky: \"*\" }
        limits: leaky
limits:
  window: { key: header:window, algorithm: fixed_window, rate: 10/1h }
  sliding: { key: header:sliding, algorithm: sliding_window, rate: 10/1h }
  log: { key: header:log, algorithm: sliding_log, rate: 10/1h }
  bucket: { key: header:bucket, rate: 10/1h, burst: 10 }
  leaky: { key: header:leaky, algorithm: leaky_bucket, rate: 10/1h, burst: 10 }
locations: []
",
    );
    let mut envoy = Envoy::connect(&gateway);
    const UNIT_MS: i64 = 360_000;
    for (name, least, most) in [
        ("window", [9 * UNIT_MS, 9 * UNIT_MS], [10 * UNIT_MS, 10 * UNIT_MS]),
        // The last sub-window may reach beyond the period.
        ("sliding", [9 * UNIT_MS, 9 * UNIT_MS], [11 * UNIT_MS, 11 * UNIT_MS]),
        ("log", [9 * UNIT_MS, 9 * UNIT_MS], [10 * UNIT_MS, 10 * UNIT_MS]),
        ("bucket", [UNIT_MS / 2, UNIT_MS + UNIT_MS / 2], [UNIT_MS, 2 * UNIT_MS]),
        ("leaky", [UNIT_MS / 2, UNIT_MS + UNIT_MS / 2], [UNIT_MS, 2 * UNIT_MS]),
    ] {
        for turn in 0..2 {
            let status = envoy.ask("d", &[&[(name, "1")]]).ok().statuses[0].clone();
            let reset = status.reset_ms.expect("a time");
            assert!((least[turn]..=most[turn]).contains(&reset), "{name}, hit {turn}: {reset} ms");
            assert_eq!(status.code, OK);
        }
    }
}
