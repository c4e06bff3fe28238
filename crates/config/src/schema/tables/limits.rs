//! The fields of a limit, and of its `charge`.

use std::time::Duration;

use http::{Method, StatusCode};

use super::access::networks;
use super::reject::on_reject;
use super::shares::shares;
use crate::schema::field::{DescribeValue, OneOrMore, Shape, section};
use crate::schema::kinds::{
    COUNT, NONZERO_TIME, NUMBER_OR_SIZE, Nested, NestedOrNone, Number, OneOrMoreOrWord, OrWord, PERCENTAGE,
    RATE_TEXT, SHARE, STATUS_RANGE, SWITCH, Scalar, Special, Text, Words, text,
};
use sluicegate_base::calendar::{Calendar, Time, WEEKDAYS, Weekday, WindowStart, parse_time, parse_year_day};
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_model::value::money::parse_decimal;
use sluicegate_model::value::names::parse_pointer;
use sluicegate_model::value::statuses::{parse_grpc_code, parse_status_range};
use sluicegate_model::value::words::parse_word_or;
use sluicegate_model::value::{methods, names, scalars};
use sluicegate_model::{
    AlgorithmKind, BUCKETS_MAX, ChargedUnits, Cost, Currency, InvalidCost, KeyPart, LlmWeights, McpPart,
    MissingKey, MissingUnits, OnFailure, OverrunAction, Parsed, QuotaStep, Rate, StoreConfig, ValueError,
    WindowAlign, codes, did_you_mean,
};

section! {
    /// A limit: one set of counters, wherever its name stands in a chain. A rate alone, such as `10/s`, is short for a
    /// token bucket.
    mod limit = "limits.NAME";
    /// The label of an inline limit in metrics, logs and headers; `auto` is the location and the place in its chain.
    NAME: OrWord<Text<String>> = OrWord("auto", Text::new("a name", parse_name)), "name", "auto", "burst";
    /// What is counted apart; several parts are one compound key.
    KEY: OneOrMore<Text<KeyPart>> = OneOrMore(LIMIT_KEY_PART), "key", "ip", "[account, uri]";
    /// What happens to a request that lacks a part of the key: it counts by its address, shares one counter, is
    /// rejected with 403 (or `{ reject: 401 }`), or is not counted.
    MISSING_KEY: Special = Special(missing_key_shape), "missing_key", "ip", "reject";
    /// How requests are counted; see [algorithms](algorithms.md).
    ALGORITHM: Words<AlgorithmKind> = Words(&AlgorithmKind::WORDS), "algorithm", "token_bucket", "sliding_window";
    /// Units and their period; of several rates all must hold. Every algorithm but concurrency needs it. With
    /// `charge: { units: bytes }` it may be a size, such as `50GiB/1d`, which counts in KiB; with `units: money` it is
    /// an amount of a currency, such as `50 USD/1d`, which counts in millionths. `100000/month`
    /// counts in fixed windows of the calendar.
    RATE: OneOrMore<Text<Rate>> = OneOrMore(RATE_TEXT), "rate", "[]", "[10/s, 300/m]";
    /// Windows of the calendar, such as `/month`: their time zone, a name of the IANA data.
    ZONE: Text<String> = Text::new("the name of a time zone", parse_zone), "zone", "UTC", "Europe/Berlin";
    /// Windows of the calendar: their beginnings, or `account` for the dates in column `anchor` of `account.keys`; see
    /// [quotas](quotas.md).
    BEGINS: Special = Special(begins_shape), "begins", "{}", "{ month: 15 }";
    /// Fixed windows: the consequences at percentages of the quota, rising; see [quotas](quotas.md). A quota without
    /// steps rejects at 100%.
    STEPS: Special = Special(|| Shape::List(Box::new(Shape::Section(&step::SECTION)))), "steps", "[]",
        "[{ at: 80%, then: warn }, { at: 120%, then: reject }]";
    /// token_bucket: the size of the bucket, `auto` the number of the rate. leaky_bucket: the requests that leave at
    /// once, `auto` 1.
    BURST: OneOrMore<OrWord<Scalar<u64>>> = OneOrMore(OrWord("auto", NUMBER_OR_SIZE)), "burst", "auto", "20";
    /// The requests that may wait. leaky_bucket: `auto` is what leaves within a second, at least 1. concurrency: they
    /// wait for a free slot, and `auto` is 0.
    QUEUE: OneOrMore<OrWord<Number>> = OneOrMore(OrWord("auto", Number(0, u64::MAX))), "queue", "auto", "50";
    /// leaky_bucket, concurrency: the longest wait.
    MAX_WAIT: OrWord<Text<Duration>> = OrWord("none", NONZERO_TIME), "max_wait", "30s", "5s";
    /// leaky_bucket, concurrency: the waiting requests take turns by this key.
    FAIR_BY: OneOrMoreOrWord<Text<KeyPart>> = OneOrMoreOrWord("none", LIMIT_KEY_PART), "fair_by", "none", "account";
    /// Guaranteed shares of classes of callers: parts that the others cannot use up, and parts that a class never goes
    /// beyond; see [shares](shares.md).
    SHARES: NestedOrNone = NestedOrNone(&shares::SECTION), "shares", "none",
        "{ by: tier, classes: { gold: { least: 50% } } }";
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
    /// Where it counts; `auto` is `state.store`. With `leased`, gateways take units from Redis in advance, and never
    /// admit more than the limit together; for a `token_bucket` with a burst of at least what the rate lets pass in
    /// 50 ms, for windows, and for a `leaky_bucket` with a queue of at least 8.
    STATE: OrWord<Words<StoreConfig>> = OrWord("auto", Words(&StoreConfig::WORDS)), "state", "auto", "redis";
    /// What decides while Redis does not answer; `auto` is `state.redis.on_failure`.
    ON_FAILURE: OrWord<Words<OnFailure>> = OrWord("auto", Words(&OnFailure::WORDS)), "on_failure", "auto", "allow";
}

section! {
    /// When windows of the calendar begin. Each entry needs a rate with windows that it moves.
    mod begins = "limits.NAME.begins";
    /// The time of day at which all windows longer than an hour begin.
    DAY: Text<Time> = Text::new("a time such as 06:00", parse_day_time), "day", "00:00", "06:00";
    /// The first day of weeks.
    WEEK: Words<Weekday> = Words(&WEEKDAYS), "week", "monday", "sunday";
    /// The first day of months; the last day where a month is shorter.
    MONTH: Number<i8> = Number(1, 31), "month", "1", "15";
    /// The first month and day of years; quarters begin then, and three, six and nine months later.
    YEAR: Text<(i8, i8)> = Text::new("a month and a day such as 04-06", parse_year_begin), "year", "01-01", "04-06";
}

section! {
    /// A step of a quota.
    mod step = "limits.NAME.steps";
    /// The percentage of the quota, with up to three decimals. What would use more is slowed or rejected.
    AT: Text<u64> = Text::new("a percentage", parse_step_percent).matching(SHARE), "at", required, "80%";
    /// The consequence: the caller is told, has what is above admitted at `rate`, or is rejected.
    THEN: Words<&'static str> = Words(&[("warn", "warn"), ("slow", "slow"), ("reject", "reject")]),
        "then", required, "warn";
    /// slow: the requests that are admitted above the step; its number may come at once.
    RATE: OrWord<Text<Rate>> = OrWord("none", Text::new("a rate", scalars::parse_rate)), "rate", "none", "1/s";
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

/// A part of the key of a limit.
pub const LIMIT_KEY_PART: Text<KeyPart> = Text::new(
    "ip, account, tier, uri, location, host, method, global, header:NAME, cookie:NAME, query:NAME, jwt:CLAIM, \
     json:/POINTER, mcp:method, mcp:name or body:hash",
    parse_limit_key_part,
);

/// A part of a key that needs no body of a known form.
pub const KEY_PART: Text<KeyPart> = Text::new(
    "ip, account, tier, uri, location, host, method, priority, global, header:NAME, cookie:NAME, query:NAME, \
     jwt:CLAIM or json:/POINTER",
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

fn begins_shape() -> Shape {
    Shape::Either(vec![Shape::Words(vec!["account"]), Shape::Section(&begins::SECTION)])
}

fn missing_key_shape() -> Shape {
    Shape::Either(vec![Shape::Words(MissingKey::LABELS.to_vec()), Shape::Section(&missing_key::SECTION)])
}

/// A chain of limits.
pub fn chain() -> Shape {
    let item = Shape::Either(vec![
        text("the name of a limit, or a rate"),
        Shape::Section(&chain_view::SECTION),
        Shape::Section(&limit::SECTION),
    ]);
    Shape::OneOrMore(Box::new(item))
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

/// A percentage above 0, in millionths of the whole.
fn parse_step_percent(text: &str) -> Parsed<u64> {
    let wrong = |why: &str| {
        ValueError::new(codes::PERCENT, format!("`{text}` {why}"))
            .with_help("write a number from 0.001 to 1000 and a percent sign: 80%")
    };
    let number = text.strip_suffix('%').ok_or_else(|| wrong("is not a percentage"))?;
    let millionths = parse_decimal(number).map_err(wrong)?;
    match millionths / 100 {
        // A decimal of a structured field has three at most (RFC 9651).
        _ if millionths % 1_000 > 0 => Err(wrong("has more than three decimals")),
        0 => Err(wrong("is no part of a quota")),
        at if at > 10 * QuotaStep::WHOLE => Err(wrong("is more than ten times the quota")),
        at => Ok(at),
    }
}

fn parse_zone(text: &str) -> Parsed<String> {
    parse_calendar(text).map(|_| text.to_owned())
}

/// The calendar of a time zone, with the default beginnings.
pub fn parse_calendar(zone: &str) -> Parsed<Calendar> {
    Calendar::new(zone, WindowStart::default()).ok_or_else(|| {
        let names = Calendar::zone_names();
        let near = did_you_mean(zone, names.iter().map(String::as_str));
        let message = format!("`{zone}` is not a time zone of the IANA data");
        let help = near.unwrap_or_else(|| "write e.g. Europe/Berlin, America/New_York or UTC".to_owned());
        ValueError::new(codes::NAME, message).with_help(help)
    })
}

fn parse_day_time(text: &str) -> Parsed<Time> {
    let wrong = || ValueError::new(codes::DURATION, format!("`{text}` is not a time of day"));
    parse_time(text).ok_or_else(|| wrong().with_help("write hours and minutes, from 00:00 to 23:59"))
}

fn parse_year_begin(text: &str) -> Parsed<(i8, i8)> {
    let wrong = || ValueError::new(codes::NUMBER, format!("`{text}` is not a day of a year"));
    parse_year_day(text).ok_or_else(|| wrong().with_help("write the month and the day, from 01-01 to 12-31"))
}

/// A name of a location or of an inline limit.
pub fn parse_name(text: &str) -> Parsed<String> {
    names::check_name(text).map(|()| text.to_owned())
}

fn parse_limit_key_part(text: &str) -> Parsed<KeyPart> {
    let words = [
        ("mcp:method", KeyPart::Mcp(McpPart::Method)),
        ("mcp:name", KeyPart::Mcp(McpPart::Name)),
        ("body:hash", KeyPart::BodyHash),
    ];
    parse_key_part_or(&words, text, LIMIT_KEY_PART.says)
}

fn parse_key_part(text: &str) -> Parsed<KeyPart> {
    parse_key_part_or(&[], text, KEY_PART.says)
}

fn parse_key_part_or(words: &[(&str, KeyPart)], text: &str, says: &str) -> Parsed<KeyPart> {
    if let Some(source) = names::parse_source(text) {
        return source.map(KeyPart::Source);
    }
    let mut parts = vec![
        ("ip", KeyPart::Ip),
        ("account", KeyPart::Account),
        ("tier", KeyPart::Tier),
        ("uri", KeyPart::Uri),
        ("location", KeyPart::Location),
        ("host", KeyPart::Host),
        ("method", KeyPart::Method),
        ("priority", KeyPart::Priority),
        ("global", KeyPart::Global),
    ];
    parts.extend_from_slice(words);
    parse_word_or(&parts, text, || names::suggest_source(text).unwrap_or_else(|| format!("write {says}")))
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

section! {
    /// A limit whose responses settle what a request costs: each request reserves units, and at the end of its
    /// response the counter is corrected by what that used.
    mod charge = "limits.NAME.charge";
    /// The responses that cost anything: statuses, classes, ranges, and codes of gRPC. A request without a response
    /// counts as one of them once it was sent.
    WHEN: OneOrMoreOrWord<Scalar<ResponseItem>> = OneOrMoreOrWord("any", RESPONSE), "when", "any", "[401, 403]";
    /// The responses that forget what the key has used; the reservations of open requests stay. A response that is in
    /// `when` too is charged first, and then forgotten with the rest.
    CLEAR: OneOrMoreOrWord<Scalar<ResponseItem>> = OneOrMoreOrWord("none", RESPONSE), "clear", "none", "[2xx]";
    /// What a response costs, the sum of a list: `request` is the cost of the request, `bytes` the body that was
    /// delivered, `header:NAME` and `json:/POINTER` a number in the response, `llm` the tokens that it reports, and
    /// `money`, alone, their price.
    UNITS: Special = Special(units_shape), "units", "request", "bytes";
    /// The units that a request takes until its response settles them: a number, or one in its JSON body. `cost` is
    /// the cost of the limit. Of money it is a mapping, in tokens: `from` and `default` are output, `plus` is input.
    RESERVE: Special = Special(reserve_shape), "reserve", "cost", "100";
    /// The cost of a response that does not say it, or whose end nobody awaited: an estimate by what was delivered, of
    /// tokens after an early end or without a known text at least what was reserved; what was reserved; or nothing.
    MISSING: Words<MissingUnits> = Words(&MissingUnits::WORDS), "missing", "estimate", "reserved";
    /// What happens to a response that uses more than was reserved while nothing is left: it is finished, or cut.
    OVER: Words<OverrunAction> = Words(&OverrunAction::WORDS), "over", "finish", "cut";
    /// The file of the prices of models, for `units: money`. It is read again when it changes. Each of its entries is a
    /// model with a price as in `unknown_model`; `*` in its name stands for any text. Of the names that fit, the one
    /// with most other characters counts, then the first.
    PRICES: Special = Special(|| text("the path of a file, or none")), "prices", "none", "prices.yaml";
    /// What becomes of a request for a model without a price: it is rejected with 400, or has this price.
    UNKNOWN_MODEL: Special = Special(unknown_model_shape), "unknown_model", "reject", "{ input: 5, output: 20 }";
}

section! {
    /// The price of a model: money per million tokens, with up to six decimals. Its sum is rounded up once for each
    /// request, to a millionth.
    mod price = "limits.NAME.charge.unknown_model";
    /// Of input that was neither read from a cache nor written to one.
    INPUT: Text<u64> = WEIGHT, "input", required, "0.25";
    /// Of input that was read from a cache; `auto` is `input`.
    CACHED: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "cached", "auto", "0.025";
    /// Of input that was written to a cache; `auto` is `input`.
    CACHE_WRITE: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "cache_write", "auto", "0.3125";
    /// Of output, reasoning included.
    OUTPUT: Text<u64> = WEIGHT, "output", "0", "2";
    /// Other prices for a request with much input.
    ABOVE: NestedOrNone = NestedOrNone(&above::SECTION), "above", "none", "{ input_tokens: 200000, input: 0.5 }";
}

section! {
    /// Other prices for the whole of a request with more input than a number of tokens. Those that are missing are the
    /// model's own.
    mod above = "limits.NAME.charge.unknown_model.above";
    /// The most tokens of input, cached and written ones included, at the usual prices.
    INPUT_TOKENS: Number = Number(1, u64::MAX), "input_tokens", required, "200000";
    /// As of the model.
    INPUT: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "input", "auto", "0.5";
    /// As of the model.
    CACHED: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "cached", "auto", "0.05";
    /// As of the model.
    CACHE_WRITE: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "cache_write", "auto", "0.625";
    /// As of the model.
    OUTPUT: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "output", "auto", "3";
}

section! {
    /// Units that need numbers.
    mod units = "limits.NAME.charge.units";
    /// The units of one token of a language model.
    LLM: Nested = Nested(&llm::SECTION), "llm", "{}", "{ input: 1, output: 4, cached: 0.1 }";
}

section! {
    /// The units of one token, with up to six decimals. Their sum is rounded up once for each request.
    mod llm = "limits.NAME.charge.units.llm";
    /// Of a token of input that was neither read from a cache nor written to one.
    INPUT: Text<u64> = WEIGHT, "input", "1", "1";
    /// Of a token of output, reasoning included.
    OUTPUT: Text<u64> = WEIGHT, "output", "1", "4";
    /// Of a token of input that was read from a cache; `auto` is `input`.
    CACHED: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "cached", "auto", "0.1";
    /// Of a token of input that was written to a cache; `auto` is `input`.
    CACHE_WRITE: OrWord<Text<u64>> = OrWord("auto", WEIGHT), "cache_write", "auto", "1.25";
}

section! {
    /// Units that the JSON body of a request claims.
    mod reserve = "limits.NAME.charge.reserve";
    /// Where the body says how much it may use; the first that is a number counts.
    FROM: OneOrMore<Text<JsonPointer>> = OneOrMore(JSON_POINTER),
        "from", required, "[json:/max_completion_tokens, json:/max_tokens]";
    /// Added to the claim: one unit for each N bytes of the body, rounded up.
    PLUS: OrWord<Text<u64>> = OrWord("none", Text::new("json_bytes/N", parse_plus).matching("^json_bytes/[0-9]+$")),
        "plus", "none", "json_bytes/4";
    /// The units of a body that claims none, is no JSON or is longer than the part that is read. `cost` is the cost
    /// of the limit, or 1 if that comes from a header.
    DEFAULT: OrWord<Number> = OrWord("cost", Number(1, u64::MAX)), "default", "cost", "2000";
    /// The most that one request may claim, as a share of the smallest burst or window of the limit; larger claims
    /// count as this.
    AT_MOST: Text<f64> = PERCENTAGE, "at_most", "100%", "25%";
}

/// The most pointers, units or codes in one list.
pub const CHARGE_LIST_MAX: usize = 8;

/// One item of a list of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseItem {
    /// The first and the last status.
    Statuses(u16, u16),
    /// A code of gRPC, e.g. 8 for `RESOURCE_EXHAUSTED`.
    GrpcCode(u8),
}

/// A status, a class or a range of them, or a code of gRPC.
const RESPONSE: Scalar<ResponseItem> = Scalar(
    || {
        let says = "a code of gRPC such as `grpc:RESOURCE_EXHAUSTED`".to_owned();
        Shape::Either(vec![STATUS_RANGE.shape(), Shape::Text(says, Some("^grpc:([0-9]+|[A-Z_]+)$"))])
    },
    |text| match text.strip_prefix("grpc:") {
        Some(code) => parse_grpc_code(code).map(ResponseItem::GrpcCode),
        None => parse_status_range(text).map(|(first, last)| ResponseItem::Statuses(first, last)),
    },
);

/// `json:/POINTER`.
const JSON_POINTER: Text<JsonPointer> = Text::new("json:/POINTER", parse_json_source).matching("^json:/.+$");

/// One summand of the cost of a response, without numbers.
pub const CHARGED_UNITS: Text<ChargedUnits> =
    Text::new("`request`, `bytes`, `header:NAME`, `json:/POINTER`, `llm` or `money`", parse_units)
        .matching("^(request|bytes|llm|money|header:.+|json:/.+)$");

/// Millionths of a unit, or of money per million tokens.
const WEIGHT: Text<u64> = Text::new("a number with up to six decimals", parse_weight);

/// A token that takes more units than this is certainly a mistake.
const WEIGHT_MAX: u64 = 1_000_000;

fn units_shape() -> Shape {
    let one = Shape::Either(vec![CHARGED_UNITS.shape(), Shape::Section(&units::SECTION)]);
    Shape::OneOrMore(Box::new(one))
}

fn reserve_shape() -> Shape {
    let number = vec![Shape::Words(vec!["cost"]), Shape::Integer(1, u64::MAX)];
    let size = text("a size, where the rate is one");
    Shape::Either(number.into_iter().chain([size, Shape::Section(&reserve::SECTION)]).collect())
}

fn unknown_model_shape() -> Shape {
    Shape::Either(vec![Shape::Words(vec!["reject"]), Shape::Section(&price::SECTION)])
}

fn parse_units(text: &str) -> Parsed<ChargedUnits> {
    if let Some(name) = text.strip_prefix("header:") {
        return names::parse_header_name(name).map(ChargedUnits::Header);
    }
    if let Some(pointer) = text.strip_prefix("json:") {
        return parse_pointer(pointer).map(ChargedUnits::Json);
    }
    let words = [
        ("request", ChargedUnits::Request),
        ("bytes", ChargedUnits::Bytes),
        ("llm", ChargedUnits::Llm(LlmWeights::EQUAL)),
        ("money", ChargedUnits::Money(Currency::NONE)),
    ];
    parse_word_or(&words, text, || format!("write {}", CHARGED_UNITS.says.replace('`', "")))
}

fn parse_json_source(text: &str) -> Parsed<JsonPointer> {
    match text.strip_prefix("json:") {
        Some(pointer) => parse_pointer(pointer),
        None => {
            let pointer = if text.starts_with('/') { text } else { "/max_tokens" };
            Err(ValueError::new(codes::WORD, format!("`{text}` is not a place in a JSON body"))
                .with_help(format!("write json:{pointer}")))
        }
    }
}

/// `json_bytes/4` as the bytes of one unit.
fn parse_plus(text: &str) -> Parsed<u64> {
    let wrong = || {
        ValueError::new(codes::WORD, format!("`{text}` is not a part of the bytes of a body"))
            .with_help("write json_bytes/N, e.g. json_bytes/4")
    };
    let bytes = text.strip_prefix("json_bytes/").ok_or_else(wrong)?;
    scalars::parse_number(bytes, 1, u64::from(u32::MAX)).map_err(|_| wrong())
}

/// A number with up to six decimals, in millionths.
fn parse_weight(text: &str) -> Parsed<u64> {
    let wrong = |why: &str| {
        ValueError::new(codes::NUMBER, format!("`{text}` {why}"))
            .with_help(format!("write a number from 0 to {WEIGHT_MAX} with up to six decimals, e.g. 0.1"))
    };
    match parse_decimal(text) {
        Ok(millionths) if millionths <= WEIGHT_MAX * LlmWeights::ONE => Ok(millionths),
        Ok(_) => Err(wrong("is more than a token can cost")),
        Err(why) => Err(wrong(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::field::ParseScalar;

    #[test]
    fn weights_are_decimals_of_six_places() {
        for (text, millionths) in [
            ("0", 0),
            ("1", 1_000_000),
            ("0.1", 100_000),
            ("4.25", 4_250_000),
            ("0.000001", 1),
            ("0.1000000", 100_000),
            ("1000000", 1_000_000_000_000),
        ] {
            assert_eq!(parse_weight(text).unwrap(), millionths, "{text}");
        }
        for wrong in
            ["", "-1", "-0.1", "+1", ".5", "5.", "1e3", "0.0000001", "1000000.1", "1_000", "x", "1,5"]
        {
            assert_eq!(parse_weight(wrong).unwrap_err().code, codes::NUMBER, "{wrong}");
        }
    }

    #[test]
    fn responses_are_statuses_and_codes_of_grpc() {
        let read = |text| RESPONSE.parse_text(text).unwrap();
        assert_eq!(read("401"), ResponseItem::Statuses(401, 401));
        assert_eq!(read("4xx"), ResponseItem::Statuses(400, 499));
        assert_eq!(read("500-504"), ResponseItem::Statuses(500, 504));
        assert_eq!(read("grpc:8"), ResponseItem::GrpcCode(8));
        assert_eq!(read("grpc:RESOURCE_EXHAUSTED"), ResponseItem::GrpcCode(8));
        for wrong in ["", "grpc", "grpc:", "grpc:17", "grpc:resource_exhausted", "GRPC:8", "ok", "600"] {
            assert!(RESPONSE.parse_text(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_of_a_body_per_unit() {
        assert_eq!(parse_plus("json_bytes/4").unwrap(), 4);
        for wrong in [
            "",
            "4",
            "json_bytes",
            "json_bytes/",
            "json_bytes/0",
            "json_bytes/-1",
            "bytes/4",
            "json_bytes/1.5",
        ] {
            assert_eq!(parse_plus(wrong).unwrap_err().code, codes::WORD, "{wrong}");
        }
    }
}
