//! Each kind of limit keeps its promise on the virtual clock.

use sluicegate_model::api_keys::ApiKeyHash;

use super::{Scratch, assert_fails, assert_passes, config, run_in, run_steps, scenario};

#[test]
fn a_token_bucket_refills_evenly() {
    let config = config("per-ip: { key: ip, rate: 10/s, burst: 20 }");
    assert_passes(
        &config,
        &[
            "send: 60, from: 203.0.113.7, expect: { admitted: 20, rejected: 40, by: per-ip, retry_after: 100ms }",
            "at: 99ms, from: 203.0.113.7, expect: { rejected: 1, retry_after: 1ms }",
            "at: 100ms, from: 203.0.113.7, expect: { admitted: 1 }",
            "at: 10s, send: 100, every: 50ms, from: 203.0.113.7, expect: { admitted: [68, 70], waited_max: 0ms }",
        ],
    );
}

/// Arrivals between the milliseconds of timers are exact.
#[test]
fn arrivals_are_exact_to_the_nanosecond() {
    let config = config("per-ip: { key: ip, rate: 400/s, burst: 1 }");
    assert_passes(&config, &["send: 1000, every: 2500us, expect: { admitted: 1000 }"]);
    assert_passes(
        &config,
        &["send: 2, every: 2499999ns, expect: { admitted: 1, rejected: 1, retry_after: 1ms }"],
    );
    // While others are under way as well.
    assert_passes(&config, &["send: 1000, every: 2500us, hold: 1s, expect: { admitted: 1000 }"]);
}

/// Classes by every fact that a scenario can give: gold has 10 of 40 for itself, and 30 are common.
#[test]
fn shares_are_judged_by_class() {
    let with = |by: &str| {
        format!(
            "server: {{ trusted_proxies: 10.0.0.1 }}\n\
             account: {{ from: jwt:sub, tier: {{ members: {{ acme: gold }}, default: free }}, \
             jwt: {{ secret: of-the-tests-0123456789abcdef-0123456789, algorithms: HS256 }} }}\n\
             limits: {{ backend: {{ key: global, rate: 40/d, burst: 40, \
             shares: {{ by: {by}, classes: {{ gold: {{ least: 50% }}, acme: {{}} }} }} }} }}\n\
             locations:\n  - {{ path: /, upstream: demo, limits: backend }}\n  \
             - {{ path: /own, name: gold, upstream: demo, limits: backend }}\n"
        )
    };
    let others = "send: 50, from: 10.0.0.1, expect: { admitted: 30, by: backend }";
    for (by, gold) in [
        ("tier", "account: acme"),
        ("\"header:X-Class\"", "headers: { X-Class: gold }"),
        ("location", "to: /own"),
    ] {
        let gold = format!("send: 20, from: 10.0.0.1, {gold}, expect: {{ admitted: 10 }}");
        assert_passes(&with(by), &[others, &gold]);
    }
    let stranger =
        "send: 20, from: 10.0.0.2, headers: { X-Class: gold }, expect: { admitted: 0, rejected: 20 }";
    assert_passes(&with("\"header:X-Class\""), &[others, stranger]);
    for by in ["account", "\"jwt:sub\""] {
        let config = with(by).replace("gold: { least: 50% }, acme: {}", "acme: { least: 50% }");
        assert_passes(
            &config,
            &[others, "send: 20, from: 10.0.0.1, account: acme, expect: { admitted: 10 }"],
        );
    }
}

#[test]
fn a_network_spreads_over_its_addresses() {
    let config = config("per-ip: { key: ip, rate: 1/m }");
    assert_passes(&config, &["send: 300, from: 10.0.0.0/24, expect: { admitted: 256, rejected: 44 }"]);
    assert_passes(&config, &["send: 5, from: [10.0.0.0/31, 10.1.0.1], expect: { admitted: 3, rejected: 2 }"]);
    assert_passes(&config, &["send: 9, from: \"2001:db8::/64\", expect: { admitted: 1, rejected: 8 }"]);
}

#[test]
fn a_queue_lets_requests_leave_evenly() {
    let config = config("queue: { key: global, algorithm: leaky_bucket, rate: 10/s, queue: 5 }");
    assert_passes(
        &config,
        &[
            "send: 10, expect: { admitted: 6, rejected: 4, waited: 5, waited_max: 500ms, by: queue, retry_after: 100ms }",
        ],
    );
    // Exactly the queue's pace, over an hour.
    assert_passes(&config, &["send: 36000, every: 100ms, expect: { admitted: 36000, waited: 0 }"]);
    assert_fails(
        &config,
        &["send: 6, expect: { waited_max: 400ms }"],
        "waited_max   expected 400ms; seen 500ms",
    );
}

#[test]
fn windows_by_the_clock_begin_at_the_time_of_day() {
    let limit = "a-day: { key: ip, algorithm: fixed_window, align: clock, rate: 10/1d }";
    let steps = "scenarios:\n  - name: midnight\n    steps:\n\
        \x20     - { send: 12, expect: { admitted: 10, rejected: 2, retry_after: 10s } }\n\
        \x20     - { at: 9999ms, expect: { rejected: 1 } }\n\
        \x20     - { at: 10s, send: 12, expect: { admitted: 10, retry_after: 1d } }\n";
    let run = super::run_file(&config(limit), &format!("start: 2026-03-29T23:59:50Z\n{steps}"), &[]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let run = super::run_file(&config(limit), &format!("start: 2026-03-29T23:59:51Z\n{steps}"), &[]);
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(run.stdout.contains("retry_after  expected 10s; seen 9s"), "{}", run.stdout);
}

#[test]
fn fixed_and_sliding_windows_and_logs() {
    assert_passes(
        &config("window: { key: ip, algorithm: fixed_window, rate: 10/10s }"),
        &[
            "at: 3s, send: 12, expect: { admitted: 10, retry_after: 10s }",
            "at: 13s, send: 12, expect: { admitted: 10 }",
        ],
    );
    assert_passes(
        &config("log: { key: ip, algorithm: sliding_log, rate: 3/10s }"),
        &[
            "send: 3, every: 1s, expect: { admitted: 3 }",
            "at: 9s, expect: { rejected: 1, by: log, retry_after: 1s }",
            "at: 10s, send: 2, expect: { admitted: 1 }",
            "at: 11s, send: 2, expect: { admitted: 1 }",
        ],
    );
    assert_passes(
        &config("window: { key: ip, algorithm: sliding_window, rate: 100/10s }"),
        &["send: 120, expect: { admitted: 100 }", "at: 12s, send: 120, expect: { admitted: 100 }"],
    );
}

#[test]
fn slots_are_held_while_the_upstream_works() {
    let config = config("slots: { key: global, algorithm: concurrency, max_concurrent: 2 }");
    assert_passes(
        &config,
        &[
            "send: 3, hold: 200ms, expect: { admitted: 2, rejected: 1, by: slots, status: 503 }",
            "at: 199ms, expect: { rejected: 1 }",
            "at: 200ms, send: 3, hold: 200ms, expect: { admitted: 2, rejected: 1 }",
        ],
    );
}

#[test]
fn requests_wait_for_slots_in_order() {
    let config =
        config("slots: { key: global, algorithm: concurrency, max_concurrent: 1, queue: 2, max_wait: 10s }");
    assert_passes(
        &config,
        &[
            "hold: 1s, expect: { admitted: 1, waited: 0 }",
            "hold: 1s, expect: { admitted: 1, waited_max: 1s }",
            "hold: 1s, expect: { admitted: 1, waited_max: 2s }",
            "hold: 1s, expect: { rejected: 1, by: slots }",
        ],
    );
}

#[test]
fn the_strictest_of_several_limits_is_named() {
    let config = config("loose: { key: ip, rate: 100/s }\n strict: { key: ip, rate: 1/s, burst: 5 }");
    assert_passes(&config, &["send: 50, expect: { admitted: 5, by: strict, retry_after: 1s }"]);
    assert_fails(
        &config,
        &["send: 50, expect: { by: loose }"],
        "by           expected loose; seen strict (45)",
    );
}

#[test]
fn bans_last_and_double() {
    let config = "limits: { per-ip: { key: ip, rate: 1/m, burst: 1 } }\n\
        bans: { after: 3/1m, for: 10m, max: 1d }\n\
        locations: [{ path: /, upstream: demo, limits: per-ip }, { path: /free, upstream: demo }]\n";
    assert_passes(
        config,
        &[
            "send: 4, from: 203.0.113.7, expect: { admitted: 1, rejected: 3, by: per-ip }",
            "at: 1s, to: /free, from: 203.0.113.7, expect: { rejected: 1, by: ban, status: 429 }",
            "at: 1s, to: /free, from: 203.0.113.8, expect: { admitted: 1 }",
            "at: 599s, to: /free, from: 203.0.113.7, expect: { rejected: 1, by: ban }",
            "at: 601s, to: /free, from: 203.0.113.7, expect: { admitted: 1 }",
            "at: 602s, send: 4, from: 203.0.113.7, expect: { admitted: 1, rejected: 3 }",
            "at: 1790s, to: /free, from: 203.0.113.7, expect: { rejected: 1, by: ban }",
            "at: 1803s, to: /free, from: 203.0.113.7, expect: { admitted: 1 }",
        ],
    );
}

/// Ten thousand requests a second for ten seconds, all under way at once.
#[test]
fn many_requests_may_wait_at_once() {
    let config =
        config("queue: { key: global, algorithm: leaky_bucket, rate: 10/1s, queue: 20000, max_wait: none }");
    let run = run_steps(&config, &["send: 20001, expect: { admitted: 20001, waited_max: 2000s }"]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
}

/// The border of the 29th and of the 31st is that of the last day of February.
#[test]
fn months_begin_by_the_dates_of_accounts() {
    let scratch = Scratch::new();
    let accounts = [("acme", "2024-01-31"), ("leap", "2024-02-29"), ("bolt", "2023-06-15"), ("plain", "")];
    let line =
        |(account, anchor)| format!("{},{account},{anchor}\n", ApiKeyHash::of_key(str::as_bytes(account)));
    let keys: String = accounts.into_iter().map(line).collect();
    scratch.file("keys.csv", &format!("sha256,account,anchor\n{keys}"));
    scratch.file(
        "gateway.yaml",
        "account: { keys: { file: keys.csv } }\n\
         limits: { plan: { key: account, rate: [8/month, 9/year], begins: account } }\n\
         locations: [{ path: /, upstream: demo, limits: plan }]\n",
    );
    let step = |at: &str, send: u64, account: &str, admitted: u64| {
        let rejected = send - admitted;
        let expect = format!("{{ admitted: {admitted}, rejected: {rejected} }}");
        format!("at: {at}, send: {send}, headers: {{ X-Api-Key: {account} }}, expect: {expect}")
    };
    let mut steps: Vec<String> = accounts.iter().map(|(account, _)| step("0s", 9, account, 8)).collect();
    for (at, admitted) in
        [("59s", [0; 4]), ("60s", [1, 5, 0, 0]), ("1441m", [0, 3, 0, 1]), ("25d", [0, 0, 1, 0])]
    {
        let again = accounts.iter().zip(admitted);
        steps.extend(again.map(|((account, _), admitted)| step(at, 5, account, admitted)));
    }
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    scratch.file("limits_test.yaml", &format!("start: 2026-02-27T23:59:00Z\n{}", scenario(&steps)));
    let run = run_in(&scratch, &[]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
}
