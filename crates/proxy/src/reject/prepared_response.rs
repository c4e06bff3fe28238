//! A prepared response: everything that does not depend on a request, compiled when the configuration is read.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::RejectContext;
use super::header_edits::{CompiledEdits, intern_value};
use super::template::{CompiledTemplate, Escape, FixedValues, RetryTimes, TemplateBuilder, TemplatePart};
use sluicegate_base::escape;
use sluicegate_http::upstream::fnv1a;
use sluicegate_model::{Degrade, LimitConfig, OnReject, Rate, RejectBody, TemplateConfig, TemplateVar};

/// The parts of an `on_reject` section that its responses share, prepared once.
pub(super) struct SectionStyle<'a> {
    pub on_reject: &'a OnReject,
    /// Its headers.
    extra_headers: Arc<CompiledEdits>,
}

/// The content of a response, independent of its format.
pub(super) struct ResponseContent {
    pub status: StatusCode,
    /// The type of the problem body (RFC 9457, section 3.1.1).
    pub kind: &'static str,
    /// The sentence of the problem body.
    pub detail: String,
    /// One line for people.
    pub message: Vec<TemplatePart>,
    /// Name and rate of the limit that rejected.
    pub limit: Option<(String, String)>,
    /// The limit has shares, and the request is of a class.
    pub has_class: bool,
    pub retry_hint: RetryHint,
    pub grpc_status: &'static str,
    /// The `WWW-Authenticate` of a 401.
    pub challenge: Option<HeaderValue>,
    /// The code of a response that is one of JSON-RPC whatever `on_reject` says.
    pub rpc_code: Option<i32>,
}

/// The knowledge of when a retry can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryHint {
    /// Waiting does not help, or no time is known.
    Never,
    /// Overload passes at an unknown time; an estimate, or else the guess of one second, slows clients down.
    Soon,
    /// The limit or the ban knows the time in nanoseconds.
    Exact,
}

pub(super) struct PreparedResponse {
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: CompiledTemplate,
    /// The body contains more of the request than its id.
    pub uses_context: bool,
    message: CompiledTemplate,
    /// The headers of `on_reject`.
    pub extra_headers: Arc<CompiledEdits>,
    retry_hint: RetryHint,
    /// Percent.
    jitter: u8,
    grpc_status: &'static str,
    challenge: Option<HeaderValue>,
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The problem types of draft-ietf-httpapi-ratelimit-headers.
pub(super) const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
pub(super) const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
pub(super) const ABNORMAL_USAGE: &str =
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
const NO_KIND: &str = "about:blank";

// === impl SectionStyle ===

impl<'a> SectionStyle<'a> {
    pub(super) fn new(on_reject: &'a OnReject) -> SectionStyle<'a> {
        SectionStyle { on_reject, extra_headers: Arc::new(CompiledEdits::of_rejections(&on_reject.headers)) }
    }
}

// === impl RetryHint ===

impl RetryHint {
    /// A line for people, which ends with the time of a retry that may succeed: ", try again in 1 s".
    pub(super) fn complete_message(self, text: String) -> Vec<TemplatePart> {
        let mut message = vec![TemplatePart::Text(text)];
        if self != RetryHint::Never {
            message.push(TemplatePart::Text(", try again in ".to_owned()));
            message.push(TemplatePart::Slot(TemplateVar::RetryAfter));
            message.push(TemplatePart::Text(" s".to_owned()));
        }
        message
    }
}

// === impl ResponseContent ===

impl ResponseContent {
    /// The content of a response that concerns no limit; `detail` begins with a small letter.
    pub(super) fn new(
        status: StatusCode,
        detail: String,
        retry_hint: RetryHint,
        grpc_status: &'static str,
    ) -> ResponseContent {
        let mut sentence = detail.clone();
        sentence.get_mut(..1).into_iter().for_each(str::make_ascii_uppercase);
        let message = retry_hint.complete_message(sentence);
        ResponseContent {
            status,
            kind: NO_KIND,
            detail,
            message,
            limit: None,
            has_class: false,
            retry_hint,
            grpc_status,
            challenge: None,
            rpc_code: None,
        }
    }

    /// The template values that do not depend on a request, for this status.
    fn fixed_values(&self, status: StatusCode) -> FixedValues {
        let (limit, rate) = self.limit.clone().unwrap_or_default();
        let title = status_title(status).to_owned();
        FixedValues { status: status.as_u16(), title, message: self.message.clone(), limit, rate }
    }

    fn problem_body(&self) -> CompiledTemplate {
        let mut out = TemplateBuilder::new(Escape::Json);
        let kind = self.kind;
        out.push_verbatim(&format!("{{\"type\":\"{kind}\",\"title\":\"{}\",", status_title(self.status)));
        out.push_verbatim(&format!("\"status\":{},\"detail\":\"", self.status.as_u16()));
        out.push_escaped(&self.detail);
        if let Some((limit, _)) = &self.limit {
            out.push_verbatim("\",\"limit\":\"");
            out.push_escaped(limit);
        }
        if self.has_class {
            out.push_verbatim("\",\"class\":\"");
            out.push_slot(TemplateVar::Class);
        }
        out.push_verbatim("\",");
        if self.retry_hint == RetryHint::Exact {
            out.push_verbatim("\"retry_after_ms\":");
            out.push_slot(TemplateVar::RetryAfterMs);
            out.push_verbatim(",");
        }
        if let Some((limit, _)) = self.limit.as_ref().filter(|_| kind != NO_KIND) {
            out.push_verbatim("\"violated-policies\":[\"");
            out.push_escaped(limit);
            out.push_verbatim("\"],");
        }
        out.push_verbatim("\"request_id\":\"");
        out.push_slot(TemplateVar::RequestId);
        out.push_verbatim("\"}");
        out.finish()
    }

    /// The message between two texts of JSON.
    pub(super) fn enclose_message(&self, before: &str, behind: &str) -> TemplateBuilder {
        let mut out = TemplateBuilder::new(Escape::Json);
        out.push_verbatim(before);
        out.push_parts(&self.message);
        out.push_verbatim(behind);
        out
    }
}

fn status_title(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Rejected")
}

// === impl PreparedResponse ===

impl PreparedResponse {
    pub(super) fn new(style: &SectionStyle<'_>, content: &ResponseContent) -> PreparedResponse {
        let json = HeaderValue::from_static("application/json");
        let compile = |template: &TemplateConfig, content_type: &HeaderValue, status| {
            let escape = Escape::for_content_type(content_type);
            let template_body =
                CompiledTemplate::compile_with(template, escape, &content.fixed_values(status));
            (template_body, Some(intern_value(content_type)))
        };
        // The response in the configuration that replaces rejections by limits.
        let canned = match &style.on_reject.degrade {
            Some(Degrade::Canned(canned)) if content.limit.is_some() => Some(canned),
            _ => None,
        };
        let status = canned.map_or(content.status, |canned| canned.status);
        let body = match content.rpc_code {
            Some(code) => &RejectBody::JsonRpc { code },
            None => &style.on_reject.body,
        };
        let (body, content_type) = match (canned, body) {
            (Some(canned), _) => compile(&canned.body, &canned.content_type, status),
            (None, RejectBody::Problem) => {
                (content.problem_body(), Some(HeaderValue::from_static("application/problem+json")))
            }
            (None, RejectBody::Envelope) => {
                let (before, behind) = ("{\"resp_code\":-1,\"resp_msg\":\"", "\",\"datas\":{}}");
                (content.enclose_message(before, behind).finish(), Some(json))
            }
            (None, RejectBody::OpenAi) => (content.openai_body(), Some(json)),
            (None, RejectBody::Anthropic) => (content.anthropic_body(), Some(json)),
            (None, RejectBody::JsonRpc { code }) => (content.rpc_body(*code), Some(json)),
            (None, RejectBody::None) => (CompiledTemplate::default(), None),
            (None, RejectBody::Template { template, content_type }) => {
                compile(template, content_type, status)
            }
        };
        let mut message = TemplateBuilder::new(Escape::Plain);
        message.push_parts(&content.message);
        PreparedResponse {
            status,
            content_type,
            uses_context: body.uses_context(),
            body,
            message: message.finish(),
            extra_headers: style.extra_headers.clone(),
            retry_hint: content.retry_hint,
            jitter: style.on_reject.retry_jitter,
            grpc_status: content.grpc_status,
            challenge: content.challenge.clone().filter(|_| status == StatusCode::UNAUTHORIZED),
        }
    }

    pub(super) fn uses_target(&self) -> bool {
        self.body.uses_target() || self.extra_headers.uses_target()
    }

    pub(super) fn render_response(
        &self,
        context: &RejectContext<'_>,
        (retry_after_ns, is_turn): (Option<u64>, bool),
        grpc: bool,
    ) -> Response<Bytes> {
        let retry = self.retry_times(context.request_id, retry_after_ns, is_turn);
        if grpc {
            return self.render_grpc(context, retry);
        }
        self.build_response(self.render_head(context, retry), context, retry)
    }

    /// The response with this head.
    #[inline]
    pub(super) fn build_response(
        &self,
        head: Parts,
        context: &RejectContext<'_>,
        retry: RetryTimes,
    ) -> Response<Bytes> {
        let body = match self.body.is_empty() {
            true => Bytes::new(),
            false => Bytes::from(self.body.render_with_retry(context, retry)),
        };
        Response::from_parts(head, body)
    }

    pub(super) fn render_head(&self, context: &RejectContext<'_>, retry: RetryTimes) -> Parts {
        // Reserve for the fields about limits as well: the smallest map holds six.
        let mut headers = HeaderMap::with_capacity(4 + self.extra_headers.edits.len());
        if let Some(content_type) = &self.content_type {
            headers.insert(CONTENT_TYPE, content_type.clone());
        }
        // A canned response may be a success, which needs no retry.
        if let Some(seconds) = retry.seconds.filter(|_| self.status.as_u16() >= 400) {
            headers.insert(RETRY_AFTER, number_value(seconds));
        }
        if let Some(challenge) = &self.challenge {
            headers.insert(WWW_AUTHENTICATE, challenge.clone());
        }
        self.extra_headers.apply(&mut headers, &self.extra_headers.render_values(context));
        let mut head = Response::new(());
        *head.status_mut() = self.status;
        *head.headers_mut() = headers;
        head.into_parts().0
    }

    /// A trailers-only response: gRPC callers read the status from fields, not from the HTTP status.
    fn render_grpc(&self, context: &RejectContext<'_>, retry: RetryTimes) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        self.extra_headers.apply(headers, &self.extra_headers.render_values(context));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from_static(self.grpc_status));
        let mut message = Vec::new();
        escape::escape_grpc_message(&mut message, &self.message.render_with_retry(context, retry));
        if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
            headers.insert(GRPC_MESSAGE, message);
        }
        if let Some(seconds) = retry.seconds {
            headers.insert(RETRY_AFTER, number_value(seconds));
        }
        response
    }

    #[inline]
    pub(super) fn retry_times(
        &self,
        request_id: &[u8],
        retry_after_ns: Option<u64>,
        is_turn: bool,
    ) -> RetryTimes {
        if self.retry_hint == RetryHint::Never {
            return RetryTimes::default();
        }
        let seconds = retry_after_ns.map_or(1, |ns| ns.div_ceil(1_000_000_000).max(1));
        // Turns are spread as they are.
        let jitter = if is_turn { 0 } else { self.jitter_seconds(seconds, request_id) };
        let seconds = seconds.saturating_add(jitter);
        // An unknown time is treated as overload.
        let exact_ns = retry_after_ns.filter(|_| self.retry_hint == RetryHint::Exact);
        let ms = exact_ns.map_or(seconds.saturating_mul(1_000), |ns| ns.div_ceil(1_000_000));
        RetryTimes { seconds: Some(seconds), ms: Some(ms) }
    }

    /// Whole seconds to add, from 0 to the configured percentage, with a hash of the request id as the random number.
    fn jitter_seconds(&self, seconds: u64, request_id: &[u8]) -> u64 {
        if self.jitter == 0 {
            return 0;
        }
        let max_seconds = seconds.saturating_mul(u64::from(self.jitter)).div_ceil(100);
        let hash = fnv1a(request_id);
        (hash ^ hash >> 32) % max_seconds.saturating_add(1)
    }
}

/// A rate as short text, e.g. `10/s` or `300/60s`.
pub(crate) fn rate_text(limit: &LimitConfig, rate: &Rate) -> String {
    let (units, period_ns) = (limit.show_units(rate.units.get()), rate.period.as_nanos());
    if let Some(unit) = rate.calendar {
        return format!("{units}/{}", unit.as_str());
    }
    const UNITS: [(u128, &str); 4] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
    let unit = UNITS.iter().find(|(unit, _)| period_ns.is_multiple_of(*unit));
    let (unit, name) = unit.copied().unwrap_or((1, "ns"));
    match period_ns / unit {
        1 => format!("{units}/{name}"),
        count => format!("{units}/{count}{name}"),
    }
}

/// A number as a header value; small ones are prepared.
#[inline]
pub(super) fn number_value(number: u64) -> HeaderValue {
    const PREPARED_NUMBERS: u64 = 121;
    static VALUES: LazyLock<Vec<HeaderValue>> =
        LazyLock::new(|| (0..PREPARED_NUMBERS).map(|n| intern_value(&HeaderValue::from(n))).collect());
    let prepared = usize::try_from(number).ok().and_then(|index| VALUES.get(index));
    prepared.cloned().unwrap_or_else(|| HeaderValue::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_on_both_sides_of_the_ready_ones() {
        for n in [0, 1, 120, 121, u64::MAX] {
            assert_eq!(number_value(n).to_str().unwrap(), n.to_string());
        }
    }
}
