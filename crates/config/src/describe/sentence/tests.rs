//! Tests of the sentences.

use super::*;
use crate::describe::{describe_location, describe_rejection};
use sluicegate_model::LimitId;

fn config(limit: &str) -> Config {
    let text =
        format!("limits: {{ per-ip: {limit} }}\nlocations: [{{ path: /, upstream: demo, limits: per-ip }}]");
    crate::parse(&text, "gateway.yaml").unwrap_or_else(|report| panic!("{report}")).config
}

/// The sentence without the limit's name.
fn describe_only_limit(limit: &str) -> String {
    let described = describe_limit(&config(limit), LimitId(0), None);
    described.strip_prefix("per-ip: ").expect("the name comes first").to_owned()
}

const REJECTED: &str = "rejected with 429 and told when to return";

#[test]
fn buckets() {
    assert_eq!(
        describe_limit(&config("{ rate: 10/s, burst: 20 }"), LimitId(0), None),
        "per-ip: 10 requests per second per client IP, 20 at once; \
         the 21st is rejected with 429 and told when to return"
    );
    assert_eq!(
        describe_only_limit("{ rate: [300/60s, 1/h], key: [account, host] }"),
        format!(
            "300 requests per 60 seconds per account and host, 300 at once, and 1 request per hour, 1 at once; \
             anything above one of them is {REJECTED}"
        )
    );
}

#[test]
fn turns() {
    let told = describe_only_limit("{ rate: 10/s, on_reject: { retry_after: turns } }");
    assert!(told.ends_with("the 11th is rejected with 429 and told its turn"), "{told}");
}

#[test]
fn shares_say_each_class() {
    let of = |fields: &str, classes: &str| {
        let limit = format!("{{ key: global, {fields}, shares: {{ by: tier, classes: {{ {classes} }} }} }}");
        let sentence = describe_only_limit(&limit);
        let at = sentence.find("shares by").unwrap_or_else(|| panic!("{sentence}"));
        sentence[at..].to_owned()
    };
    let classes = "gold: { least: 50% }, silver: { least: 30%, most: 80% }, default: { most: 60% }";
    assert_eq!(
        of("rate: 1000/s", classes),
        "shares by tier; gold: never below 500 per second, up to 1000 while others are idle; \
         silver: never below 300 per second, up to 800 while others are idle; \
         default: what is left, at most 600 per second"
    );
    assert_eq!(
        of("rate: [10/s, 300/m]", "gold: { least: 33.3%, most: 33.3% }"),
        "shares by tier; gold: never below 3.33 per second and 99.9 per 60 seconds, and never more; \
         default: what is left"
    );
    assert_eq!(
        of("algorithm: fixed_window, rate: 1001/30d", "gold: { least: 50%, most: 80% }"),
        "shares by tier; gold: 500 per 30 days of its own, up to 801 with the common part; \
         default: what is left; of a window nothing is lent"
    );
    assert_eq!(
        of("algorithm: concurrency, max_concurrent: 101", classes),
        "shares by tier; gold: keeps 50 slots, up to 101 while others are idle; \
         silver: keeps 30 slots, up to 81 while others are idle; default: what is left, at most 61 slots"
    );
    assert_eq!(
        of("algorithm: concurrency, max_concurrent: 10", "gold: { least: 25%, most: 25% }"),
        "shares by tier; gold: keeps 2 slots, up to 3 while others are idle; default: what is left",
        "floors are rounded down, and the rest up"
    );
    let lend = describe_only_limit(
        "{ algorithm: concurrency, max_concurrent: 100, \
         shares: { by: account, lend: 80%, classes: { acme: { least: 50% } } } }",
    );
    assert!(
        lend.contains("; shares by account; acme: keeps 50 slots, 10 of them never lent, up to 100 while"),
        "{lend}"
    );
    assert!(
        of("algorithm: concurrency, max_concurrent: auto", classes)
            .contains("gold: keeps 50% of the slots, up to 100% while others are idle")
    );
}

#[test]
fn queues() {
    assert_eq!(
        describe_only_limit("{ algorithm: leaky_bucket, key: global, rate: 300/60s, queue: 5 }"),
        format!(
            "300 requests per 60 seconds for all clients together, evenly spaced; \
             up to 5 wait in a queue, at most 30 seconds; beyond that {REJECTED}"
        )
    );
    assert_eq!(
        describe_only_limit(
            "{ algorithm: leaky_bucket, rate: [10/s, 100/m], burst: [2, 1], queue: [5, 6], max_wait: none }"
        ),
        format!(
            "10 requests per second per client IP, evenly spaced, 2 at once, and 100 requests per 60 seconds, \
             evenly spaced; up to 5 and 6 wait in queues, as long as it takes; beyond that {REJECTED}"
        )
    );
    assert_eq!(
        describe_only_limit("{ algorithm: leaky_bucket, rate: 10/s, queue: 0 }"),
        format!("10 requests per second per client IP, evenly spaced; anything sooner is {REJECTED}")
    );
}

#[test]
fn slots_and_dry_runs() {
    assert_eq!(
        describe_only_limit("{ algorithm: concurrency, key: global, max_concurrent: 100 }"),
        "100 requests in flight for all clients together; the 101st is rejected with 503"
    );
    assert_eq!(
        describe_only_limit(
            "{ algorithm: concurrency, key: global, max_concurrent: 9, queue: 7, max_wait: 5s, fair_by: account }"
        ),
        "9 requests in flight for all clients together; up to 7 wait in a queue, taking turns by account, at most \
         5 seconds; beyond that rejected with 503"
    );
    assert_eq!(
        describe_only_limit("{ algorithm: concurrency, key: global, max_concurrent: { min: 2, max: 50 } }"),
        "2 to 50 requests in flight for all clients together, as many as the upstream's latency allows; one more is \
         rejected with 503"
    );
    assert_eq!(
        describe_only_limit("{ rate: 1/d, dry_run: true }"),
        "1 request per day per client IP, 1 at once; the 2nd would be rejected with 429 and told when to return \
         (dry run: counted, never rejected)"
    );
    assert_eq!(
        describe_only_limit("{ algorithm: leaky_bucket, rate: 10/s, queue: 5, dry_run: true, max_wait: 1s }"),
        "10 requests per second per client IP, evenly spaced; up to 5 wait in a queue, at most 1 second; \
         beyond that would be rejected with 429 and told when to return (dry run: counted, never rejected)"
    );
}

#[test]
fn costs_methods_keys_and_exemptions() {
    assert_eq!(
        describe_only_limit("{ rate: 10/s, burst: 20, cost: 3, methods: [POST, PUT] }"),
        format!(
            "10 units per second per client IP, 20 at once; each POST or PUT request takes 3; the 7th is {REJECTED}"
        )
    );
    assert!(describe_only_limit("{ rate: 10/s, cost: header:X-Cost }").contains(
        "; each request takes the number in header x-cost of a trusted proxy, else 1; anything above it is rejected"
    ));
    assert!(describe_only_limit("{ rate: 10/s, cost: header:X-Cost, invalid_cost: reject }").contains(
        " of a trusted proxy, else 1, and gets 400 if that is not a number; anything above it is rejected"
    ));
    let of_body = describe_only_limit("{ rate: 10/s, key: json:/model, cost: json:/n }");
    assert!(
        of_body.starts_with("10 units per second per JSON value /model, 10 at once; each request takes"),
        "{of_body}"
    );
    assert!(
        of_body.contains(" the number of JSON value /n, else 1, and gets 400 if that is not a number; "),
        "{of_body}"
    );
    assert!(of_body.ends_with(" told when to return; it reads request bodies"), "{of_body}");
    let batches = describe_only_limit("{ rate: 10/s, cost: json-rpc }");
    assert!(
        batches.contains(" 1, a JSON-RPC batch 1 for each call, and a body that is no JSON gets 400; "),
        "{batches}"
    );
    let lenient = describe_only_limit("{ rate: 10/s, cost: json-rpc, invalid_cost: one }");
    assert!(lenient.contains("; each request takes 1, a JSON-RPC batch 1 for each call; "), "{lenient}");
    let window = describe_only_limit("{ algorithm: sliding_log, rate: [3/10s, 9/m], cost: header:X-Cost }");
    assert!(
        window.starts_with(
            "3 units per 10 seconds per client IP, and 9 units per 60 seconds, in any such span; each request takes"
        ),
        "{window}"
    );
    assert!(
        describe_only_limit("{ rate: 10/s, methods: POST }").starts_with("10 POST requests per second per")
    );
    let limit = "{ rate: 1/s, key: [account, ip], missing_key: reject, bypass: [10.0.0.0/8, \"::1\"] }";
    assert!(describe_only_limit(limit).ends_with(
        "told when to return; requests without account are rejected with 403; not for clients of 10.0.0.0/8, ::1/128"
    ));
    assert!(!describe_only_limit("{ rate: 1/s, key: global, missing_key: reject }").contains("without"));
    let degrade = "on_reject: { degrade: { status: 203, body: x } }";
    assert!(
        describe_only_limit(&format!("{{ rate: 1/s, key: account, missing_key: reject, {degrade} }}"))
            .ends_with(
                "the 2nd is answered here with 203 instead; \
                       requests without account are answered here with 203 instead"
            )
    );
    assert!(
        describe_only_limit("{ rate: 1/s, key: account, missing_key: reject, dry_run: true }")
            .contains("requests without account would be rejected with 403")
    );
    assert!(
        describe_only_limit("{ rate: 1/s, key: [header:X-A, host], missing_key: { reject: 401 } }")
            .contains("requests without header x-a or host are rejected with 401")
    );
}

#[test]
fn tiers_have_their_own_numbers() {
    let mut config = config("{ rate: 10/s, burst: 20 }");
    let gold = crate::parse(
        "limits: { x: { rate: 50/s } }\nlocations: [{ path: /, upstream: demo, limits: x }]",
        "x",
    );
    let gold = gold.expect("valid").config.limits.remove(0).algorithm;
    config.limits[0].tiers = vec![("gold".to_owned(), Some(gold)), ("staff".to_owned(), None)];
    assert!(describe_limit(&config, LimitId(0), None).ends_with(
        "told when to return; tier gold: 50 requests per second, 50 at once; tier staff: no limit"
    ));
}

#[test]
fn the_status_is_that_of_limit_and_location() {
    let text = "limits:\n  a: { rate: 1/s, on_reject: { status: 403 } }\n\
                locations:\n  - { path: /, upstream: demo, limits: a, on_reject: { status: 420 } }\n\
                on_reject: { status: 400 }\n";
    let config = crate::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
    assert!(describe_limit(&config, LimitId(0), None).contains("rejected with 403"));
    assert!(describe_limit(&config, LimitId(0), config.locations.first()).contains("rejected with 420"));
    assert_eq!(describe_location(&config, &config.locations[0]), "/ -> demo");
}

#[test]
fn a_location_is_described_with_its_bandwidth() {
    let described = |bandwidth: &str| {
        let text = format!("locations: [{{ path: /, upstream: demo, bandwidth: {bandwidth} }}]\n");
        let config = crate::parse(&text, "x").unwrap_or_else(|report| panic!("{report}")).config;
        describe_location(&config, &config.locations[0])
    };
    assert_eq!(
        described("{ rate: 1MiB/s, burst: 4MiB }"),
        "/ -> demo (bodies: 1 MiB per second per client IP, 4 MiB at once)"
    );
    assert_eq!(
        described("{ rate: 1500000B/1m, key: global }"),
        "/ -> demo (bodies: 1500 KB per 60 seconds for all clients together, 25 KB at once)"
    );
}

#[test]
fn the_detail_of_a_rejection_names_one_rate() {
    let detail = |limit: &str, rate: usize| describe_rejection(&config(limit).limits[0], rate);
    assert_eq!(detail("{ rate: 10/s, burst: 20 }", 0), "limit per-ip: 10 requests per second, burst 20");
    assert_eq!(detail("{ rate: [1/s, 5/m] }", 1), "limit per-ip: 5 requests per 60 seconds, burst 5");
    assert_eq!(
        detail("{ algorithm: leaky_bucket, rate: 300/60s, queue: 5 }", 0),
        "limit per-ip: 300 requests per 60 seconds, burst 1, queue 5"
    );
    assert_eq!(
        detail("{ algorithm: concurrency, max_concurrent: 3 }", 0),
        "limit per-ip: 3 requests in flight"
    );
    assert_eq!(
        detail("{ algorithm: concurrency, max_concurrent: auto }", 0),
        "limit per-ip: 4 to 1000 requests in flight"
    );
}

#[test]
fn ordinals() {
    let described: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 101, 111, 112, 1003].map(format_ordinal).into();
    assert_eq!(described.join(" "), "1st 2nd 3rd 4th 11th 12th 13th 21st 101st 111th 112th 1003rd");
}
