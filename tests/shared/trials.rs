//! Shadows and shares of keys that several gateways have in one Redis.

use crate::support::fleet::{DEGRADED, by_name, counting_on, with_status};
use crate::support::*;

fn start(redis: &Redis, limits: &[(&str, &str)]) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::start(3, |_, upstream| format!("{head}{}", by_name(upstream, limits)));
    fleet.wait_enforcing();
    fleet
}

/// Three gateways count a shadow together, exactly: it admits its own number, whether that is below or above the
/// number of its limit, of every algorithm.
#[test]
fn a_shadow_is_counted_by_all_gateways_together() {
    undisturbed(|| {
        let redis = Redis::start();
        let limits = [
            ("less", "key: global, algorithm: fixed_window, rate: 60/1h, shadow: { rate: 25/1h }"),
            ("window", "key: global, algorithm: fixed_window, rate: 25/1h, shadow: { rate: 60/1h }"),
            ("bucket", "key: global, rate: 25/1d, shadow: { rate: 60/1d }"),
            ("log", "key: global, algorithm: sliding_log, rate: 25/1h, shadow: { rate: 60/1h }"),
            ("sliding", "key: global, algorithm: sliding_window, rate: 25/1h, shadow: { rate: 60/1h }"),
        ];
        let fleet = start(&redis, &limits);
        for (name, _) in limits {
            let fired = fleet.fire(4, Until::Count(10), |_, _, _| get(&format!("/{name}")));
            if fleet.metric(DEGRADED, &[]) > 0.0 {
                return None;
            }
            let (admitted, shadow) = if name == "less" { (60, 25) } else { (25, 60) };
            assert_eq!(
                (with_status(&fired, 200), with_status(&fired, 429)),
                (admitted, 120 - admitted),
                "{name}"
            );
            let would = format!("\"{name}:shadow\";would=admit");
            let seen = fired
                .iter()
                .filter(|one| one.headers.get("sluicegate-dry-run").as_deref() == Some(would.as_str()));
            assert_eq!(seen.count(), shadow, "{name}");
            let label = format!("limit=\"{name}:shadow\"");
            let counted = |verdict: &str| fleet.metric("sluicegate_decisions_total", &[&label, verdict]);
            eventually("the decisions of the shadow", || {
                counted("verdict=\"admit\"") == shadow as f64
                    && counted("verdict=\"dry_run_reject\"") == 120.0 - shadow as f64
            });
        }
        Some(())
    });
}

/// A rejection by another limit, here or in Redis, leaves a shadow as it was.
#[test]
fn rejections_by_others_cost_a_shared_shadow_nothing() {
    undisturbed(|| {
        let redis = Redis::start();
        let head = counting_on(&redis.url(), "200ms");
        let fleet = Fleet::start(1, |_, upstream| {
            format!(
                "{head}limits:\n  tried: {{ key: global, rate: 2/1d, shadow: {{ rate: 3/1d }} }}\n  \
                   shared: {{ key: query:s, rate: 1/1d }}\n  here: {{ key: query:h, rate: 1/1d, state: local }}\n\
                 locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: [tried, shared, here] }}\n"
            )
        });
        fleet.wait_enforcing();
        let ask = |target: &str| {
            let response = fleet.gateways[0].get(target);
            (response.status, response.header("sluicegate-dry-run").unwrap_or_default())
        };
        let admits = || "\"tried:shadow\";would=admit".to_owned();
        assert_eq!(ask("/?s=1&h=1"), (200, admits()));
        for turn in 0..5 {
            assert_eq!(ask(&format!("/?s=1&h=a{turn}")), (429, admits()));
            assert_eq!(ask(&format!("/?s=a{turn}&h=1")).0, 429);
        }
        assert_eq!(ask("/?s=2&h=2"), (200, admits()));
        assert_eq!(ask("/?s=3&h=3"), (429, admits()), "the limit itself rejects");
        let (status, seen) = ask("/?s=4&h=4");
        if fleet.metric(DEGRADED, &[]) > 0.0 {
            return None;
        }
        assert!(status == 429 && seen.starts_with("\"tried:shadow\";would=reject"), "{seen}");
        Some(())
    });
}

/// While Redis does not answer, the shares of a limit and of its shadow count here, each for itself; recovery tells the
/// store of both.
#[test]
fn a_shadow_is_counted_without_redis() {
    undisturbed(|| {
        let redis = Redis::start();
        let head = counting_on(&redis.url(), "200ms");
        let fleet = Fleet::start(1, |_, upstream| {
            let limit = ("all", "key: global, algorithm: fixed_window, rate: 2/1h, shadow: { rate: 4/1h }");
            format!("{head}{}", by_name(upstream, &[limit]))
        });
        fleet.wait_enforcing();
        redis.pause();
        let ask = || {
            let response = fleet.gateways[0].get("/all");
            let seen = response.header("sluicegate-dry-run").unwrap_or_default();
            (response.status, seen.contains("would=admit"))
        };
        fleet.wait_degraded();
        let seen: Vec<(u16, bool)> = (0..3).map(|_| ask()).collect();
        assert_eq!(seen, [(200, true), (200, true), (429, true)]);
        redis.resume();
        fleet.wait_enforcing();
        let seen: Vec<(u16, bool)> = (0..2).map(|_| ask()).collect();
        assert_eq!(seen, [(429, true), (429, false)], "the store knows what was admitted meanwhile");
        Some(())
    });
}

/// Three gateways act on the same keys, whose counters they share; for the others they all count in vain.
#[test]
fn gateways_share_a_share_of_the_keys() {
    const KEYS: usize = 600;
    undisturbed(|| {
        let redis = Redis::start();
        let limits = [
            ("rate", "key: \"query:k\", rate: 1/1d, enforce: 20%"),
            ("slots", "key: \"query:k\", algorithm: concurrency, max_concurrent: 1, queue: 1, enforce: 20%"),
            ("line", "key: \"query:k\", algorithm: leaky_bucket, rate: 1/1d, queue: 0, enforce: 20%"),
        ];
        let fleet = start(&redis, &limits);
        let mut chosen = Vec::new();
        for name in ["rate", "line"] {
            // The first request of a key goes to one gateway, and the second one to the next.
            let acted: Vec<Vec<usize>> = (0..3)
                .map(|gateway| {
                    let ask = |place: usize, key: usize| {
                        fleet.gateways[place % 3].get(&format!("/{name}?k={gateway}{key}")).status
                    };
                    let own = (0..KEYS / 3).filter(|key| {
                        let first = ask(gateway, *key);
                        assert_eq!(first, 200);
                        ask(gateway + 1, *key) == 429
                    });
                    own.collect()
                })
                .collect();
            if fleet.metric(DEGRADED, &[]) > 0.0 {
                return None;
            }
            let all: usize = acted.iter().map(Vec::len).sum();
            assert!((KEYS / 10..KEYS * 3 / 10).contains(&all), "{name}: {all} of {KEYS}");
            chosen.push(acted);
        }
        assert_eq!(chosen[0], chosen[1], "limits with the same key and share act on the same keys");
        let unenforced =
            (0..KEYS / 3).find(|key| !chosen[0][0].contains(key)).expect("a key that is left alone");
        let fired = fleet.fire(2, Until::Count(5), |_, _, _| get(&format!("/slots?k=0{unenforced}")));
        assert_eq!(with_status(&fired, 200), 30, "an unenforced key neither waits for slots nor lacks them");
        Some(())
    });
}
