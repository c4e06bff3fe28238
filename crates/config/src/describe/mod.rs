//! Describes the sections of the file in plain words for `check`, the banner, `explain` and rejection bodies.

mod access;
mod charge;
mod location;
mod sentence;
mod service;
mod shares;
mod state;
mod upstream;

use std::time::Duration;

use charge::{format_amount, format_units};

use sluicegate_model::value::scalars::{split_duration, split_size};
use sluicegate_model::{Algorithm, KeyPart, LimitConfig, McpPart, Rate, StatusRanges, ValueSource};

pub use access::{describe_access, describe_bans};
pub(crate) use location::spell_host;
pub use location::{
    describe_action, describe_auth, describe_bandwidth, describe_cors, describe_header_edits, describe_hosts,
    describe_location, describe_max_body, describe_path_edits,
};
pub use sentence::{describe_chain_limit, describe_limit};
pub use service::{describe_domains, describe_listen, describe_service};
pub use shares::describe_class;
pub use state::{advise_on_state, describe_state};
pub use upstream::describe_upstream;

/// "10 requests per second", "300 requests per 60 seconds", "50 GiB per day".
pub fn describe_rate(limit: &LimitConfig, rate: &Rate) -> String {
    format_rate(limit, rate, "request")
}

/// A rate of a limit; `noun` is for one that counts requests.
fn format_rate(limit: &LimitConfig, rate: &Rate, noun: &str) -> String {
    let period = rate.calendar.map_or_else(|| format_period(rate.period), |unit| unit.as_str().to_owned());
    format!("{} per {period}", format_units(limit, rate.units.get(), noun))
}

/// The detail of a rejection by one rate of the limit, e.g. "limit per-ip: 10 requests per second, burst 20".
pub fn describe_rejection(limit: &LimitConfig, rate_index: usize) -> String {
    match limit
        .locate_rate(rate_index)
        .and_then(|(_, numbers, index)| describe_one_rate(limit, numbers, index))
    {
        Some(numbers) => format!("limit {}: {numbers}", limit.name),
        None => format!("limit {}", limit.name),
    }
}

/// Each rate of `numbers` of a limit, e.g. "10 requests per second, burst 20", or its slots.
pub fn describe_rates(limit: &LimitConfig, numbers: &Algorithm) -> Vec<String> {
    (0..numbers.rate_count()).filter_map(|index| describe_one_rate(limit, numbers, index)).collect()
}

/// One rate of a limit, e.g. "10 requests per second, burst 20".
fn describe_one_rate(limit: &LimitConfig, numbers: &Algorithm, index: usize) -> Option<String> {
    let describe = |rate: &Rate| describe_rate(limit, rate);
    match numbers {
        Algorithm::TokenBucket { rates } => rates
            .get(index)
            .map(|one| format!("{}, burst {}", describe(&one.rate), format_amount(limit, one.burst))),
        Algorithm::LeakyBucket { rates, .. } => rates
            .get(index)
            .map(|one| format!("{}, burst {}, queue {}", describe(&one.rate), one.burst, one.queue)),
        Algorithm::FixedWindow { rates, .. }
        | Algorithm::SlidingWindow { rates, .. }
        | Algorithm::SlidingLog { rates } => rates.get(index).map(describe),
        Algorithm::Concurrency { min, max, queue, .. } => {
            let least = min.map(|min| format!("{min} to ")).unwrap_or_default();
            let queue = if *queue > 0 { format!(", queue {queue}") } else { String::new() };
            Some(format!("{least}{} in flight{queue}", format_count(u64::from(*max), "request")))
        }
    }
}

fn format_count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// A part in millionths, as a percentage.
pub(crate) fn show_percent(part: u64) -> String {
    format!("{}%", part as f64 / 10_000.0)
}

/// "4 MiB".
fn format_bytes(bytes: u64) -> String {
    let (number, unit) = split_size(bytes);
    format!("{number} {unit}")
}

/// Status codes as the file writes them, e.g. "401", "5xx" and "500-504".
fn list_statuses(statuses: &StatusRanges) -> Vec<String> {
    let one = |&(first, last): &(u16, u16)| match last - first {
        0 => first.to_string(),
        99 if first.is_multiple_of(100) => format!("{}xx", first / 100),
        _ => format!("{first}-{last}"),
    };
    statuses.0.iter().map(one).collect()
}

/// The first `most` of the names, and the number of the others: "a, b, 3 more".
fn join_names<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let mut joined: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    let more = format!("{} more", names.len().saturating_sub(most));
    joined.extend((names.len() > most).then_some(more.as_str()));
    joined.join(", ")
}

/// A text of the file, cut where it would fill more than a line.
fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// "second", "5 seconds", "60 seconds", "hour". One minute is "60 seconds", the usual form for windows.
fn format_period(length: Duration) -> String {
    if length == Duration::from_secs(60) {
        return "60 seconds".to_owned();
    }
    let text = format_full_period(length);
    text.strip_prefix("1 ").map(str::to_owned).unwrap_or(text)
}

pub(super) fn format_full_period(length: Duration) -> String {
    let (number, _, name) = split_duration(length).unwrap_or((0, "", "nanosecond"));
    format_count(number, name)
}

/// "client IP", "header x-account-id", "all clients together".
pub fn describe_key_part(key: &KeyPart) -> String {
    describe_key(std::slice::from_ref(key))
}

/// The parts of the key that a request can lack, e.g. "account or header x-device"; `None` without any.
pub fn describe_optional_key(limit: &LimitConfig) -> Option<String> {
    join_parts(limit.optional_key_parts(), " or ")
}

/// The key of a limit in words, e.g. "client IP and host".
pub fn describe_key(key: &[KeyPart]) -> String {
    join_parts(key, " and ").unwrap_or_else(|| "all clients together".to_owned())
}

/// " per client IP", " per account and host", " for all clients together".
fn format_key(key: &[KeyPart]) -> String {
    let parts = join_parts(key, " and ");
    parts.map_or_else(|| " for all clients together".to_owned(), |parts| format!(" per {parts}"))
}

/// The parts of a key that tell requests apart; `None` without any.
fn join_parts<'k>(key: impl IntoIterator<Item = &'k KeyPart>, word: &str) -> Option<String> {
    let parts: Vec<String> = key.into_iter().filter_map(describe_part).collect();
    (!parts.is_empty()).then(|| parts.join(word))
}

fn describe_part(part: &KeyPart) -> Option<String> {
    Some(match part {
        KeyPart::Ip => "client IP".to_owned(),
        KeyPart::Account => "account".to_owned(),
        KeyPart::Tier => "tier".to_owned(),
        KeyPart::Uri => "URI".to_owned(),
        KeyPart::Location => "location".to_owned(),
        KeyPart::Host => "host".to_owned(),
        KeyPart::Method => "method".to_owned(),
        KeyPart::Priority => "priority".to_owned(),
        KeyPart::Global => return None,
        KeyPart::Source(ValueSource::Header(name)) => format!("header {name}"),
        KeyPart::Source(ValueSource::Cookie(name)) => format!("cookie {name}"),
        KeyPart::Source(ValueSource::Query(name)) => format!("query parameter {name}"),
        KeyPart::Source(ValueSource::Jwt(name)) => format!("token claim {name}"),
        KeyPart::Source(ValueSource::Json(pointer)) => format!("JSON value {}", pointer.as_str()),
        KeyPart::Mcp(McpPart::Method) => "MCP method".to_owned(),
        KeyPart::Mcp(McpPart::Name) => "MCP name".to_owned(),
        KeyPart::BodyHash => "hash of the body".to_owned(),
        KeyPart::Source(ValueSource::Auth(name)) => format!("header {name} of the auth service"),
    })
}
