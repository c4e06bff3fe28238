//! One prepared answer: everything about it that no request can change, compiled when the configuration is read.

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::RejectContext;
use super::static_headers;
use super::template::{Escape, Known, Part, Retry, Script, ScriptWriter, Slot};
use crate::base::escape;
use crate::config::{Canned, Degrade, OnReject, RejectBody, Template};

/// The headers of `on_reject`.
type Extra = Arc<[(HeaderName, HeaderValue)]>;

/// What differs between `on_reject` sections, prepared once per section.
pub(super) struct Style<'a> {
    pub on_reject: &'a OnReject,
    extra: Extra,
}

/// What an answer is about.
pub(super) struct Matter {
    pub status: StatusCode,
    /// The sentence of the problem body.
    pub detail: String,
    /// One line for people.
    pub message: Vec<Part>,
    /// Name and rate of the limit that refused.
    pub limit: Option<(String, String)>,
    pub when: When,
    pub grpc_status: &'static str,
}

/// What is known about the time to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Waiting does not help, or nothing is known.
    Never,
    /// Overload passes, nobody knows when: one second is a guess that keeps clients calm.
    Soon,
    /// The limit, or the ban, knows to the nanosecond.
    Exact,
}

pub(super) struct Voice {
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: Script,
    message: Script,
    extra: Extra,
    when: When,
    /// Percent.
    jitter: u8,
    grpc_status: &'static str,
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

// === impl Style ===

impl<'a> Style<'a> {
    pub(super) fn new(on_reject: &'a OnReject) -> Style<'a> {
        let entry = |(name, value): &(HeaderName, HeaderValue)| {
            (static_headers::name(name), static_headers::value(value))
        };
        Style { on_reject, extra: on_reject.headers.iter().map(entry).collect() }
    }

    /// The answer that limits give instead of a rejection.
    fn canned(&self) -> Option<&'a Canned> {
        match &self.on_reject.degrade {
            Some(Degrade::Canned(canned)) => Some(canned),
            _ => None,
        }
    }
}

// === impl Matter ===

impl Matter {
    /// The words for an answer of this status.
    fn known(&self, status: StatusCode) -> Known {
        let (limit, rate) = self.limit.clone().unwrap_or_default();
        let title = title(status).to_owned();
        Known { status: status.as_u16(), title, message: self.message.clone(), limit, rate }
    }

    fn problem(&self) -> Script {
        let mut out = ScriptWriter::new(Escape::Json);
        let kind = if self.limit.is_some() { QUOTA_EXCEEDED } else { "about:blank" };
        out.verbatim(&format!("{{\"type\":\"{kind}\",\"title\":\"{}\",", title(self.status)));
        out.verbatim(&format!("\"status\":{},\"detail\":\"", self.status.as_u16()));
        out.escaped(&self.detail);
        if let Some((limit, _)) = &self.limit {
            out.verbatim("\",\"limit\":\"");
            out.escaped(limit);
        }
        out.verbatim("\",");
        if self.when == When::Exact {
            out.verbatim("\"retry_after_ms\":");
            out.slot(Slot::RetryAfterMs);
            out.verbatim(",");
        }
        if let Some((limit, _)) = &self.limit {
            out.verbatim("\"violated-policies\":[\"");
            out.escaped(limit);
            out.verbatim("\"],");
        }
        out.verbatim("\"request_id\":\"");
        out.slot(Slot::RequestId);
        out.verbatim("\"}");
        out.finish()
    }

    fn envelope(&self) -> Script {
        let mut out = ScriptWriter::new(Escape::Json);
        out.verbatim("{\"resp_code\":-1,\"resp_msg\":\"");
        out.parts(&self.message);
        out.verbatim("\",\"datas\":{}}");
        out.finish()
    }
}

fn title(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Rejected")
}

// === impl Voice ===

impl Voice {
    pub(super) fn new(style: &Style<'_>, matter: &Matter) -> Voice {
        let json = HeaderValue::from_static("application/json");
        let written = |template: &Template, content_type: &HeaderValue, status| {
            let script = Script::compile(template, Escape::of(content_type), &matter.known(status));
            (script, Some(static_headers::value(content_type)))
        };
        let canned = style.canned().filter(|_| matter.limit.is_some());
        let status = canned.map_or(matter.status, |canned| canned.status);
        let (body, content_type) = match (canned, &style.on_reject.body) {
            (Some(canned), _) => written(&canned.body, &canned.content_type, status),
            (None, RejectBody::Problem) => {
                (matter.problem(), Some(HeaderValue::from_static("application/problem+json")))
            }
            (None, RejectBody::Envelope) => (matter.envelope(), Some(json)),
            (None, RejectBody::None) => (Script::default(), None),
            (None, RejectBody::Template { template, content_type }) => {
                written(template, content_type, status)
            }
        };
        let mut message = ScriptWriter::new(Escape::Plain);
        message.parts(&matter.message);
        Voice {
            status,
            content_type,
            body,
            message: message.finish(),
            extra: style.extra.clone(),
            when: matter.when,
            jitter: style.on_reject.retry_jitter,
            grpc_status: matter.grpc_status,
        }
    }

    pub(super) fn tells_target(&self) -> bool {
        self.body.tells_target()
    }

    pub(super) fn answer(
        &self,
        context: &RejectContext<'_>,
        retry_after_ns: Option<u64>,
        grpc: bool,
    ) -> Response<Bytes> {
        let retry = self.retry(context.request_id, retry_after_ns);
        if grpc {
            return self.answer_grpc(context, retry);
        }
        let body = match self.body.is_empty() {
            true => Bytes::new(),
            false => Bytes::from(self.body.render_with(context, retry)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        // Room for the fields about limits, too: six are what the smallest map holds.
        headers.reserve(4 + self.extra.len());
        if let Some(content_type) = &self.content_type {
            headers.insert(CONTENT_TYPE, content_type.clone());
        }
        // A canned answer may be a success, which nobody has to send again.
        if let Some(seconds) = retry.seconds.filter(|_| self.status.as_u16() >= 400) {
            headers.insert(RETRY_AFTER, static_headers::number(seconds));
        }
        self.add_extra(headers);
        response
    }

    /// A trailers-only answer: gRPC callers read the status from fields, never from the HTTP status.
    fn answer_grpc(&self, context: &RejectContext<'_>, retry: Retry) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        self.add_extra(headers);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from_static(self.grpc_status));
        let mut message = Vec::new();
        escape::grpc_message(&mut message, &self.message.render_with(context, retry));
        if let Ok(message) = HeaderValue::from_maybe_shared(Bytes::from(message)) {
            headers.insert(GRPC_MESSAGE, message);
        }
        if let Some(seconds) = retry.seconds {
            headers.insert(RETRY_AFTER, static_headers::number(seconds));
        }
        response
    }

    fn add_extra(&self, headers: &mut HeaderMap) {
        for (name, value) in self.extra.iter() {
            headers.insert(name.clone(), value.clone());
        }
    }

    #[inline]
    fn retry(&self, request_id: &str, retry_after_ns: Option<u64>) -> Retry {
        match (self.when, retry_after_ns) {
            (When::Exact, Some(ns)) => {
                let seconds = ns.div_ceil(1_000_000_000).max(1);
                let seconds = seconds.saturating_add(self.spread(seconds, request_id));
                Retry { seconds: Some(seconds), ms: Some(ns.div_ceil(1_000_000)) }
            }
            // A time that nobody knows is told as overload is.
            (When::Soon, _) | (When::Exact, None) => {
                let seconds = 1 + self.spread(1, request_id);
                Retry { seconds: Some(seconds), ms: Some(seconds * 1_000) }
            }
            (When::Never, _) => Retry::default(),
        }
    }

    /// Whole seconds on top, from none to the configured share: the request id serves as the dice.
    fn spread(&self, seconds: u64, request_id: &str) -> u64 {
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
