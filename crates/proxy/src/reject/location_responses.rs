//! Prepares the responses of one location: one for each fault, one for each rate of a limit and each cause, and those
//! in the place of upstreams that want no requests now, each when it is needed first.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};
use parking_lot::RwLock;

use super::cause::{Fault, LimitCause, PauseRejection};
use super::header_edits::intern_value;
use super::prepared_response::{
    ABNORMAL_USAGE, PreparedResponse, QUOTA_EXCEEDED, REDUCED_CAPACITY, ResponseContent, RetryHint,
    SectionStyle, rate_text,
};
use super::{DegradedTo, RejectContext, quote_name};
use sluicegate_config::describe;
use sluicegate_model::{
    Algorithm, BansConfig, Config, Degrade, KeyPart, LimitConfig, LimitId, OnReject, OnRejectPatch,
    UpstreamId, ValueSource,
};

/// The code of MCP for a header that says otherwise than the message.
const HEADER_MISMATCH: i32 = -32020;

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
    let status = on_reject.status.unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let content = ResponseContent::new(status, detail.to_owned(), RetryHint::Exact, "8");
    PreparedResponse::new(style, &ResponseContent { kind: ABNORMAL_USAGE, ..content })
}

fn prepare_faults(on_reject: &OnReject, style: &SectionStyle<'_>) -> Box<[PreparedResponse]> {
    let response = |fault: &Fault| {
        let retry_hint = match fault.status() {
            StatusCode::SERVICE_UNAVAILABLE => RetryHint::Soon,
            _ => RetryHint::Never,
        };
        let status = on_reject.status.filter(|_| fault.is_overload()).unwrap_or(fault.status());
        let detail = fault.detail().to_owned();
        let content = ResponseContent::new(status, detail, retry_hint, fault.grpc_status());
        let challenge = match fault {
            Fault::MissingApiKey => Some(HeaderValue::from_static("Bearer realm=\"gateway\"")),
            Fault::UnknownApiKey => {
                Some(HeaderValue::from_static("Bearer realm=\"gateway\", error=\"invalid_token\""))
            }
            _ => None,
        };
        let kind = if fault.is_reduced_capacity() { REDUCED_CAPACITY } else { content.kind };
        let rpc_code = (*fault == Fault::HeaderMismatch).then_some(HEADER_MISMATCH);
        PreparedResponse::new(style, &ResponseContent { kind, challenge, rpc_code, ..content })
    };
    Fault::ALL.iter().map(response).collect()
}

/// The responses of a limit, one set per rate.
pub(super) fn prepare_limit(config: &Config, id: LimitId, on_reject: &OnReject) -> Vec<LimitResponses> {
    let limit = &config.limits[id];
    let with_kind = |numbers: &Algorithm| {
        // A number that follows the latency of the upstream is no quota.
        let is_adaptive = matches!(numbers, Algorithm::Concurrency { min: Some(_), .. });
        let kind = if is_adaptive { REDUCED_CAPACITY } else { QUOTA_EXCEEDED };
        rate_texts(limit, numbers).into_iter().map(move |rate| (rate, kind)).collect::<Vec<_>>()
    };
    let rates: Vec<(String, &str)> = limit.algorithm_variants().flat_map(with_kind).collect();
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
    let degraded_value = intern_value(&degraded_value);
    let responses = |(rate_index, (rate, kind)): (usize, &(String, &'static str))| {
        let detail = describe::describe_rejection(limit, rate_index);
        let prepare = |status, grpc_status, retry_hint, detail: String, message: &str| {
            let content = ResponseContent::new(status, detail, retry_hint, grpc_status);
            let (has_class, limit) = (limit.shares.is_some(), Some((limit.name.clone(), rate.clone())));
            let message = retry_hint.complete_message(message.to_owned());
            PreparedResponse::new(&style, &ResponseContent { kind, message, limit, has_class, ..content })
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
    let (status, hint) = (limit.missing_key_status, RetryHint::Never);
    let is_unauthorized = status == StatusCode::UNAUTHORIZED;
    let detail = format!("limit {}: the request has no {missing}", limit.name);
    let content = ResponseContent {
        message: hint.complete_message(format!("The request has no {missing}")),
        limit: Some((limit.name.clone(), rate.to_owned())),
        challenge: is_unauthorized.then(|| challenge_for(config, limit)),
        ..ResponseContent::new(status, detail, hint, if is_unauthorized { "16" } else { "7" })
    };
    PreparedResponse::new(style, &content)
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
    let challenge = if takes_token { "Bearer realm=\"gateway\"" } else { "ApiKey realm=\"gateway\"" };
    HeaderValue::from_static(challenge)
}

pub(crate) fn rate_texts(limit: &LimitConfig, numbers: &Algorithm) -> Vec<String> {
    match numbers {
        Algorithm::Concurrency { min: None, max, .. } => vec![format!("{max} in flight")],
        Algorithm::Concurrency { min: Some(min), max, .. } => vec![format!("{min} to {max} in flight")],
        _ => numbers.rate_quotas().iter().map(|(rate, _)| rate_text(limit, rate)).collect(),
    }
}

/// The responses of one location; at most one for each upstream and each status from 400 to 599.
pub(super) struct PauseResponses {
    on_reject: OnReject,
    /// The names of all upstreams.
    upstreams: Box<[String]>,
    prepared: RwLock<HashMap<(UpstreamId, StatusCode), Arc<PreparedResponse>>>,
}

impl PauseResponses {
    /// `None` if no upstream may push back.
    pub(super) fn new(config: &Config, patch: &OnRejectPatch) -> Option<PauseResponses> {
        config.upstreams.iter().any(|upstream| upstream.obey.is_some()).then(|| PauseResponses {
            on_reject: config.on_reject.merge_patch(patch),
            upstreams: config.upstreams.iter().map(|upstream| upstream.name.clone()).collect(),
            prepared: RwLock::default(),
        })
    }

    pub(super) fn render_response(
        &self,
        pause: &PauseRejection,
        context: &RejectContext<'_>,
        grpc: bool,
    ) -> Response<Bytes> {
        let key = (pause.upstream, pause.status);
        let known = self.prepared.read().get(&key).cloned();
        let response = known.unwrap_or_else(|| {
            let response = Arc::new(self.prepare_response(pause));
            self.prepared.write().insert(key, response.clone());
            response
        });
        response.render_response(context, (Some(pause.retry_after_ns), false), grpc)
    }

    fn prepare_response(&self, pause: &PauseRejection) -> PreparedResponse {
        let name = self.upstreams.get(pause.upstream.0).map_or("", String::as_str);
        let detail = format!("upstream {name} takes no requests now");
        let status = self.on_reject.status.unwrap_or(pause.status);
        let grpc_status = if pause.status == StatusCode::TOO_MANY_REQUESTS { "8" } else { "14" };
        let content = ResponseContent::new(status, detail, RetryHint::Exact, grpc_status);
        let content = ResponseContent { kind: REDUCED_CAPACITY, ..content };
        PreparedResponse::new(&SectionStyle::new(&self.on_reject), &content)
    }
}
