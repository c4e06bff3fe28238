//! The fields about limits.

use super::*;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::{LimitId, LocationId};

fn decision(remaining: u64, reset_ns: u64) -> Decision {
    Decision { outcome: LimitOutcome::Admit, remaining, reset_ns, retry_after_ns: 0, wait_ns: 0, full_ns: 0 }
}

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
        (0, 0, decision(19, 0)),
        (3, 0, decision(1, 0)),
        (1, 0, decision(0, 1)),
        (4, 0, decision(6, 1_000_000_000)),
        (4, 1, decision(299, 1_000_000_001)),
    ];
    let policy = "\"bucket\";q=20;w=2, \"line\";q=7;w=1, \"two;7/s\";q=7;w=1, \"two;300/60s\";q=300;w=60";
    let written = fields(yaml, &all);
    assert_eq!(written[0], policy);
    assert_eq!(
        written[1],
        "\"bucket\";r=19;t=0, \"line\";r=0;t=1, \"two;7/s\";r=6;t=1, \"two;300/60s\";r=299;t=2"
    );
    // A limit that was skipped, for its methods or a bypass, is in neither field.
    let some = fields(yaml, &[all[0], all[4]]);
    assert_eq!(
        some[..2],
        ["\"bucket\";q=20;w=2, \"two;300/60s\";q=300;w=60", "\"bucket\";r=19;t=0, \"two;300/60s\";r=299;t=2"]
    );
    let one = fields(yaml, &all[2..3]);
    assert_eq!(one[..2], ["\"line\";q=7;w=1", "\"line\";r=0;t=1"]);
    // Without an enforced limit no field is written, and the upstream's own field stays.
    assert_eq!(fields(yaml, &all[1..2])[..2], ["", "of the upstream"]);
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
    let all = [(0, 0, decision(49, 0)), (1, 0, decision(1, 9_000_000_001)), (2, 0, decision(0, 1))];
    assert_eq!(fields(&yaml("legacy"), &all), ["", "of the upstream", "2", "1", "10"]);
    assert_eq!(fields(&yaml("none"), &all), ["", "of the upstream", "", "", ""]);
    let both = fields(&yaml("[standard, legacy]"), &all);
    assert_eq!(both[1..], ["\"wide\";r=49;t=0, \"tight\";r=1;t=10", "2", "1", "10"]);
    let tie = [(0, 0, decision(1, 0)), (1, 0, decision(1, 5_000_000_000))];
    assert_eq!(fields(&yaml("legacy"), &tie)[4], "5");
}

#[test]
fn hostile_names_stay_inside_their_strings() {
    let yaml = "locations:\n  - { path: '~ ^/\"\\d\\\\$', upstream: demo, limits: { rate: 1/s } }\n";
    let written = fields(yaml, &[(0, 0, decision(1, 0))]);
    assert_eq!(written[1], "\"~ ^/\\\"\\\\d\\\\\\\\$#1\";r=1;t=0");
}
