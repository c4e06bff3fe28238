//! The fields of a scenario file.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use ipnet::IpNet;
use sluicegate_config::schema::field::{OneOrMore, Shape, section};
use sluicegate_config::schema::kinds::{Number, Span, Special, Text, Words, text};
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::value::names;
use sluicegate_model::value::scalars::Parsed;

/// The most requests that one step sends.
pub(super) const SEND_MAX: u64 = 10_000_000;
/// The latest moment of a scenario.
pub(super) const AT_MAX: Duration = Duration::from_secs(366 * 86_400);

section! {
    /// The whole file.
    mod file = "";
    /// The configuration under test. The path starts at the folder of the scenario file.
    CONFIG: Special = Special(|| text("the path of a file")), "config", "gateway.yaml", "gateway.yaml";
    /// The time of day at which each scenario starts, in UTC: windows aligned to the clock and tokens see it.
    START: Text<Duration> = Text::new("a time such as 2026-01-01T00:00:00Z", parse_start),
        "start", "2026-01-01T00:00:00Z", "2026-03-29T23:59:50Z";
    /// Each begins with fresh counters.
    SCENARIOS: Special = Special(list_shape), "scenarios", required, "[{ name: a burst, steps: [{ send: 25 }] }]";
}

section! {
    /// One story: traffic, and what the gateway does with it.
    mod scenario = "scenarios[]";
    /// Its name in reports.
    NAME: Text<String> = Text::new("a text", parse_name), "name", required, "a burst";
    /// What is sent, in the order of time.
    STEPS: Special = Special(list_shape), "steps", required, "[{ send: 25, to: GET /api/ }]";
}

section! {
    /// Equal requests.
    mod step = "scenarios[].steps[]";
    /// When the first is sent, counted from the start of the scenario; without it, with the step before.
    AT: Span = Span(Duration::ZERO, AT_MAX), "at", "0s", "5s";
    /// How many are sent.
    SEND: Number = Number(1, SEND_MAX), "send", "1", "60";
    /// The time from one to the next; without it all are sent at once.
    EVERY: Span = Span(Duration::from_nanos(1), AT_MAX), "every", "1s", "50ms";
    /// The method, GET without it, and the path or URL.
    TO: Text<String> = Text::new("a path, or a method and a path", |text| Ok(text.to_owned())), "to", "/", "GET /api/";
    /// The address of the client, or a network: each request comes from the next of its addresses, in turn.
    FROM: OneOrMore<Text<IpNet>> = OneOrMore(Text::new("an address or network", names::parse_network)),
        "from", "127.0.0.1", "203.0.113.0/24";
    /// Headers of the requests.
    HEADERS: Special = Special(headers_shape), "headers", "{}", "{ X-Api-Key: k1 }";
    /// The host they are sent to; without it that of a URL, or `localhost`.
    HOST: Text<HeaderValue> = Text::new("a host", names::parse_header_value), "host", "localhost", "api.example.com";
    /// The account that they are sent for: written where `account.from` reads it, which may be the answer of the auth
    /// service.
    ACCOUNT: Text<String> = Text::new("a name", |text| Ok(text.to_owned())), "account", "", "acme";
    /// The body of the requests.
    BODY: Text<String> = Text::new("a text", |text| Ok(text.to_owned())), "body", "", "name=value";
    /// The body of the requests as JSON.
    JSON: Special = Special(any_shape), "json", "{}", "{ model: small, max_tokens: 100 }";
    /// The name of the listener that they arrive on.
    LISTENER: Text<String> = Text::new("a name", |text| Ok(text.to_owned())), "listener", "", "public";
    /// The time that the upstream takes to answer.
    HOLD: Span = Span(Duration::ZERO, AT_MAX), "hold", "0s", "200ms";
    /// What the upstream answers: a status, or a whole response.
    ANSWER: Special = Special(answer_shape), "answer", "200", "401";
    /// The answer of the auth service of the location; without it the service admits every request.
    AUTH: Special = Special(answer_shape), "auth", "200", "{ status: 200, headers: { X-User: joe } }";
    /// What the gateway must do; without it the step is only sent.
    EXPECT: Special = Special(any_shape), "expect", "{}", "{ admitted: 20, rejected: 40, by: per-ip }";
}

section! {
    /// A response of the upstream, or of the auth service.
    mod answer = "scenarios[].steps[].answer";
    /// Its status.
    STATUS: Text<StatusCode> = Text::new("a status", |text| names::parse_status(text, 200)), "status", "200", "401";
    /// Its headers.
    HEADERS: Special = Special(headers_shape), "headers", "{}", "{ X-Cost: 7 }";
    /// Its body as JSON.
    JSON: Special = Special(any_shape), "json", "{}", "{ usage: { total_tokens: 120 } }";
    /// Its body.
    BODY: Text<String> = Text::new("a text", |text| Ok(text.to_owned())), "body", "", "hello";
}

section! {
    /// What the gateway must do with the requests of a step. A number or a time is exact, or a range such as [48, 52].
    mod expect = "scenarios[].steps[].expect";
    /// Requests that were forwarded or answered by their location, also after a wait.
    ADMITTED: Special = Special(number_shape), "admitted", "", "20";
    /// Requests that were not, for whatever reason.
    REJECTED: Special = Special(number_shape), "rejected", "", "40";
    /// Admitted requests that waited in a queue before.
    WAITED: Special = Special(number_shape), "waited", "", "[4, 6]";
    /// Rejected requests that got another response by `on_reject.degrade`.
    DEGRADED: Special = Special(number_shape), "degraded", "", "5";
    /// The limits that rejected requests; other causes have the names of the access log, such as `ban`.
    BY: Special = Special(|| Shape::OneOrMore(Box::new(text("a name")))), "by", "", "per-ip";
    /// The wait that the first rejected request is told, rounded up to milliseconds.
    RETRY_AFTER: Special = Special(span_shape), "retry_after", "", "100ms";
    /// The longest wait of an admitted request, rounded up to milliseconds.
    WAITED_MAX: Special = Special(span_shape), "waited_max", "", "[490ms, 510ms]";
    /// The status of every rejected request, or of every request if none was rejected; a mapping counts statuses.
    STATUS: Special = Special(any_shape), "status", "", "{ 200: 20, 429: 40 }";
    /// The gravest step of quotas that the last request was told, or `none`.
    STEP: Words<&'static str> = Words(&[("none", "none"), ("warn", "warn"), ("slow", "slow"), ("reject", "reject")]),
        "step", "", "warn";
}

fn list_shape() -> Shape {
    text("a list")
}

fn headers_shape() -> Shape {
    text("a mapping of names and values")
}

fn answer_shape() -> Shape {
    Shape::Either(vec![Shape::Integer(200, 599), Shape::Section(&answer::SECTION)])
}

fn number_shape() -> Shape {
    text("a number or a range")
}

fn span_shape() -> Shape {
    text("a duration or a range")
}

fn any_shape() -> Shape {
    text("a mapping")
}

fn parse_name(name: &str) -> Parsed<String> {
    match name.trim() {
        "" => {
            Err(ValueError::new(codes::NAME, "the name is empty").with_help("write what the scenario shows"))
        }
        name => Ok(name.to_owned()),
    }
}

/// Years that leave room for the length of all scenarios on both sides.
const YEARS: std::ops::RangeInclusive<u64> = 2020..=2200;

/// A time of day as the time since 1970.
fn parse_start(text: &str) -> Parsed<Duration> {
    let error = || {
        ValueError::new(codes::WORD, format!("`{text}` is not a time from 2020 to 2200"))
            .with_help("write it in UTC, e.g. 2026-01-01T00:00:00Z")
    };
    let time = humantime::parse_rfc3339_weak(text).map_err(|_| error())?;
    let since = time.duration_since(std::time::UNIX_EPOCH).map_err(|_| error())?;
    let year = 1970 + since.as_secs() / 31_556_952;
    if YEARS.contains(&year) { Ok(since) } else { Err(error()) }
}
