//! The fields of a limit.

use http::{Method, StatusCode};
use sluicegate_model::value::names::parse_pointer;
use sluicegate_model::value::scalars;
use sluicegate_model::value::words::parse_word_or;
use sluicegate_model::value::{methods, names};
use sluicegate_model::{
    AlgorithmKind, BUCKETS_MAX, Cost, InvalidCost, KeyPart, MissingKey, OnFailure, Parsed, Rate, StoreConfig,
    ValueError, WindowAlign, codes,
};
use std::time::Duration;

use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{
    COUNT, NONZERO_TIME, NUMBER_OR_SIZE, Nested, NestedOrNone, Number, OneOrMoreOrWord, OrWord, PERCENTAGE,
    RATE_TEXT, SWITCH, Scalar, Special, Text, Words,
};

use super::access::networks;
use super::charge::charge;
use super::reject::on_reject;

section! {
    /// A limit: one set of counters, wherever its name stands in a chain. A rate alone, such as `10/s`, is short for a
    /// token bucket.
    mod limit = "limits.NAME";
    /// The label of an inline limit in metrics, logs and headers; `auto` is the location and the place in its chain.
    NAME: OrWord<Text<String>> = OrWord("auto", Text::new("a name", parse_name)), "name", "auto", "burst";
    /// What is counted apart; several parts are one compound key.
    KEY: OneOrMore<Text<KeyPart>> = OneOrMore(KEY_PART), "key", "ip", "[account, uri]";
    /// What happens to a request that lacks a part of the key: it counts by its address, shares one counter, is
    /// rejected with 403 (or `{ reject: 401 }`), or is not counted.
    MISSING_KEY: Special = Special(missing_key_shape), "missing_key", "ip", "reject";
    /// How requests are counted; see [algorithms](algorithms.md).
    ALGORITHM: Words<AlgorithmKind> = Words(&AlgorithmKind::WORDS), "algorithm", "token_bucket", "sliding_window";
    /// Units and their period; of several rates all must hold. Every algorithm but concurrency needs it. With
    /// `charge: { units: bytes }` it may be a size, such as `50GiB/1d`, which counts in KiB.
    RATE: OneOrMore<Text<Rate>> = OneOrMore(RATE_TEXT), "rate", "[]", "[10/s, 300/m]";
    /// token_bucket: the size of the bucket, `auto` the number of the rate. leaky_bucket: the requests that leave at
    /// once, `auto` 1.
    BURST: OneOrMore<OrWord<Scalar<u64>>> = OneOrMore(OrWord("auto", NUMBER_OR_SIZE)), "burst", "auto", "20";
    /// The requests that may wait. leaky_bucket: `auto` is what leaves within a second, at least 1. concurrency: they
    /// wait for a free slot, and `auto` is 0.
    QUEUE: OneOrMore<OrWord<Number>> = OneOrMore(OrWord("auto", Number(0, u64::MAX))), "queue", "auto", "50";
    /// leaky_bucket, concurrency: the longest wait.
    MAX_WAIT: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "max_wait", "30s", "5s";
    /// leaky_bucket, concurrency: the waiting requests take turns by this key.
    FAIR_BY: OneOrMoreOrWord<Text<KeyPart>> = OneOrMoreOrWord("none", KEY_PART), "fair_by", "none", "account";
    /// concurrency: the requests in flight. `auto`, or a mapping, follows the latency of the upstream.
    MAX_CONCURRENT: Special = Special(max_concurrent), "max_concurrent", "none", "100";
    /// token_bucket, leaky_bucket: from cold, the rate climbs from a third to its full value in this time.
    WARM_UP: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "warm_up", "none", "30s";
    /// fixed_window: windows begin with the first request, or at multiples of the period in UTC.
    ALIGN: Words<WindowAlign> = Words(&[("first", WindowAlign::First), ("clock", WindowAlign::Clock)]),
        "align", "first", "clock";
    /// sliding_window: the sub-windows of a period; more are more exact.
    BUCKETS: Number<u8> = Number(1, BUCKETS_MAX), "buckets", "10", "20";
    /// The units that a request takes: a number, a header that trusted proxies set, a number in the JSON of the body
    /// (below 1 it counts as 1, fractions are rounded up), or `json-rpc`: the calls of a JSON-RPC batch.
    COST: Text<Cost> = Text::new("a number from 1, header:NAME, json:/POINTER or json-rpc", parse_cost),
        "cost", "1", "header:X-Cost";
    /// The response settles what a request costs: failed logins, bytes, tokens of a language model.
    CHARGE: NestedOrNone = NestedOrNone(&charge::SECTION), "charge", "none", "{ units: bytes }";
    /// What a cost that cannot be read means, because it is not a number or the body is no JSON: a cost of 1, or 400.
    /// `auto` is `one` of a header, and `reject` of a body.
    INVALID_COST: OrWord<Words<InvalidCost>> =
        OrWord("auto", Words(&[("one", InvalidCost::One), ("reject", InvalidCost::Reject)])),
        "invalid_cost", "auto", "reject";
    /// The only methods that are limited.
    METHODS: OneOrMoreOrWord<Text<Method>> = METHODS_OR_ANY, "methods", "any", "[POST, PUT]";
    /// Clients without this limit, beside those of `access.bypass`.
    BYPASS: Special = Special(networks), "bypass", "[]", "[10.0.0.0/8]";
    /// Other numbers for the callers of a tier; `none` is no limit.
    TIERS: Special = Special(tiers), "tiers", "{}", "{ gold: { rate: 100/s }, staff: none }";
    /// Judges and counts, but never acts.
    DRY_RUN: Scalar<bool> = SWITCH, "dry_run", "false", "true";
    /// Acts on this share of its keys, always the same ones; for the others it is a dry run. A greater share keeps
    /// those of a smaller one.
    ENFORCE: Text<f64> = PERCENTAGE, "enforce", "100%", "10%";
    /// Other numbers on counters of their own, which judge each request beside those of the limit and never act.
    SHADOW: NestedOrNone = NestedOrNone(&tier_numbers::SECTION), "shadow", "none", "{ rate: 5/s, burst: 10 }";
    /// The response to requests that this limit rejects.
    ON_REJECT: Nested = Nested(&on_reject::SECTION), "on_reject", "{}", "{ status: 503 }";
    /// Where it counts; `auto` is `state.store`.
    STATE: OrWord<Words<StoreConfig>> = OrWord("auto", Words(&StoreConfig::WORDS)), "state", "auto", "redis";
    /// What decides while Redis does not answer; `auto` is `state.redis.on_failure`.
    ON_FAILURE: OrWord<Words<OnFailure>> = OrWord("auto", Words(&OnFailure::WORDS)), "on_failure", "auto", "allow";
}

section! {
    /// A rejection of requests that lack a part of the key. It has no Retry-After, because waiting does not help.
    mod missing_key = "limits.NAME.missing_key";
    /// The status: 401 or 403.
    REJECT: Text<StatusCode> = Text::new("401 or 403", parse_missing_key_status), "reject", "403", "401";
}

section! {
    /// The bounds of a concurrency limit that follows the latency of the upstream.
    mod adaptive = "limits.NAME.max_concurrent";
    /// The least requests in flight.
    MIN: Number<u32> = COUNT, "min", "4", "5";
    /// The most requests in flight.
    MAX: Number<u32> = COUNT, "max", "1000", "200";
}

section! {
    /// Numbers for the callers of a tier, or of a shadow. Those that are missing are the limit's own.
    mod tier_numbers = "limits.NAME.tiers.TIER";
    /// As in the limit.
    RATE: OneOrMore<Text<Rate>> = OneOrMore(RATE_TEXT), "rate", "[]", "100/s";
    /// As in the limit.
    BURST: OneOrMore<OrWord<Scalar<u64>>> = OneOrMore(OrWord("auto", NUMBER_OR_SIZE)), "burst", "auto", "200";
    /// As in the limit.
    QUEUE: OneOrMore<OrWord<Number>> = OneOrMore(OrWord("auto", Number(0, u64::MAX))), "queue", "auto", "50";
    /// As in the limit.
    MAX_WAIT: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "max_wait", "30s", "5s";
    /// As in the limit.
    MAX_CONCURRENT: Special = Special(max_concurrent), "max_concurrent", "none", "100";
}

section! {
    /// A limit of the top with other numbers at this place. It counts in the limit's own counters: one state for each
    /// key, judged here by these numbers. Those that are missing are the limit's own.
    mod chain_view = "locations[].limits[]";
    /// The limit: a token bucket, a leaky bucket, or slots without a queue.
    USE: Text<String> = Text::new("the name of a limit", parse_name), "use", required, "per-ip";
    /// token_bucket: the size of the bucket at this place; with several rates a list. `auto` is the limit's own.
    BURST: OneOrMore<OrWord<Scalar<u64>>> = OneOrMore(OrWord("auto", NUMBER_OR_SIZE)), "burst", "auto", "5";
    /// leaky_bucket: the requests that may wait when one comes to this place. `auto` is the limit's own.
    QUEUE: OneOrMore<OrWord<Number>> = OneOrMore(OrWord("auto", Number(0, u64::MAX))), "queue", "auto", "10";
    /// leaky_bucket: the longest wait of requests to this place. `auto` is the limit's own.
    MAX_WAIT: OrWord<OrWord<Text<Duration>>> = OrWord("auto", OrWord("none", NONZERO_TIME)), "max_wait", "auto", "5s";
    /// concurrency: the requests in flight, at all places together, above which this place takes no more. `auto` is
    /// the limit's own.
    MAX_CONCURRENT: OrWord<Number<u32>> = OrWord("auto", COUNT), "max_concurrent", "auto", "5";
}

/// A part of a key.
pub const KEY_PART: Text<KeyPart> = Text::new(
    "ip, account, tier, uri, location, host, method, global, header:NAME, cookie:NAME, query:NAME, jwt:CLAIM or \
     json:/POINTER",
    parse_key_part,
);

/// Request methods, or `any`.
pub const METHODS_OR_ANY: OneOrMoreOrWord<Text<Method>> =
    OneOrMoreOrWord("any", Text::new("a request method", methods::parse_method));

fn tiers() -> Shape {
    let none = || Shape::Words(vec!["none"]);
    let numbers = Shape::Either(vec![none(), Shape::Section(&tier_numbers::SECTION)]);
    Shape::Either(vec![none(), Shape::Map("tiers", Box::new(numbers))])
}

fn max_concurrent() -> Shape {
    let requests = Shape::Integer(1, u64::from(u32::MAX));
    Shape::Either(vec![Shape::Words(vec!["auto"]), requests, Shape::Section(&adaptive::SECTION)])
}

fn missing_key_shape() -> Shape {
    Shape::Either(vec![Shape::Words(MissingKey::LABELS.to_vec()), Shape::Section(&missing_key::SECTION)])
}

fn parse_missing_key_status(text: &str) -> Parsed<StatusCode> {
    match text {
        "401" => Ok(StatusCode::UNAUTHORIZED),
        "403" => Ok(StatusCode::FORBIDDEN),
        _ => {
            let message = format!("`{text}` is not a status of a request without its key");
            Err(ValueError::new(codes::STATUS, message).with_help("write 401 or 403"))
        }
    }
}

/// A name of a location or of an inline limit.
pub fn parse_name(text: &str) -> Parsed<String> {
    names::check_name(text).map(|()| text.to_owned())
}

fn parse_key_part(text: &str) -> Parsed<KeyPart> {
    if let Some(source) = names::parse_source(text) {
        return source.map(KeyPart::Source);
    }
    let parts = [
        ("ip", KeyPart::Ip),
        ("account", KeyPart::Account),
        ("tier", KeyPart::Tier),
        ("uri", KeyPart::Uri),
        ("location", KeyPart::Location),
        ("host", KeyPart::Host),
        ("method", KeyPart::Method),
        ("global", KeyPart::Global),
    ];
    parse_word_or(&parts, text, || {
        names::suggest_source(text).unwrap_or_else(|| format!("write {}", KEY_PART.says))
    })
}

fn parse_cost(text: &str) -> Parsed<Cost> {
    // Servers may read numbers and calls in a body of a client that the gateway does not.
    let (of_header, invalid) = (InvalidCost::One, InvalidCost::Reject);
    match text.split_once(':') {
        Some(("header", name)) => {
            names::parse_header_name(name).map(|name| Cost::Header { name, invalid: of_header })
        }
        Some(("json", pointer)) => parse_pointer(pointer).map(|pointer| Cost::Json { pointer, invalid }),
        _ if text == "json-rpc" => Ok(Cost::JsonRpc { invalid }),
        _ => scalars::parse_number(text, 1, u64::MAX).map(Cost::Units),
    }
}
