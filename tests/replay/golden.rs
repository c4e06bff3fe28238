//! Small logs, judged by hand.

use sluicegate::simulate::replay::replay_log;

use crate::{line, load, replay, stream, yaml};

const SECOND: u64 = 1_000_000;

#[test]
fn a_token_bucket_rejects_what_it_rejects_in_production() {
    // The numbers of the manual: 25 at once, 20 pass; one more passes 100 ms later.
    let mut log: String = (0..25).map(|_| line(0, "192.0.2.1", "/", "")).collect();
    log.push_str(&line(SECOND / 10 - 1, "192.0.2.1", "/", ""));
    log.push_str(&line(SECOND / 10, "192.0.2.1", "/", ""));
    log.push_str(&line(SECOND / 10, "192.0.2.2", "/", ""));
    let report = replay(&log, &yaml("  per-ip: { key: ip, rate: 10/s, burst: 20 }"));
    assert_eq!((report.requests, report.admitted, report.waited, report.rejected), (28, 22, 0, 6));
    assert_eq!(report.limits["per-ip"]["rejected"], 6);
    assert_eq!(report.limits["per-ip"]["keys"], 2);
    let first = &report.keys[0];
    assert_eq!((first.key.as_str(), first.requests, first.rejected), ("ip=192.0.2.1", 27, 6));
    assert_eq!(report.keys.len(), 1, "the other key is not hit");
}

#[test]
fn a_dry_run_counts_what_it_would_do() {
    let log: String = (0..5)
        .map(|_| line(0, "192.0.2.1", "/", ",\"verdict\":\"admit\",\"dry_run\":\"x=reject\""))
        .collect();
    let report = replay(&log, &yaml("  x: { rate: 1/s, burst: 2, dry_run: true }"));
    assert_eq!((report.admitted, report.rejected), (5, 0));
    assert_eq!(report.limits["x"]["rejected"], 3);
    assert_eq!((report.logged.compared, report.logged.agreed), (5, 3));
}

/// What a limit decided that the log cannot judge says nothing about the replay.
#[test]
fn verdicts_of_limits_that_are_not_judged_are_not_compared() {
    let told = |more: &str| line(0, "192.0.2.1", "/", &format!(",\"verdict\":{more}"));
    let log = [
        told("\"admit\""),
        told("\"reject\",\"limit\":\"calls\""),
        told("\"admit\",\"dry_run\":\"x=wait,calls=reject\""),
        told("\"reject\",\"limit\":\"x\""),
    ];
    let report = replay(
        &log.concat(),
        &yaml("  x: { rate: 1/s, burst: 3 }\n  calls: { key: ip, rate: 1/s, cost: json-rpc, dry_run: true }"),
    );
    assert_eq!((report.logged.compared, report.logged.agreed), (2, 2), "{report}");
    assert!(report.limits["calls"]["not_judged"].is_string(), "{report}");
}

#[test]
fn a_queue_makes_requests_wait_and_rejects_the_rest() {
    // 10/s queue 5: of 10 at once one leaves, five wait, four are rejected.
    let mut log: String = (0..10).map(|_| line(0, "192.0.2.1", "/", "")).collect();
    log.push_str(&line(SECOND / 4, "192.0.2.1", "/", ""));
    let report = replay(&log, &yaml("  line: { key: ip, rate: 10/s, algorithm: leaky_bucket, queue: 5 }"));
    // At 250 ms two have left the queue, so there is room.
    assert_eq!((report.admitted, report.waited, report.rejected), (7, 6, 4));
    assert!((report.longest_wait_ms - 500.0).abs() < 0.001, "{}", report.longest_wait_ms);
}

#[test]
fn slots_are_held_for_the_time_in_the_log() {
    let slow = |at: u64| line(at, "192.0.2.1", "/", "").replace("\"dur_ms\":0.100", "\"dur_ms\":1000.000");
    // Lines are written when requests end.
    let log = [slow(0), slow(SECOND / 2), slow(SECOND * 3 / 4), slow(SECOND)].concat();
    let limit = |more: &str| {
        yaml(&format!("  slots: {{ key: ip, algorithm: concurrency, max_concurrent: 2{more} }}"))
    };
    let report = replay(&log, &limit(""));
    assert_eq!((report.admitted, report.rejected), (3, 1));
    // With a queue the third one waits until the first one ends, and the fourth until the second one does.
    let report = replay(&log, &limit(", queue: 5, max_wait: 10s"));
    assert_eq!((report.admitted, report.waited, report.rejected), (4, 2, 0));
    assert!((report.longest_wait_ms - 500.0).abs() < 0.001, "{}", report.longest_wait_ms);
    let report = replay(&log, &limit(", dry_run: true"));
    assert_eq!((report.admitted, report.rejected), (4, 0));
    assert_eq!(report.limits["slots"]["rejected"], 1);
}

#[test]
fn limits_without_their_facts_are_not_judged() {
    let log = line(0, "192.0.2.1", "/", "");
    let limits = "  by-account: { key: account, rate: 1/s }\n  by-team: { key: header:x-team, rate: 1/s }\n  \
                  by-cookie: { key: cookie:sid, rate: 1/s }\n  by-body: { key: json:/user, rate: 1/s }\n  \
                  adaptive: { algorithm: concurrency, min_concurrent: 1, max_concurrent: 5 }\n  \
                  settled: { key: ip, rate: 1/s, charge: { settle: { status: [401] } } }\n  \
                  by-ip: { key: [ip, uri], rate: 1/s }";
    let yaml = yaml(limits).replace("settled, ", "").replace("adaptive, ", "");
    let lines: Vec<&str> =
        yaml.lines().filter(|line| !line.contains("settled:") && !line.contains("adaptive:")).collect();
    let file = format!("account: {{ from: header:x-account }}\n{}\n", lines.join("\n"));
    let report = replay(&log.repeat(3), &file);
    let reason = |limit: &str| report.limits[limit]["not_judged"].as_str().unwrap_or_default().to_owned();
    assert_eq!(reason("by-account"), "the log has no account");
    assert_eq!(reason("by-team"), "the log has no header:x-team");
    assert_eq!(reason("by-cookie"), "the log has no cookie:sid");
    assert_eq!(reason("by-body"), "the log has no json:/user");
    assert_eq!(reason("by-ip"), "");
    assert_eq!((report.admitted, report.rejected), (1, 2), "the limit with its facts counts");
}

/// Gold has 10 of 40 for itself, and 30 are common.
#[test]
fn shares_are_judged_by_the_classes_that_the_log_tells() {
    let limit = |by: &str, name: &str| {
        yaml(&format!(
            "  backend: {{ key: global, rate: 40/d, burst: 40, \
             shares: {{ by: {by}, classes: {{ {name}: {{ least: 50% }} }} }} }}"
        ))
    };
    let told = |account: &str, tier: &str| {
        line(0, "192.0.2.1", "/", &format!(",\"account\":\"{account}\",\"tier\":\"{tier}\""))
    };
    let log = [told("nobody", "free").repeat(40), told("acme", "gold").repeat(12)].concat();
    for (by, name) in [("tier", "gold"), ("account", "acme")] {
        let report = replay(&log, &limit(by, name));
        assert_eq!((report.admitted, report.rejected), (40, 12), "{by}: {report}");
    }
    let report = replay(&log, &limit("\"header:X-Class\"", "gold"));
    let reason = "its classes are named by the header x-class of trusted proxies";
    assert_eq!(report.limits["backend"]["not_judged"], reason);
    let report = replay(&line(0, "192.0.2.1", "/", ""), &limit("tier", "gold"));
    assert!(report.limits["backend"]["not_judged"].is_null(), "without rules for tiers all have the same");
}

#[test]
fn accounts_tiers_and_headers_are_taken_from_the_log() {
    let more = |account: &str, tier: &str| {
        format!(",\"account\":\"{account}\",\"tier\":\"{tier}\",\"headers\":{{\"x-team\":\"blue\"}}")
    };
    let log: String = (0..4)
        .map(|_| {
            [
                line(0, "192.0.2.1", "/", &more("acme", "gold")),
                line(0, "192.0.2.1", "/", &more("free", "default")),
            ]
            .concat()
        })
        .collect();
    let limits = "  a: { key: account, rate: 1/s, burst: 1, tiers: { gold: { rate: 1/s, burst: 3 } } }\n  \
                  b: { key: header:x-team, rate: 1/s, burst: 100 }";
    let account = "account: { from: header:x-account, tier: { members: { x: gold } } }";
    let file = format!("{account}\n{}", yaml(limits));
    let report = replay(&log, &file);
    assert_eq!((report.admitted, report.rejected), (4, 4), "{report}");
    assert_eq!(report.limits["b"]["admitted"], 4);
    assert_eq!(report.keys[0].key, "account=free");
}

#[test]
fn whole_seconds_give_a_range() {
    let one = "192.0.2.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"-\"\n";
    let report = replay(&one.repeat(10), &yaml("  per-ip: { key: ip, rate: 10/s, burst: 2 }"));
    // Spread evenly all pass; at once only the burst does.
    let range = report.range.expect("a range");
    assert_eq!((report.rejected, range.rejected), (0, [0, 8]));
    assert!(report.notes.iter().any(|note| note.contains("seconds only")), "{:?}", report.notes);
}

#[test]
fn two_files_are_compared_by_limit_and_key() {
    let log: String =
        (0..10).map(|_| [line(0, "192.0.2.1", "/a", ""), line(0, "192.0.2.2", "/b", "")].concat()).collect();
    let new = yaml("  per-ip: { key: ip, rate: 1/s, burst: 4 }");
    let old =
        yaml("  per-path: { key: uri, rate: 1/s, burst: 6 }\n  not-a: { key: ip, rate: 1/s, burst: 100 }");
    let report =
        replay_log(&mut stream(&log, None), load(&new), Some(load(&old)), |_, _| {}, |_, _| {}).unwrap();
    let change = report.against.expect("a change");
    assert_eq!((change.newly_rejected, change.newly_admitted), (4, 0));
    assert_eq!(
        (change.newly_rejected_by[0].limit.as_str(), change.newly_rejected_by[0].requests),
        ("per-ip", 4)
    );
    assert_eq!(change.newly_rejected_by[1].key, "ip=192.0.2.1");
    let report =
        replay_log(&mut stream(&log, None), load(&old), Some(load(&new)), |_, _| {}, |_, _| {}).unwrap();
    let change = report.against.expect("a change");
    assert_eq!((change.newly_rejected, change.newly_admitted), (0, 4));
    assert_eq!(change.newly_admitted_by[1].key, "ip=192.0.2.1");
}

#[test]
fn other_rejections_are_no_verdicts_of_limits() {
    let log = [
        line(0, "192.0.2.1", "/", ""),
        line(0, "192.0.2.1", "/elsewhere", ""),
        line(1, "192.0.2.9", "/", ""),
    ]
    .concat();
    let file = "access: { deny: [192.0.2.9] }\nlimits: { x: { key: ip, rate: 1/s, burst: 5 } }\n\
                locations: [{ path: = /, upstream: demo, limits: x }]\n";
    let report = replay(&log, file);
    assert_eq!((report.requests, report.admitted, report.rejected, report.faults), (3, 1, 0, 2));
}

#[test]
fn a_sampled_log_is_warned_of() {
    let log = line(0, "192.0.2.1", "/", "");
    let report = replay(&log, &format!("access_log: {{ sample: 10% }}\n{}", yaml("  x: { rate: 1/s }")));
    assert!(report.notes.iter().any(|note| note.contains("access_log.sample is 10%")), "{:?}", report.notes);
}

#[test]
fn windows_by_the_clock_follow_the_time_in_the_log() {
    // Five at 00:00:59 and five at 00:01:00: two windows of a minute.
    let log: String = [59, 60]
        .iter()
        .flat_map(|second| (0..5).map(move |_| line(second * SECOND, "192.0.2.1", "/", "")))
        .collect();
    let report = replay(
        &log,
        &yaml("  w: { key: ip, algorithm: fixed_window, rate: 3/m, window: { align: clock } }")
            .replace("window: { align: clock }", "align: clock"),
    );
    assert_eq!((report.admitted, report.rejected), (6, 4));
}

#[test]
fn the_steps_of_quotas_are_counted_once_for_a_key_and_window() {
    let clients = ["192.0.2.1", "192.0.2.2"];
    let log: String = (0..6).flat_map(|at| clients.map(|ip| line(at * SECOND, ip, "/", ""))).collect();
    let report = replay(&log, &yaml("  x: { rate: 5/month, steps: [{ at: 80%, then: warn }] }"));
    let steps: Vec<_> = report.limit_lines[0].steps.iter().map(|step| (step.then, step.reached)).collect();
    assert_eq!((report.rejected, &steps[..]), (2, &[("warn", 2), ("reject", 2)][..]));
    assert!(report.to_string().contains("x: 2 reached 80% (warn)"), "{report}");
}
