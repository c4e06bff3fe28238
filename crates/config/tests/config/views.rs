//! Chains that use a limit with other numbers: their mistakes, their values, and the sentences about them.

use std::time::Duration;

use sluicegate_config as config;
use sluicegate_config::describe::{describe_chain_limit, describe_limit, describe_rejection};
use sluicegate_model::*;

/// Limits of every kind, and a location whose chain has the entry.
fn file(entry: &str) -> String {
    format!(
        r#"state: {{ redis: {{ url: "redis://127.0.0.1" }} }}
limits:
  tokens: {{ rate: 10/s, burst: 20 }}
  short: 10/s
  pair: {{ rate: [10/s, 300/m], burst: [20, 300] }}
  queue: {{ algorithm: leaky_bucket, rate: 10/s, burst: 2, queue: 5 }}
  turns: {{ algorithm: leaky_bucket, rate: 10/s, fair_by: uri }}
  fixed: {{ algorithm: fixed_window, rate: 10/s }}
  slots: {{ algorithm: concurrency, max_concurrent: 1 }}
  waited: {{ algorithm: concurrency, max_concurrent: 9, queue: 1 }}
  adaptive: {{ algorithm: concurrency, max_concurrent: auto }}
  wrong: {{ rate: 10 }}
  dear: {{ rate: 100/s, cost: 50 }}
  login: {{ rate: 10/m, charge: {{ reserve: 4 }} }}
  bytes: {{ rate: 1GiB/h, charge: {{ units: bytes }} }}
  shared: {{ rate: 10/s, state: redis }}
locations:
  - path: /all
    upstream: demo
    limits: [tokens, short, pair, queue, turns, fixed, slots, waited, adaptive, dear, login, bytes, shared]
  - {{ path: /, upstream: demo, limits: [{entry}] }}
"#
    )
    .replace(
        "  wrong: { rate: 10 }\n",
        if entry.contains("use: wrong") { "  wrong: { rate: 10 }\n" } else { "" },
    )
}

/// The problems of an entry, without those of the wrong limit's own definition.
fn problems(entry: &str) -> Vec<Problem> {
    let report = config::parse(&file(entry), "gateway.yaml").expect_err(entry);
    report.problems.into_iter().filter(|problem| !problem.field.starts_with("limits.wrong")).collect()
}

fn valid(entry: &str) -> (Config, Vec<Problem>) {
    let loaded =
        config::parse(&file(entry), "gateway.yaml").unwrap_or_else(|report| panic!("{entry}: {report}"));
    (loaded.config, loaded.warnings)
}

/// An entry, the beginning of its problem, and a part of the advice.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("{ use: tokns, burst: 5 }", "the limit `tokns` is not defined", "did you mean `tokens`?"),
    ("{ burst: 5 }", "`rate` is missing", "rate: 10/s"),
    ("{ uses: tokens, burst: 5 }", "unknown field `uses`", "did you mean `use`?"),
    ("{ use: tokens, brust: 5 }", "unknown field `brust`", "did you mean `burst`?"),
    ("{ use: tokens }", "this place has no number of its own", "limits: tokens"),
    ("{ use: tokens, burst: 0 }", "a burst of 0 would let nothing pass", "write burst: 1"),
    ("{ use: tokens, burst: many }", "`many` is not a whole number", "or write auto"),
    ("{ use: tokens, burst: [5, 6] }", "2 numbers of burst for one rate", "one number for each rate"),
    ("{ use: pair, burst: 5 }", "one burst for 2 rates", "one number for each rate"),
    ("{ use: [tokens], burst: 5 }", "`use` must be one value", ""),
    (
        "{ use: tokens, rate: 5/s }",
        "`rate` belongs to the limit",
        "its own burst, queue, max_wait or max_concurrent",
    ),
    ("{ use: tokens, key: account, burst: 2 }", "`key` belongs to the limit", "write the rest under limits"),
    (
        "{ use: tokens, queue: 5 }",
        "`queue` of the limit `tokens`, a token_bucket, is the same everywhere",
        "write a burst",
    ),
    ("{ use: tokens, burst: 3, max_wait: 5s }", "`max_wait` of the limit `tokens`", "no request waits"),
    (
        "{ use: queue, burst: 3 }",
        "`burst` of the limit `queue`, a leaky_bucket, is the same everywhere",
        "write queue or max_wait",
    ),
    ("{ use: queue, max_wait: 5 }", "the duration `5` has no unit", ""),
    ("{ use: turns, queue: 3 }", "the limit `turns` has fair_by", "a limit of its own"),
    (
        "{ use: fixed, burst: 3 }",
        "the limit `fixed` is a fixed_window",
        "only a token_bucket, a leaky_bucket or a concurrency",
    ),
    (
        "{ use: slots, queue: 3 }",
        "`queue` of the limit `slots`, a concurrency, is the same everywhere",
        "write max_concurrent",
    ),
    ("{ use: slots, max_concurrent: 0 }", "`0` is", ""),
    ("{ use: tokens, max_concurrent: 3 }", "`max_concurrent` of the limit `tokens`", "write a burst"),
    ("{ use: waited, max_concurrent: 3 }", "the limit `waited` has a queue", "a limit of its own"),
    ("{ use: adaptive, max_concurrent: 3 }", "the limit `adaptive` has a queue, or follows", ""),
    ("{ use: dear, burst: 40 }", "a cost of 50 can never pass: burst is 40", "at most 40"),
    ("{ use: login, burst: 3 }", "a reservation of 4 can never pass: burst is 3", "at least 4"),
    ("{ use: bytes, burst: 5 }", "`5` is a number, and the rate of this limit is a size", "10MiB"),
    ("{ use: tokens, burst: 5MiB }", "`5MiB` is a size", ""),
    ("{ use: tokens, burst: 18446744073709551615 }", "a bucket of 18446744073709551615", "a smaller burst"),
    (
        "{ use: shared, burst: 45035996274 }",
        "burst of 45035996274 is more than Redis counts",
        "write at most",
    ),
    ("tokens, { use: tokens, burst: 5 }", "the limit `tokens` is in this chain twice", ""),
    ("{ use: tokens, burst: 5 }, { use: tokens, burst: 6 }", "the limit `tokens` is in this chain twice", ""),
];

#[test]
fn mistakes_of_views_are_told_where_they_are() {
    for (entry, message, help) in MISTAKES {
        let problems = problems(entry);
        let found = problems.iter().map(|problem| format!("{problem:?}")).collect::<Vec<_>>().join("\n");
        assert_eq!(problems.len(), 1, "{entry}: {found}");
        assert!(problems[0].message.starts_with(message), "{entry}: {found}");
        assert!(problems[0].suggestion.clone().unwrap_or_default().contains(help), "{entry}: {found}");
        assert!(problems[0].line >= 20, "{entry}: {found}");
    }
    assert_eq!(problems("{ use: wrong, burst: 5 }"), [], "the limit is wrong, not its use");
}

fn bursts(numbers: &Algorithm) -> Vec<u64> {
    match numbers {
        Algorithm::TokenBucket { rates } => rates.iter().map(|one| one.burst).collect(),
        Algorithm::LeakyBucket { rates, .. } => rates.iter().map(|one| one.queue).collect(),
        Algorithm::Concurrency { max, .. } => vec![u64::from(*max)],
        other => panic!("{other:?}"),
    }
}

/// The numbers by which a limit judges at the second location.
fn at_place<'a>(config: &'a Config, name: &str) -> &'a Algorithm {
    let id = LimitId(config.limits.iter().position(|limit| limit.name == name).expect(name));
    let view = config.view_at(Some(&config.locations[1]), id);
    let limit = &config.limits[id];
    let variant = view.map_or(0, |view| limit.view_variant(view));
    assert_eq!(limit.is_view(variant), view.is_some());
    limit.algorithm_variants().nth(variant).expect("its numbers")
}

#[test]
fn a_view_has_the_rates_of_its_limit_and_other_numbers() {
    for (name, fields, expected) in [
        ("tokens", "burst: 5", vec![5]),
        ("short", "burst: 50", vec![50]),
        ("pair", "burst: [5, auto]", vec![5, 300]),
        ("queue", "queue: 0", vec![0]),
        ("queue", "queue: 9, max_wait: 2s", vec![9]),
        ("dear", "burst: 50", vec![50]),
        ("slots", "max_concurrent: 3", vec![3]),
        ("bytes", "burst: 8MiB", vec![8192]),
    ] {
        let (config, warnings) = valid(&format!("{{ use: {name}, {fields} }}"));
        let numbers = at_place(&config, name);
        assert_eq!(bursts(numbers), expected, "{name} {fields}");
        let own = config.limits.iter().find(|limit| limit.name == name).expect(name);
        let rates =
            |numbers: &Algorithm| numbers.rate_quotas().iter().map(|(rate, _)| *rate).collect::<Vec<_>>();
        assert_eq!(rates(numbers), rates(&own.algorithm), "{name} {fields}");
        assert!(warnings.iter().all(|warning| warning.code != "W009"), "{warnings:?}");
        assert!(warnings.iter().all(|warning| !warning.message.contains("never used")), "{warnings:?}");
    }
    let max_wait = |fields: &str| {
        let (config, _) = valid(&format!("{{ use: queue, {fields} }}"));
        match at_place(&config, "queue") {
            Algorithm::LeakyBucket { max_wait, .. } => *max_wait,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(max_wait("queue: 1"), Some(Duration::from_secs(30)));
    assert_eq!(max_wait("max_wait: 2s"), Some(Duration::from_secs(2)));
    assert_eq!(max_wait("max_wait: none"), None);
}

#[test]
fn equal_numbers_are_one_view_and_those_of_the_limit_none() {
    let (config, warnings) = valid("{ use: tokens, burst: 20 }");
    assert_eq!(config.limits[0].views, []);
    let warning = &warnings.iter().find(|warning| warning.code == "W009").expect("a warning").message;
    assert_eq!(warning, "these are the limit's own numbers, so that `use` has no effect for `tokens`");
    let two = concat!(
        "limits: { a: 10/s }\nserver: { limits: [{ use: a, burst: 30 }] }\nlocations:\n",
        "  - { path: /x, upstream: demo, limits: { use: a, burst: 30 } }\n",
        "  - { path: /y, upstream: demo, limits: { use: a, burst: 40 } }\n",
        "  - { path: /z, upstream: demo, limits: a }\n",
        "  - { path: /, upstream: demo }\n",
    );
    let config = config::parse(two, "x").unwrap_or_else(|report| panic!("{report}")).config;
    assert_eq!(config.limits[0].views.len(), 2);
    let view = |location: usize| config.view_at(config.locations.get(location), LimitId(0));
    let expected = [Some(ViewId(0)), Some(ViewId(1)), None, Some(ViewId(0)), Some(ViewId(0))];
    // The location's own entry comes before that of the server; the last is that of no location.
    assert_eq!([0, 1, 2, 3, 4].map(view), expected);
}

#[test]
fn there_are_at_most_64_different_numbers() {
    let locations = |count: u64| {
        let one = |burst| {
            format!("  - {{ path: /{burst}, upstream: demo, limits: {{ use: a, burst: {burst} }} }}\n")
        };
        let all: String = (1..=count).map(one).collect();
        config::parse(&format!("limits: {{ a: 100/s }}\nlocations:\n{all}"), "x")
    };
    assert_eq!(locations(64).expect("64 views").config.limits[0].views.len(), 64);
    let report = locations(65).expect_err("65 views");
    assert!(report.problems[0].message.contains("more than 64 different numbers"), "{report}");
}

#[test]
fn small_bursts_and_long_queues_of_a_place_are_warned_of() {
    for (entry, code, message) in [
        ("{ use: tokens, burst: 2 }", "W004", "a burst of 2 is less than the rate allows in one second"),
        ("{ use: queue, queue: 900 }", "W005", "a queue of 900 drains in 90 seconds"),
    ] {
        let (_, warnings) = valid(entry);
        let warning = warnings.iter().find(|warning| warning.code == code).expect(entry);
        assert!(warning.message.starts_with(message), "{warning:?}");
        assert_eq!(warning.line, 20, "{warning:?}");
    }
}

#[test]
fn sentences_show_the_numbers_of_the_place() {
    let (config, _) = valid("{ use: tokens, burst: 5 }");
    let own = "tokens: 10 requests per second per client IP, 20 at once; the 21st is rejected with 429 and told when \
               to return; counted by each gateway for itself";
    assert_eq!(describe_limit(&config, LimitId(0), None), own);
    assert_eq!(describe_limit(&config, LimitId(0), Some(&config.locations[0])), own);
    let here = "tokens: 10 requests per second per client IP, 5 at once; the 6th is rejected with 429 and told when to \
                return; counted by each gateway for itself; it counts together with its other places";
    assert_eq!(describe_limit(&config, LimitId(0), Some(&config.locations[1])), here);
    assert_eq!(describe_chain_limit(&config, LimitId(0), Some(&config.locations[1])), here);
    let variant = config.limits[0].view_variant(ViewId(0));
    assert_eq!(
        describe_rejection(&config.limits[0], variant),
        "limit tokens: 10 requests per second, burst 5"
    );
}

#[test]
fn tiers_keep_their_numbers_at_every_place() {
    let text = concat!(
        "account: { from: header:X-Account, tier: { from: header:X-Tier } }\n",
        "limits: { a: { rate: 10/s, tiers: { gold: { rate: 100/s }, staff: none } } }\n",
        "locations: [{ path: /, upstream: demo, limits: { use: a, burst: 30 } }]\n",
    );
    let config = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
    let limit = &config.limits[0];
    let own = limit.view_variant(ViewId(0));
    let at = |tier| {
        let variant = limit.variant_at(own, tier)?;
        limit.algorithm_variants().nth(variant).map(bursts)
    };
    assert_eq!((at(None), at(Some("free"))), (Some(vec![30]), Some(vec![30])));
    assert_eq!((at(Some("gold")), at(Some("staff"))), (Some(vec![100]), None));
    assert_eq!(
        (limit.variant_tier(0), limit.variant_tier(1), limit.variant_tier(own)),
        (None, Some("gold"), None)
    );
    assert_eq!((limit.counter_rate(own), limit.counter_rate(1), limit.deepest_bucket(0)), (0, 1, 30));
}
