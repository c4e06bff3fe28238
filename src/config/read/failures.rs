//! What is done about servers that fail: `retries`, `health` and `eject` of an upstream.

use std::time::Duration;

use http::uri::PathAndQuery;

use super::server::count_u32;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::Complaint;
use crate::config::model::Upstream;
use crate::config::model::upstream::{Eject, Health, Reason, Reasons, Retries, Statuses};
use crate::config::value::scalars;
use crate::config::value::scalars::Read;
use crate::config::value::statuses;
use crate::config::yaml::fields::{Fields, Value, or_none, word};
use crate::config::yaml::tree::Content;

/// Tries after the first.
const ATTEMPTS_MAX: u64 = 10;

pub(crate) fn read(fields: &mut Fields<'_>, upstream: &mut Upstream) {
    if let Some(value) = fields.get("retries") {
        upstream.retries = retries(&value);
    }
    upstream.slow_start = fields.read("slow_start", None, or_none(scalars::span));
    upstream.health = fields.get("health").filter(|value| !is_none(value)).map(|value| health(&value));
    upstream.eject = match fields.get("eject") {
        Some(value) if is_none(&value) => None,
        Some(value) => Some(eject(&value)),
        None => Some(Eject::default()),
    };
}

/// `none`, or nothing at all.
fn is_none(value: &Value<'_>) -> bool {
    value.is_null() || value.is_word("none")
}

/// The fields of a section that may be `none`; anything else is noted.
fn section<'a>(value: &Value<'a>) -> Option<Fields<'a>> {
    if let Content::Map(_) = value.node.content {
        return Some(value.fields());
    }
    value.complain_of_shape("a mapping, or none");
    None
}

fn retries(value: &Value<'_>) -> Retries {
    let defaults = Retries::default();
    if is_none(value) {
        return Retries { attempts: 0, ..defaults };
    }
    let Some(mut fields) = section(value) else { return defaults };
    let attempts = |text: &str| scalars::number(text, 0, ATTEMPTS_MAX).map(|number| number as u32);
    let when = match fields.get("when") {
        Some(when) if is_none(&when) => Reasons::default(),
        Some(when) => Reasons::of(&when.read_list(reasons).concat()),
        None => defaults.when,
    };
    let retries = Retries {
        attempts: fields.read("attempts", defaults.attempts, attempts),
        when,
        budget: fields.read("budget", defaults.budget, or_none(scalars::percent)),
        per_try: fields.read("per_try", defaults.per_try, or_none(scalars::span)),
        total: fields.read("total", defaults.total, or_none(scalars::span)),
    };
    fields.close();
    retries
}

/// A word, or statuses that can be tried again.
fn reasons(text: &str) -> Read<Vec<Reason>> {
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return word(&Reason::WORDS)(text).map(|reason| vec![reason]);
    }
    let (first, last) = statuses::range(text)?;
    let reasons: Option<Vec<Reason>> = (first..=last).map(Reason::of_status).collect();
    reasons.ok_or_else(|| {
        Complaint::new(codes::STATUS, format!("`{text}` has statuses that are never tried again"))
            .help("those that can be are 502, 503 and 504")
    })
}

fn health(value: &Value<'_>) -> Health {
    let defaults = Health {
        path: PathAndQuery::from_static("/"),
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(2),
        status: Statuses(vec![(200, 399)]),
        rise: 2,
        fall: 3,
    };
    let Some(mut fields) = section(value) else { return defaults };
    let status = fields.get("status").map(|status| {
        if status.is_empty() {
            status.complain_of_nothing("write e.g. 200-399");
        }
        statuses::read(&status)
    });
    let health = Health {
        path: fields.read("path", defaults.path, path),
        interval: fields.read("interval", defaults.interval, scalars::span),
        timeout: fields.read("timeout", defaults.timeout, scalars::span),
        status: status.unwrap_or(defaults.status),
        rise: fields.read("rise", defaults.rise, count_u32),
        fall: fields.read("fall", defaults.fall, count_u32),
    };
    fields.close();
    health
}

fn eject(value: &Value<'_>) -> Eject {
    let defaults = Eject::default();
    let Some(mut fields) = section(value) else { return defaults };
    let eject = Eject {
        errors: fields.read("errors", defaults.errors, count_u32),
        span: fields.read("for", defaults.span, scalars::span),
        max: fields.read("max", defaults.max, share),
        status: fields.get("status").map(|status| statuses::read(&status)).unwrap_or_default(),
    };
    fields.close();
    eject
}

fn share(text: &str) -> Read<f64> {
    match scalars::percent(text)? {
        0.0 => Err(Complaint::new(codes::PERCENT, "`0%` would eject no server").help("write eject: none")),
        share => Ok(share),
    }
}

fn path(text: &str) -> Read<PathAndQuery> {
    let wrong = || {
        Complaint::new(codes::PATH, format!("`{text}` is not a path that can be asked for"))
            .help("write a path that begins with a slash, e.g. /healthz")
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
        assert_eq!(reasons("timeout").unwrap(), [Reason::Timeout]);
        assert_eq!(reasons("503").unwrap(), [Reason::Unavailable]);
        let all = [Reason::BadGateway, Reason::Unavailable, Reason::GatewayTimeout];
        assert_eq!(reasons("502-504").unwrap(), all);
        for wrong in ["500", "5xx", "502-505", "504-502"] {
            assert_eq!(reasons(wrong).unwrap_err().code, codes::STATUS, "{wrong}");
        }
    }

    #[test]
    fn sets_of_reasons() {
        let default = Retries::default().when;
        // By default only what no server has taken is tried again.
        assert_eq!(default, Reasons::of(&[Reason::Connect, Reason::Refused]));
        for (word, reason) in Reason::WORDS {
            for (other, another) in Reason::WORDS {
                assert_eq!(Reasons::of(&[reason]).has(another), word == other, "{word} and {other}");
            }
        }
    }
}
