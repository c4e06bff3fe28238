//! The typed model of rejections: the answer to a rejected request.

use super::template::{HeaderText, TemplateConfig};
use crate::UpstreamId;
use http::{HeaderName, HeaderValue, StatusCode};
use std::time::Duration;

/// The answer to a rejection, with every field decided.
#[derive(Debug, Clone)]
pub struct OnReject {
    /// `None` = auto: 429 for rates and queues, 503 for concurrency and overload.
    pub status: Option<StatusCode>,
    /// The body of the answer.
    pub body: RejectBody,
    /// Further response headers; values may have variables.
    pub headers: Vec<(HeaderName, HeaderText)>,
    /// The fields that tell a client its limits.
    pub ratelimit_headers: RateLimitHeaders,
    /// The time that a request rejected by a rate is told.
    pub retry_after: RetryAfter,
    /// The furthest turn.
    pub turns_at_most: Duration,
    /// Percent of Retry-After, 0 to 100.
    pub retry_jitter: u8,
    /// Replaces the answer if a limit rejects a request; `None` = the rejection is sent.
    pub degrade: Option<Degrade>,
}

/// The time that a request rejected by a rate is told to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    /// Until it would fit if no other came.
    Exact,
    /// Until its turn among the rejected requests of its key.
    Turns,
}

/// The substitute for a rejection.
#[derive(Debug, Clone, PartialEq)]
pub enum Degrade {
    /// Index into [`crate::Config::upstreams`].
    Upstream(UpstreamId),
    /// A response from the file.
    Canned(CannedResponse),
}

/// A response written in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct CannedResponse {
    /// The status, from 200.
    pub status: StatusCode,
    /// The body, with variables.
    pub body: TemplateConfig,
    /// The `Content-Type`.
    pub content_type: HeaderValue,
}

/// The body of a rejection.
#[derive(Debug, Clone, PartialEq)]
pub enum RejectBody {
    /// Problem details (RFC 9457).
    Problem,
    /// An envelope in JSON with `resp_code` and `resp_msg`.
    Envelope,
    /// The error object of the API of OpenAI.
    OpenAi,
    /// The error object of the API of Anthropic.
    Anthropic,
    /// The error response of JSON-RPC 2.0.
    JsonRpc {
        /// The code of rejections; faults have those of JSON-RPC.
        code: i32,
    },
    /// No body.
    None,
    /// A text of the file's own.
    Template {
        /// The text; values are escaped for its type.
        template: TemplateConfig,
        /// The `Content-Type`, `text/plain` unless the file has another.
        content_type: HeaderValue,
    },
}

/// The fields that tell a client its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimitHeaders {
    /// The form of `RateLimit` and `RateLimit-Policy`; `None` = they are not sent.
    pub draft: Option<RateLimitDraft>,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    pub legacy: bool,
}

/// A version of draft-ietf-httpapi-ratelimit-headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimitDraft {
    /// Rates alone, with the time until one more unit fits: 0 while units are left.
    Draft10,
    /// The units of each quota, slots too, with the effective window.
    Draft11,
}

/// An `on_reject` section that overrides only the fields it has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OnRejectPatch {
    /// `Some(None)` restores `auto`.
    pub status: Option<Option<StatusCode>>,
    /// The body of the answer.
    pub body: Option<RejectBody>,
    /// Further response headers, in place of all those of the section below.
    pub headers: Option<Vec<(HeaderName, HeaderText)>>,
    /// The fields that tell a client its limits.
    pub ratelimit_headers: Option<RateLimitHeaders>,
    /// The time that a request rejected by a rate is told.
    pub retry_after: Option<RetryAfter>,
    /// The furthest turn.
    pub turns_at_most: Option<Duration>,
    /// Percent of Retry-After, 0 to 100.
    pub retry_jitter: Option<u8>,
    /// `Some(None)` turns it off.
    pub degrade: Option<Option<Degrade>>,
}

impl OnRejectPatch {
    /// True if the section overrides nothing.
    pub fn is_empty(&self) -> bool {
        *self == OnRejectPatch::default()
    }
}

impl OnReject {
    /// This section with `patch` laid over it. A limit overrides the top level, and a location overrides both.
    pub fn merge_patch(&self, patch: &OnRejectPatch) -> OnReject {
        OnReject {
            status: patch.status.unwrap_or(self.status),
            body: patch.body.clone().unwrap_or_else(|| self.body.clone()),
            headers: patch.headers.clone().unwrap_or_else(|| self.headers.clone()),
            ratelimit_headers: patch.ratelimit_headers.unwrap_or(self.ratelimit_headers),
            retry_after: patch.retry_after.unwrap_or(self.retry_after),
            turns_at_most: patch.turns_at_most.unwrap_or(self.turns_at_most),
            retry_jitter: patch.retry_jitter.unwrap_or(self.retry_jitter),
            degrade: patch.degrade.clone().unwrap_or_else(|| self.degrade.clone()),
        }
    }

    /// The furthest turn that is handed out; `None` = the time is exact.
    pub fn turns(&self) -> Option<Duration> {
        (self.retry_after == RetryAfter::Turns).then_some(self.turns_at_most)
    }
}
