//! The fields about limits.

use super::*;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::{LimitId, LocationId};

/// An admission; `ns`: the time until one more unit fits, and until all do.
fn decision(remaining: u64, ns: u64) -> Decision {
    let reset_ns = if remaining == 0 { ns } else { 0 };
    Decision {
        outcome: LimitOutcome::Admit,
        reached: 0,
        remaining,
        reset_ns,
        retry_after_ns: 0,
        wait_ns: 0,
        full_ns: ns,
        anchor: None,
    }
}

/// A rejection, whose window is its wait whatever else it says.
fn refusal(remaining: u64, retry_after_ns: u64) -> Decision {
    let reset_ns = if remaining == 0 { 1 } else { 0 };
    Decision {
        remaining,
        reset_ns,
        retry_after_ns,
        full_ns: 500 * SECOND,
        ..Decision::without_numbers(LimitOutcome::Reject)
    }
}

const SECOND: u64 = 1_000_000_000;

fn fields(yaml: &str, decisions: &[(usize, usize, Decision)]) -> Vec<String> {
    let (_, rejecters) = rejecters(yaml);
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", HeaderValue::from_static("of the upstream"));
    let decisions = decisions.iter().map(|&(limit, rate, decision)| (LimitId(limit), rate, decision));
    rejecters.for_location(Some(LocationId(0))).rate_limit_fields.write_fields(decisions, &mut headers);
    let written =
        ["ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    written
        .iter()
        .map(|name| headers.get(*name).map_or("", |value| value.to_str().unwrap()).to_owned())
        .collect()
}

#[test]
fn fields_list_limits_in_chain_order() {
    let yaml = "limits:\n  bucket: { rate: 10/s, burst: 20 }\n  \
          line: { algorithm: leaky_bucket, rate: 100/s, burst: 2, queue: 5 }\n  \
          slots: { algorithm: concurrency, max_concurrent: 9 }\n  dry: { rate: 1/s, dry_run: true }\n  \
          two: { rate: [7/s, 300/60s] }\n\
        locations:\n  - { path: /, upstream: demo, limits: [bucket, slots, dry, line, two] }\n";
    let all = [
        (0, 0, decision(19, 1)),
        (3, 0, decision(1, 0)),
        (1, 0, decision(0, 1)),
        (4, 0, decision(6, SECOND)),
        (4, 1, decision(299, SECOND + 1)),
        (2, 0, decision(8, 0)),
    ];
    let policy = "\"bucket\";q=20;w=2, \"line\";q=7;w=1, \"two;7/s\";q=7;w=1, \"two;300/60s\";q=300;w=60";
    let written = fields(yaml, &all);
    assert_eq!(written[0], policy);
    assert_eq!(
        written[1],
        "\"bucket\";r=19;t=1, \"line\";r=0;t=1, \"two;7/s\";r=6;t=1, \"two;300/60s\";r=299;t=2"
    );
    // A limit that was skipped, for its methods or a bypass, is in neither field.
    let some = fields(yaml, &[all[0], all[4]]);
    assert_eq!(
        some[..2],
        ["\"bucket\";q=20;w=2, \"two;300/60s\";q=300;w=60", "\"bucket\";r=19;t=1, \"two;300/60s\";r=299;t=2"]
    );
    let one = fields(yaml, &all[2..3]);
    assert_eq!(one[..2], ["\"line\";q=7;w=1", "\"line\";r=0;t=1"]);
    // Slots have no time.
    let slots = "\"slots\";q=9;qu=\"concurrent-requests\"";
    assert_eq!(fields(yaml, &all[5..])[..2], [slots, "\"slots\";r=8"]);
    let both = fields(yaml, &[all[0], all[5]]);
    assert_eq!(
        both[..2],
        [format!("\"bucket\";q=20;w=2, {slots}").as_str(), "\"bucket\";r=19;t=1, \"slots\";r=8"]
    );
    // Without an enforced limit no field is written, and the upstream's own field stays.
    assert_eq!(fields(yaml, &all[1..2])[..2], ["", "of the upstream"]);
}

#[test]
fn a_window_is_at_least_a_second_and_of_a_rejection_its_wait() {
    let yaml =
        "locations:\n  - { path: /, upstream: demo, limits: [a] }\nlimits:\n  a: { rate: 1/s, burst: 40 }\n";
    for (decision, expected) in [
        (decision(3, 0), "r=3;t=1"),
        (decision(0, 0), "r=0;t=1"),
        (decision(39, 7 * SECOND), "r=39;t=7"),
        (decision(3, 8 * SECOND), "r=3;t=8"),
        (decision(31, 7 * SECOND + 1), "r=31;t=8"),
        (refusal(0, 0), "r=0;t=1"),
        (refusal(0, SECOND + 1), "r=0;t=2"),
        (refusal(2, 23_000_000_001), "r=2;t=24"),
        // Its cost never fits.
        (refusal(2, u64::MAX), "r=2"),
        (decision(u64::MAX, u64::MAX), "r=999999999999999;t=18446744074"),
    ] {
        // Twice: small values are kept.
        for _ in 0..2 {
            assert_eq!(fields(yaml, &[(0, 0, decision)])[1], format!("\"a\";{expected}"), "{decision:?}");
        }
    }
    let old = format!("on_reject: {{ ratelimit_headers: [draft-10, draft-03] }}\n{yaml}");
    let written = |decision| fields(&old, &[(0, 0, decision)]);
    assert_eq!(written(decision(3, 9 * SECOND)), ["\"a\";q=40;w=40", "\"a\";r=3;t=0", "40", "3", "9"]);
    assert_eq!(written(decision(0, 2 * SECOND))[1], "\"a\";r=0;t=2");
    assert_eq!(written(refusal(2, 9 * SECOND))[1..], ["\"a\";r=2;t=9", "40", "2", "9"]);
    assert_eq!(written(refusal(2, u64::MAX))[2..], ["40", "2", ""]);
}

#[test]
fn quotas_have_their_units() {
    let policy = |limit: &str| {
        let yaml =
            format!("limits:\n  a: {limit}\nlocations:\n  - {{ path: /, upstream: demo, limits: [a] }}\n");
        let written = fields(&yaml, &[(0, 0, decision(3, SECOND))]);
        let old = fields(
            &format!("on_reject: {{ ratelimit_headers: draft-10 }}\n{yaml}"),
            &[(0, 0, decision(3, 0))],
        );
        [&written[0], &written[1], &old[0]].map(|text| text.replace("\"a\";", ""))
    };
    let bytes = policy("{ algorithm: fixed_window, rate: 1MiB/1m, charge: { units: bytes, reserve: 1KiB } }");
    assert_eq!(bytes, ["q=1048576;qu=\"content-bytes\";w=60", "r=3072;t=1", "q=1048576;w=60"]);
    let tokens = policy("{ algorithm: fixed_window, rate: 1000/m, charge: { units: llm, reserve: 10 } }");
    assert_eq!(tokens, ["q=1000;sluicegate-unit=\"tokens\";w=60", "r=3;t=1", "q=1000;w=60"]);
    let costs = policy("{ rate: 10/s, burst: 20, cost: 5 }");
    assert_eq!(costs, ["q=20;sluicegate-unit=\"units\";w=2", "r=3;t=1", "q=20;w=2"]);
    let slots = policy("{ algorithm: concurrency, max_concurrent: { min: 2, max: 7 } }");
    assert_eq!(slots, ["q=7;qu=\"concurrent-requests\"", "r=3", ""]);
    assert_eq!(policy("{ rate: 10/s }")[0], "q=10;w=1");
    let huge = policy("{ algorithm: fixed_window, rate: 2000000000000000/1000h }");
    assert_eq!(huge[0], "q=999999999999999;w=3600000");
}

#[test]
fn a_fixed_cost_is_waited_for_as_a_whole() {
    let written = |limit: &str, decision| {
        let yaml =
            format!("limits:\n  a: {limit}\nlocations:\n  - {{ path: /, upstream: demo, limits: [a] }}\n");
        fields(&yaml, &[(0, 0, decision)])[1].clone()
    };
    let used = |reset_ns| Decision { full_ns: 60 * SECOND, ..decision(0, reset_ns) };
    assert_eq!(written("{ rate: 1/2s, burst: 30, cost: 4 }", used(SECOND)), "\"a\";r=0;t=7");
    assert_eq!(written("{ rate: 1/2s, burst: 30, cost: 4, warm_up: 1m }", used(SECOND)), "\"a\";r=0;t=60");
    assert_eq!(written("{ algorithm: sliding_log, rate: 30/60s, cost: 4 }", used(SECOND)), "\"a\";r=0;t=60");
    assert_eq!(written("{ rate: 1/2s, burst: 30 }", used(SECOND)), "\"a\";r=0;t=1");
}

#[test]
fn at_most_four_items_are_written() {
    let yaml = "limits:\n  a: { rate: [1/s, 2/m, 3/h] }\n  b: { rate: [1/s, 2/m] }\n\
        locations:\n  - { path: /, upstream: demo, limits: [a, b] }\n";
    let all: Vec<_> = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)].map(|(l, r)| (l, r, decision(1, 0))).into();
    let written = fields(yaml, &all);
    assert_eq!(
        written[0],
        "\"a;1/s\";q=1;w=1, \"a;2/60s\";q=2;w=60, \"a;3/3600s\";q=3;w=3600, \"b;1/s\";q=1;w=1"
    );
    assert_eq!(written[1].matches("r=").count(), 4);
    assert_eq!(fields(yaml, &all[1..])[0].matches("q=").count(), 4);
}

#[test]
fn legacy_fields_show_the_tightest_limit() {
    let yaml = |which: &str| {
        format!(
            "on_reject: {{ ratelimit_headers: {which} }}\n\
             limits:\n  wide: {{ rate: 1/s, burst: 50 }}\n  tight: {{ rate: 1/10s, burst: 2 }}\n  \
               odd: {{ rate: 1/s, on_reject: {{ ratelimit_headers: none }} }}\n\
             locations:\n  - {{ path: /, upstream: demo, limits: [wide, tight, odd] }}\n"
        )
    };
    let all = [(0, 0, decision(49, 1)), (1, 0, decision(1, 9_000_000_001)), (2, 0, decision(0, 1))];
    assert_eq!(fields(&yaml("legacy"), &all), ["", "of the upstream", "2", "1", "10"]);
    assert_eq!(fields(&yaml("none"), &all), ["", "of the upstream", "", "", ""]);
    let both = fields(&yaml("[standard, legacy]"), &all);
    assert_eq!(both[1..], ["\"wide\";r=49;t=1, \"tight\";r=1;t=10", "2", "1", "10"]);
    let tie = [(0, 0, decision(1, 0)), (1, 0, decision(1, 5_000_000_000))];
    assert_eq!(fields(&yaml("legacy"), &tie)[4], "5");
}

#[test]
fn hostile_names_stay_inside_their_strings() {
    let yaml = "locations:\n  - { path: '~ ^/\"\\d\\\\$', upstream: demo, limits: { rate: 1/s } }\n";
    let written = fields(yaml, &[(0, 0, decision(1, 0))]);
    assert_eq!(written[1], "\"~ ^/\\\"\\\\d\\\\\\\\$#1\";r=1;t=1");
}
