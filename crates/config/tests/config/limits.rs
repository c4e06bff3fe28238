//! The limits of valid files, field by field.

use std::time::Duration;

use sluicegate_model::*;

use super::values::{limit, read, seconds};

pub fn token_bursts(limit: &LimitConfig) -> Vec<(u64, u64)> {
    match &limit.algorithm {
        Algorithm::TokenBucket { rates } => {
            rates.iter().map(|one| (one.rate.units.get(), one.burst)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn leaky(limit: &LimitConfig) -> (Vec<(u64, u64)>, Option<Duration>) {
    match &limit.algorithm {
        Algorithm::LeakyBucket { rates, max_wait } => {
            (rates.iter().map(|one| (one.burst, one.queue)).collect(), *max_wait)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn limit_fields() {
    let config = read("all_limit_fields");
    let plain = limit(&config, "plain");
    assert_eq!((token_bursts(plain), &plain.key[..]), (vec![(10, 10)], &[KeyPart::Ip][..]));
    assert_eq!((plain.missing_key, &plain.cost, plain.dry_run), (MissingKey::Ip, &Cost::Units(1), false));
    let token = limit(&config, "token");
    assert_eq!(token_bursts(token), [(10, 20), (1000, 1000)]);
    assert_eq!(token.key.len(), 10);
    assert_eq!(token.key[9].words(), ("json:", "/params/name"));
    assert_eq!(token.key[7], KeyPart::Source(ValueSource::Cookie("sid".to_owned())));
    assert_eq!((token.missing_key, &token.cost, token.dry_run), (MissingKey::Shared, &Cost::Units(5), true));
    assert_eq!((token.methods.len(), token.bypass.written.len()), (2, 2));
    assert!(matches!(token.on_reject.body, Some(RejectBody::Envelope)));
    assert_eq!(token.on_reject.status.flatten().map(|status| status.as_u16()), Some(430));
    assert_eq!(leaky(limit(&config, "leaky")), (vec![(2, 7)], None));
    assert_eq!((plain.warm_up, &plain.fair_by[..]), (None, &[][..]), "both are off unless written");
    let fair = limit(&config, "leaky-auto");
    assert_eq!((fair.warm_up, &fair.fair_by[..]), (Some(seconds(10)), &[KeyPart::Account, KeyPart::Ip][..]));
    assert_eq!(leaky(limit(&config, "leaky-auto")), (vec![(1, 10), (1, 1)], Some(seconds(30))));
    assert!(matches!(limit(&config, "busy").algorithm, Algorithm::Concurrency { min: None, max: 100, .. }));
    let cost = |name: &str| limit(&config, name).cost.clone();
    let by = |invalid| Cost::Header { name: http::HeaderName::from_static("x-cost"), invalid };
    assert_eq!(cost("priced"), by(InvalidCost::One));
    assert_eq!(cost("priced-exactly"), by(InvalidCost::Reject));
    assert!(matches!(cost("priced-by-body"), Cost::Json { invalid: InvalidCost::Reject, .. }));
    assert!(matches!(cost("priced-by-some"), Cost::Json { invalid: InvalidCost::One, .. }));
    let chain = |location: usize| -> Vec<&str> {
        config.locations[location].limits.iter().map(|index| config.limits[*index].name.as_str()).collect()
    };
    assert_eq!(chain(0), ["plain", "/a#2", "token", "/a#4"]);
    assert_eq!(chain(1), ["a.com POST /a#1"]);
    assert_eq!(chain(2), ["leaky", "leaky-auto", "busy", "priced", "priced-exactly"]);
    assert!(chain(3).is_empty());
    assert_eq!(token_bursts(limit(&config, "/a#2")), [(5, 9)]);
    assert!(matches!(&config.account.from, Some(ValueSource::Header(name)) if name == "x-account-id"));
}

#[test]
fn window_fields() {
    let config = read("all_limit_fields");
    let algorithm = |name: &str| match &limit(&config, name).algorithm {
        Algorithm::FixedWindow { align, .. } => format!("{align:?}"),
        Algorithm::SlidingWindow { buckets, .. } => format!("{buckets} buckets"),
        other => format!("{other:?}")[..10].to_owned(),
    };
    let names = ["quota", "edge", "smooth", "smooth-auto", "exact"];
    assert_eq!(names.map(algorithm), ["Clock", "First", "60 buckets", "10 buckets", "SlidingLog"]);
    let quotas: Vec<u64> =
        limit(&config, "quota").algorithm.rate_quotas().into_iter().map(|(_, units)| units).collect();
    assert_eq!((quotas, limit(&config, "smooth").algorithm.rate_count()), (vec![300, 5_000_000_000], 2));
}

#[test]
fn a_missing_key_is_rejected_with_the_status_written() {
    for (written, missing_key, status) in [
        ("skip", MissingKey::Skip, 403),
        ("reject", MissingKey::Reject, 403),
        ("{ reject: 403 }", MissingKey::Reject, 403),
        ("{ reject: 401 }", MissingKey::Reject, 401),
        ("{ reject: \"401\" }", MissingKey::Reject, 401),
    ] {
        let file = format!(
            "limits: {{ a: {{ rate: 1/s, missing_key: {written} }} }}\nlocations: [{{ path: /, upstream: demo, limits: a }}]\n"
        );
        let config = sluicegate_config::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config;
        let limit = limit(&config, "a");
        assert_eq!(
            (limit.missing_key, limit.missing_key_status.as_u16()),
            (missing_key, status),
            "{written}"
        );
    }
    assert_eq!(limit(&read("all_limit_fields"), "plain").missing_key_status, 403);
}

#[test]
fn dialects_of_bodies_and_the_values_that_they_contain() {
    let config = read("dialects");
    assert_eq!(config.on_reject.body, RejectBody::JsonRpc { code: -32023 });
    let body = |location: usize| config.locations[location].on_reject.body.clone();
    assert_eq!(body(1), Some(RejectBody::JsonRpc { code: -32000 }));
    assert_eq!(body(2), Some(RejectBody::JsonRpc { code: -32023 }));
    assert_eq!(limit(&config, "tool").on_reject.body, Some(RejectBody::OpenAi));
    assert_eq!(limit(&config, "tool").key, [KeyPart::Ip, KeyPart::Mcp(McpPart::Name)]);
    let method = limit(&config, "method");
    assert_eq!(
        (&method.key[..], &method.fair_by[..]),
        (&[KeyPart::Mcp(McpPart::Method)][..], &[KeyPart::BodyHash][..])
    );
    assert_eq!(method.on_reject.body, Some(RejectBody::Anthropic));
    assert!(method.reads_mcp() && method.hashes_body() && method.reads_body());
    let told = |location: usize| config.echoed_values(Some(&config.locations[location]));
    let at = |text| vec![EchoedValue::At(value::names::parse_pointer(text).expect("a pointer"))];
    // Nothing is read for a body that a location replaces.
    assert_eq!(told(3), at("/model"));
    assert_eq!(told(4), at("/a~1b"));
    assert!([0, 1, 2].map(told).iter().all(|told| told[0] == EchoedValue::RpcId));
    assert_eq!(config.echoed_values(None), [EchoedValue::RpcId]);
    assert!(read("smallest").echoed_values(None).is_empty());
}
