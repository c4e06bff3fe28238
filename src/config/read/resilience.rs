//! Reads `retries`, `slow_start`, `health` and `eject` of an upstream.

use std::time::Duration;

use http::uri::PathAndQuery;

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::UpstreamConfig;
use crate::config::model::upstream::{
    EjectConfig, HealthConfig, RetryConfig, RetryReason, RetryReasons, StatusRanges,
};
use crate::config::value::scalars;
use crate::config::value::scalars::Parsed;
use crate::config::value::statuses;
use crate::config::value::words::{parse_or_none, parse_word};
use crate::config::yaml::field_reader::FieldReader;
use crate::config::yaml::field_value::FieldValue;
use crate::config::yaml::tree::NodeContent;

/// The most tries after the first.
const ATTEMPTS_MAX: u64 = 10;

pub(crate) fn read_resilience(fields: &mut FieldReader<'_>, upstream: &mut UpstreamConfig) {
    if let Some(value) = fields.get_field("retries") {
        upstream.retries = read_retries(&value);
    }
    upstream.slow_start =
        fields.read_scalar("slow_start", None, parse_or_none(scalars::parse_nonzero_duration));
    upstream.health =
        fields.get_field("health").filter(|value| !is_off(value)).map(|value| read_health(&value));
    upstream.eject = match fields.get_field("eject") {
        Some(value) if is_off(&value) => None,
        Some(value) => Some(read_eject(&value)),
        None => Some(EjectConfig::default()),
    };
}

/// Whether the value is `none` or null.
fn is_off(value: &FieldValue<'_>) -> bool {
    value.is_null() || value.is_word("none")
}

/// The fields of a section; any shape other than a mapping is reported.
fn open_mapping<'a>(value: &FieldValue<'a>) -> Option<FieldReader<'a>> {
    if let NodeContent::Map(_) = value.node.content {
        return Some(value.field_reader());
    }
    value.report_shape("a mapping, or none");
    None
}

fn read_retries(value: &FieldValue<'_>) -> RetryConfig {
    let defaults = RetryConfig::default();
    if is_off(value) {
        return RetryConfig { attempts: 0, ..defaults };
    }
    let Some(mut fields) = open_mapping(value) else { return defaults };
    let attempts = |text: &str| scalars::parse_number(text, 0, ATTEMPTS_MAX).map(|number| number as u32);
    let when = match fields.get_field("when") {
        Some(when) if is_off(&when) => RetryReasons::default(),
        Some(when) => RetryReasons::from_reasons(&when.parse_list(parse_reasons).concat()),
        None => defaults.when,
    };
    let retries = RetryConfig {
        attempts: fields.read_scalar("attempts", defaults.attempts, attempts),
        when,
        budget: fields.read_scalar("budget", defaults.budget, parse_or_none(scalars::parse_percent)),
        per_try: fields.read_scalar(
            "per_try",
            defaults.per_try,
            parse_or_none(scalars::parse_nonzero_duration),
        ),
        total: fields.read_scalar("total", defaults.total, parse_or_none(scalars::parse_nonzero_duration)),
    };
    fields.report_unknown();
    retries
}

/// A word, or statuses that can be tried again.
fn parse_reasons(text: &str) -> Parsed<Vec<RetryReason>> {
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return parse_word(&RetryReason::WORDS)(text).map(|reason| vec![reason]);
    }
    let (first, last) = statuses::parse_status_range(text)?;
    let reasons: Option<Vec<RetryReason>> = (first..=last).map(RetryReason::from_status).collect();
    reasons.ok_or_else(|| {
        ValueError::new(codes::STATUS, format!("`{text}` has statuses that are never tried again"))
            .with_help("those that can be are 502, 503 and 504")
    })
}

fn read_health(value: &FieldValue<'_>) -> HealthConfig {
    let defaults = HealthConfig {
        path: PathAndQuery::from_static("/"),
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(2),
        status: StatusRanges(vec![(200, 399)]),
        rise: 2,
        fall: 3,
    };
    let Some(mut fields) = open_mapping(value) else { return defaults };
    let status = fields.get_field("status").map(|status| {
        if status.is_empty() {
            status.report_empty("write e.g. 200-399");
        }
        statuses::read_statuses(&status)
    });
    let health = HealthConfig {
        path: fields.read_scalar("path", defaults.path, parse_check_path),
        interval: fields.read_scalar("interval", defaults.interval, scalars::parse_nonzero_duration),
        timeout: fields.read_scalar("timeout", defaults.timeout, scalars::parse_nonzero_duration),
        status: status.unwrap_or(defaults.status),
        rise: fields.read_scalar("rise", defaults.rise, scalars::parse_count_u32),
        fall: fields.read_scalar("fall", defaults.fall, scalars::parse_count_u32),
    };
    fields.report_unknown();
    health
}

fn read_eject(value: &FieldValue<'_>) -> EjectConfig {
    let defaults = EjectConfig::default();
    let Some(mut fields) = open_mapping(value) else { return defaults };
    let eject = EjectConfig {
        errors: fields.read_scalar("errors", defaults.errors, scalars::parse_count_u32),
        span: fields.read_scalar("for", defaults.span, scalars::parse_nonzero_duration),
        max: fields.read_scalar("max", defaults.max, parse_eject_share),
        status: fields.get_field("status").map(|status| statuses::read_statuses(&status)).unwrap_or_default(),
    };
    fields.report_unknown();
    eject
}

fn parse_eject_share(text: &str) -> Parsed<f64> {
    match scalars::parse_percent(text)? {
        0.0 => {
            Err(ValueError::new(codes::PERCENT, "`0%` would eject no server").with_help("write eject: none"))
        }
        share => Ok(share),
    }
}

fn parse_check_path(text: &str) -> Parsed<PathAndQuery> {
    let wrong = || {
        ValueError::new(codes::PATH, format!("`{text}` is not a path that can be asked for"))
            .with_help("write a path that begins with a slash, e.g. /healthz")
    };
    if !text.starts_with('/') || text.contains('#') {
        return Err(wrong());
    }
    text.parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_reasons_to_retry_where_they_can_be() {
        assert_eq!(parse_reasons("timeout").unwrap(), [RetryReason::Timeout]);
        assert_eq!(parse_reasons("503").unwrap(), [RetryReason::Unavailable]);
        let all = [RetryReason::BadGateway, RetryReason::Unavailable, RetryReason::GatewayTimeout];
        assert_eq!(parse_reasons("502-504").unwrap(), all);
        for wrong in ["500", "5xx", "502-505", "504-502"] {
            assert_eq!(parse_reasons(wrong).unwrap_err().code, codes::STATUS, "{wrong}");
        }
    }

    #[test]
    fn sets_of_reasons() {
        let default = RetryConfig::default().when;
        // By default, only requests that no server accepted are tried again.
        assert_eq!(default, RetryReasons::from_reasons(&[RetryReason::Connect, RetryReason::Refused]));
        for (word, reason) in RetryReason::WORDS {
            for (other, another) in RetryReason::WORDS {
                assert_eq!(
                    RetryReasons::from_reasons(&[reason]).contains(another),
                    word == other,
                    "{word} and {other}"
                );
            }
        }
    }
}
