//! One prepared answer: everything about it that no request can change, compiled when the configuration is read.

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::RejectContext;
use super::interned_headers;
use super::template::{
    CompiledTemplate, Escape, FixedValues, RetryTimes, TemplateBuilder, TemplatePart, TemplateSlot,
};
use crate::base::escape;
use crate::config::{CannedResponse, Degrade, OnReject, RejectBody, TemplateConfig};

/// The headers of `on_reject`.
type ExtraHeaders = Arc<[(HeaderName, HeaderValue)]>;

/// What differs between `on_reject` sections, prepared once per section.
pub(super) struct SectionStyle<'a> {
    pub on_reject: &'a OnReject,
    extra_headers: ExtraHeaders,
}

/// What an answer is about.
pub(super) struct ResponseContent {
    pub status: StatusCode,
    /// The sentence of the problem body.
    pub detail: String,
    /// One line for people.
    pub message: Vec<TemplatePart>,
    /// Name and rate of the limit that refused.
    pub limit: Option<(String, String)>,
    pub retry_hint: RetryHint,
    pub grpc_status: &'static str,
}

/// What is known about the time to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryHint {
    /// Waiting does not help, or nothing is known.
    Never,
    /// Overload passes, nobody knows when: one second is a guess that keeps clients calm.
    Soon,
    /// The limit, or the ban, knows to the nanosecond.
    Exact,
}

pub(super) struct PreparedResponse {
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: CompiledTemplate,
    message: CompiledTemplate,
    extra_headers: ExtraHeaders,
    retry_hint: RetryHint,
    /// Percent.
    jitter: u8,
    grpc_status: &'static str,
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

// === impl Style ===

impl<'a> SectionStyle<'a> {
    pub(super) fn new(on_reject: &'a OnReject) -> SectionStyle<'a> {
        let entry = |(name, value): &(HeaderName, HeaderValue)| {
            (interned_headers::intern_name(name), interned_headers::intern_value(value))
        };
        SectionStyle { on_reject, extra_headers: on_reject.headers.iter().map(entry).collect() }
    }

    /// The answer that limits give instead of a rejection.
    fn canned_response(&self) -> Option<&'a CannedResponse> {
        match &self.on_reject.degrade {
            Some(Degrade::Canned(canned)) => Some(canned),
            _ => None,
        }
    }
}

// === impl Matter ===

impl ResponseContent {
    /// The words for an answer of this status.
    fn fixed_values(&self, status: StatusCode) -> FixedValues {
        let (limit, rate) = self.limit.clone().unwrap_or_default();
        let title = status_title(status).to_owned();
        FixedValues { status: status.as_u16(), title, message: self.message.clone(), limit, rate }
    }

    fn problem_body(&self) -> CompiledTemplate {
        let mut out = TemplateBuilder::new(Escape::Json);
        let kind = if self.limit.is_some() { QUOTA_EXCEEDED } else { "about:blank" };
        out.push_verbatim(&format!("{{\"type\":\"{kind}\",\"title\":\"{}\",", status_title(self.status)));
        out.push_verbatim(&format!("\"status\":{},\"detail\":\"", self.status.as_u16()));
        out.push_escaped(&self.detail);
        if let Some((limit, _)) = &self.limit {
            out.push_verbatim("\",\"limit\":\"");
            out.push_escaped(limit);
        }
        out.push_verbatim("\",");
        if self.retry_hint == RetryHint::Exact {
            out.push_verbatim("\"retry_after_ms\":");
            out.push_slot(TemplateSlot::RetryAfterMs);
            out.push_verbatim(",");
        }
        if let Some((limit, _)) = &self.limit {
            out.push_verbatim("\"violated-policies\":[\"");
            out.push_escaped(limit);
            out.push_verbatim("\"],");
        }
        out.push_verbatim("\"request_id\":\"");
        out.push_slot(TemplateSlot::RequestId);
        out.push_verbatim("\"}");
        out.finish()
    }

    fn envelope_body(&self) -> CompiledTemplate {
        let mut out = TemplateBuilder::new(Escape::Json);
        out.push_verbatim("{\"resp_code\":-1,\"resp_msg\":\"");
        out.push_parts(&self.message);
        out.push_verbatim("\",\"datas\":{}}");
        out.finish()
    }
}

fn status_title(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Rejected")
}

// === impl Voice ===

impl PreparedResponse {
    pub(super) fn new(style: &SectionStyle<'_>, matter: &ResponseContent) -> PreparedResponse {
        let json = HeaderValue::from_static("application/json");
        let written = |template: &TemplateConfig, content_type: &HeaderValue, status| {
            let script = CompiledTemplate::compile_with(
                template,
                Escape::for_content_type(content_type),
                &matter.fixed_values(status),
            );
            (script, Some(interned_headers::intern_value(content_type)))
        };
        let canned = style.canned_response().filter(|_| matter.limit.is_some());
        let status = canned.map_or(matter.status, |canned| canned.status);
        let (body, content_type) = match (canned, &style.on_reject.body) {
            (Some(canned), _) => written(&canned.body, &canned.content_type, status),
            (None, RejectBody::Problem) => {
                (matter.problem_body(), Some(HeaderValue::from_static("application/problem+json")))
            }
            (None, RejectBody::Envelope) => (matter.envelope_body(), Some(json)),
            (None, RejectBody::None) => (CompiledTemplate::default(), None),
            (None, RejectBody::Template { template, content_type }) => {
                written(template, content_type, status)
            }
        };
        let mut message = TemplateBuilder::new(Escape::Plain);
        message.push_parts(&matter.message);
        PreparedResponse {
            status,
            content_type,
            body,
            message: message.finish(),
            extra_headers: style.extra_headers.clone(),
            retry_hint: matter.retry_hint,
            jitter: style.on_reject.retry_jitter,
            grpc_status: matter.grpc_status,
        }
    }

    pub(super) fn uses_target(&self) -> bool {
        self.body.uses_target()
    }

    pub(super) fn render_response(
        &self,
        context: &RejectContext<'_>,
        retry_after_ns: Option<u64>,
        grpc: bool,
    ) -> Response<Bytes> {
        let retry = self.retry_times(context.request_id, retry_after_ns);
        if grpc {
            return self.render_grpc(context, retry);
        }
        let body = match self.body.is_empty() {
            true => Bytes::new(),
            false => Bytes::from(self.body.render_with_retry(context, retry)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        // Room for the fields about limits, too: six are what the smallest map holds.
        headers.reserve(4 + self.extra_headers.len());
        if let Some(content_type) = &self.content_type {
            headers.insert(CONTENT_TYPE, content_type.clone());
        }
        // A canned answer may be a success, which nobody has to send again.
        if let Some(seconds) = retry.seconds.filter(|_| self.status.as_u16() >= 400) {
            headers.insert(RETRY_AFTER, interned_headers::number_value(seconds));
        }
        self.add_extra_headers(headers);
        response
    }

    /// A trailers-only answer: gRPC callers read the status from fields, never from the HTTP status.
    fn render_grpc(&self, context: &RejectContext<'_>, retry: RetryTimes) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        self.add_extra_headers(headers);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from_static(self.grpc_status));
        let mut message = Vec::new();
        escape::escape_grpc_message(&mut message, &self.message.render_with_retry(context, retry));
        if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
            headers.insert(GRPC_MESSAGE, message);
        }
        if let Some(seconds) = retry.seconds {
            headers.insert(RETRY_AFTER, interned_headers::number_value(seconds));
        }
        response
    }

    fn add_extra_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in self.extra_headers.iter() {
            headers.insert(name.clone(), value.clone());
        }
    }

    #[inline]
    fn retry_times(&self, request_id: &str, retry_after_ns: Option<u64>) -> RetryTimes {
        match (self.retry_hint, retry_after_ns) {
            (RetryHint::Exact, Some(ns)) => {
                let seconds = ns.div_ceil(1_000_000_000).max(1);
                let seconds = seconds.saturating_add(self.jitter_seconds(seconds, request_id));
                RetryTimes { seconds: Some(seconds), ms: Some(ns.div_ceil(1_000_000)) }
            }
            // A time that nobody knows is told as overload is.
            (RetryHint::Soon, _) | (RetryHint::Exact, None) => {
                let seconds = 1 + self.jitter_seconds(1, request_id);
                RetryTimes { seconds: Some(seconds), ms: Some(seconds * 1_000) }
            }
            (RetryHint::Never, _) => RetryTimes::default(),
        }
    }

    /// Whole seconds on top, from none to the configured share: the request id serves as the dice.
    fn jitter_seconds(&self, seconds: u64, request_id: &str) -> u64 {
        if self.jitter == 0 {
            return 0;
        }
        let most = seconds.saturating_mul(u64::from(self.jitter)).div_ceil(100);
        let dice = request_id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        (dice ^ dice >> 32) % most.saturating_add(1)
    }
}

/// The rate as short text, e.g. `10/s` or `300/60s`.
pub(super) fn rate_text(units: NonZeroU64, period_ns: u128) -> String {
    const UNITS: [(u128, &str); 4] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
    let unit = UNITS.iter().find(|(unit, _)| period_ns.is_multiple_of(*unit));
    let (unit, name) = unit.copied().unwrap_or((1, "ns"));
    match period_ns / unit {
        1 => format!("{units}/{name}"),
        count => format!("{units}/{count}{name}"),
    }
}
