//! Prepares the responses of one location: one for each fault, and one for each rate of a limit and each cause.

use std::sync::OnceLock;

use http::header::AUTHORIZATION;
use http::response::Parts;
use http::{HeaderValue, StatusCode};

use super::prepared_response::{
    self, NO_KIND, PreparedResponse, QUOTA_EXCEEDED, ResponseContent, RetryHint, SectionStyle,
};
use super::rejection::{Fault, LimitCause};
use super::template::{TemplatePart, TemplateSlot};
use super::{DegradedTo, interned_headers, quote_name};
use sluicegate_config::describe;
use sluicegate_model::{
    Algorithm, BansConfig, Config, Degrade, KeyPart, LimitConfig, LimitId, OnReject, Rate, ValueSource,
};

/// Seconds until a retry for which a head is kept.
const USUAL_SECONDS: usize = 8;

/// The responses that do not concern a limit.
pub(super) struct FaultResponses {
    /// The responses by [`Fault::index`].
    pub faults: Box<[PreparedResponse]>,
    pub banned: PreparedResponse,
    pub banned_by_operator: PreparedResponse,
}

/// The responses of one rate of a limit.
pub(super) struct LimitResponses {
    pub limit: LimitId,
    pub rate: usize,
    pub rejected: PreparedResponse,
    pub too_costly: PreparedResponse,
    pub missing_key: PreparedResponse,
    pub queued_too_long: PreparedResponse,
    /// Complete heads of rejections that leave no unit until the retry, by its seconds from 1; each is rendered at its
    /// first use. Under attack nearly all responses have one of them.
    pub usual_heads: [OnceLock<Box<Parts>>; USUAL_SECONDS],
    pub degraded_to: Option<DegradedTo>,
    /// The limit's name as the value of `Sluicegate-Degraded`.
    pub degraded_value: HeaderValue,
}

// === impl LimitResponses ===

impl LimitResponses {
    pub(super) fn response_for(&self, cause: LimitCause) -> &PreparedResponse {
        match cause {
            LimitCause::Rate | LimitCause::Queue | LimitCause::Concurrency => &self.rejected,
            LimitCause::TooCostly => &self.too_costly,
            LimitCause::MissingKey => &self.missing_key,
            LimitCause::QueuedTooLong => &self.queued_too_long,
        }
    }
}

// === impl FaultResponses ===

impl FaultResponses {
    pub(super) fn new(on_reject: &OnReject, bans: Option<&BansConfig>) -> FaultResponses {
        let style = SectionStyle::new(on_reject);
        let counts_statuses = |bans: &BansConfig| !bans.strikes.statuses.0.is_empty();
        let banned = match bans.filter(|bans| counts_statuses(bans)) {
            None => "banned for repeated rejections",
            Some(bans) if bans.strikes.rejections => "banned for repeated rejections or errors",
            Some(_) => "banned for repeated errors",
        };
        FaultResponses {
            faults: prepare_faults(on_reject, &style),
            banned: prepare_banned(on_reject, &style, banned),
            banned_by_operator: prepare_banned(on_reject, &style, "banned by an operator"),
        }
    }
}

fn prepare_banned(on_reject: &OnReject, style: &SectionStyle<'_>, detail: &str) -> PreparedResponse {
    let mut message = vec![TemplatePart::Text(capitalize_first(detail))];
    message.extend(try_again_text());
    PreparedResponse::new(
        style,
        &ResponseContent {
            status: on_reject.status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
            kind: NO_KIND,
            detail: detail.to_owned(),
            message,
            limit: None,
            retry_hint: RetryHint::Exact,
            grpc_status: "8",
            challenge: None,
        },
    )
}

fn prepare_faults(on_reject: &OnReject, style: &SectionStyle<'_>) -> Box<[PreparedResponse]> {
    let response = |fault: &Fault| {
        let retry_hint = match fault.status() {
            StatusCode::SERVICE_UNAVAILABLE => RetryHint::Soon,
            _ => RetryHint::Never,
        };
        let status = on_reject.status.filter(|_| fault.is_overload()).unwrap_or(fault.status());
        let detail = fault.detail().to_owned();
        let mut message = vec![TemplatePart::Text(capitalize_first(fault.detail()))];
        if retry_hint == RetryHint::Soon {
            message.extend(try_again_text());
        }
        PreparedResponse::new(
            style,
            &ResponseContent {
                status,
                kind: NO_KIND,
                detail,
                message,
                limit: None,
                retry_hint,
                grpc_status: fault.grpc_status(),
                challenge: None,
            },
        )
    };
    Fault::ALL.iter().map(response).collect()
}

/// The responses of a limit, one set per rate.
pub(super) fn prepare_limit(config: &Config, id: LimitId, on_reject: &OnReject) -> Vec<LimitResponses> {
    let limit = &config.limits[id];
    let rates: Vec<String> =
        limit.algorithm_variants().flat_map(|numbers| rate_texts(limit, numbers)).collect();
    let concurrency = matches!(limit.algorithm, Algorithm::Concurrency { .. });
    let (default_status, default_grpc_status) = match concurrency {
        true => (StatusCode::SERVICE_UNAVAILABLE, "14"),
        false => (StatusCode::TOO_MANY_REQUESTS, "8"),
    };
    let refused_status = on_reject.status.unwrap_or(default_status);
    let style = SectionStyle::new(on_reject);
    let degraded_to = on_reject.degrade.as_ref().map(|degrade| match degrade {
        Degrade::Upstream(index) => DegradedTo::Upstream(*index),
        Degrade::Canned(_) => DegradedTo::Canned,
    });
    let quoted = quote_name(&limit.name);
    // Cannot fail: a structured string is visible ASCII.
    let degraded_value = HeaderValue::from_bytes(&quoted).expect("a structured string is visible ASCII");
    let degraded_value = interned_headers::intern_value(&degraded_value);
    let responses = |(rate_index, rate): (usize, &String)| {
        let detail = describe::describe_rejection(limit, rate_index);
        let prepare = |status, grpc_status, retry_hint, detail: String, message: &str| {
            let mut message = vec![TemplatePart::Text(message.to_owned())];
            if retry_hint != RetryHint::Never {
                message.extend(try_again_text());
            }
            let limit = Some((limit.name.clone(), rate.clone()));
            let kind = QUOTA_EXCEEDED;
            let challenge = None;
            PreparedResponse::new(
                &style,
                &ResponseContent { status, kind, detail, message, limit, retry_hint, grpc_status, challenge },
            )
        };
        let retry_hint = if concurrency { RetryHint::Soon } else { RetryHint::Exact };
        let message = if concurrency { "Too many requests in flight" } else { "Too many requests" };
        LimitResponses {
            limit: id,
            rate: rate_index,
            rejected: prepare(refused_status, default_grpc_status, retry_hint, detail.clone(), message),
            too_costly: prepare(
                StatusCode::PAYLOAD_TOO_LARGE,
                "8",
                RetryHint::Never,
                format!("{detail}; this request costs more than the limit can ever let pass"),
                "The request costs more than the limit can ever let pass",
            ),
            missing_key: prepare_missing_key(config, limit, &style, rate),
            queued_too_long: prepare(
                StatusCode::SERVICE_UNAVAILABLE,
                "14",
                RetryHint::Soon,
                format!("{detail}; the request waited in its queue as long as its location allows"),
                "The request waited too long",
            ),
            usual_heads: Default::default(),
            degraded_to,
            degraded_value: degraded_value.clone(),
        }
    };
    rates.iter().enumerate().map(responses).collect()
}

/// The response to a request without the limit's key. It is no quota that a client can wait for, so `on_reject.status`
/// does not apply.
fn prepare_missing_key(
    config: &Config,
    limit: &LimitConfig,
    style: &SectionStyle<'_>,
    rate: &str,
) -> PreparedResponse {
    let missing = describe::describe_optional_key(limit).unwrap_or_else(|| "key".to_owned());
    let is_unauthorized = limit.missing_key_status == StatusCode::UNAUTHORIZED;
    PreparedResponse::new(
        style,
        &ResponseContent {
            status: limit.missing_key_status,
            kind: NO_KIND,
            detail: format!("limit {}: the request has no {missing}", limit.name),
            message: vec![TemplatePart::Text(format!("The request has no {missing}"))],
            limit: Some((limit.name.clone(), rate.to_owned())),
            retry_hint: RetryHint::Never,
            grpc_status: if is_unauthorized { "16" } else { "7" },
            challenge: is_unauthorized.then(|| challenge_for(config, limit)),
        },
    )
}

/// The challenge that a 401 must carry (RFC 9110, section 15.5.2). No registered scheme describes a key in another
/// header, a cookie or a query, and `Basic` would make browsers ask for a password.
fn challenge_for(config: &Config, limit: &LimitConfig) -> HeaderValue {
    let takes_token = limit.optional_key_parts().any(|part| {
        let source = match part {
            KeyPart::Source(source) => Some(source),
            KeyPart::Account => config.account.from.as_ref(),
            _ => None,
        };
        match source {
            Some(ValueSource::Jwt(_)) => true,
            Some(ValueSource::Header(name)) => *name == AUTHORIZATION,
            _ => false,
        }
    });
    HeaderValue::from_static(if takes_token {
        "Bearer realm=\"gateway\""
    } else {
        "ApiKey realm=\"gateway\""
    })
}

fn rate_texts(limit: &LimitConfig, numbers: &Algorithm) -> Vec<String> {
    match numbers {
        Algorithm::Concurrency { min: None, max, .. } => vec![format!("{max} in flight")],
        Algorithm::Concurrency { min: Some(min), max, .. } => vec![format!("{min} to {max} in flight")],
        _ => numbers.rate_quotas().iter().map(|(rate, _)| rate_text(limit, rate)).collect(),
    }
}

fn rate_text(limit: &LimitConfig, rate: &Rate) -> String {
    prepared_response::rate_text(&limit.show_units(rate.units.get()), rate.period.as_nanos())
}

/// ", try again in 1 s"
pub(super) fn try_again_text() -> [TemplatePart; 3] {
    [
        TemplatePart::Text(", try again in ".to_owned()),
        TemplatePart::Slot(TemplateSlot::RetryAfter),
        TemplatePart::Text(" s".to_owned()),
    ]
}

fn capitalize_first(detail: &str) -> String {
    let mut letters = detail.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}
