//! The typed model of rejections: how a refused client is answered, and the templates for it.

use crate::config::UpstreamId;
use http::{HeaderName, HeaderValue, StatusCode};

/// Text with `${name}` variables of the contract's list, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateConfig(pub Vec<TemplatePiece>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePiece {
    Text(String),
    Var(TemplateVar),
}

/// The template variables, as the contract lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateVar {
    Status,
    Title,
    Message,
    Limit,
    Tier,
    Rate,
    RetryAfter,
    RetryAfterMs,
    RequestId,
    ClientIp,
    Account,
    Host,
    Uri,
    RequestUri,
    Location,
}

/// How a rejection is answered, all fields decided.
#[derive(Debug, Clone)]
pub struct OnReject {
    /// `None` = auto: 429 for rates and queues, 503 for concurrency and overload.
    pub status: Option<StatusCode>,
    pub body: RejectBody,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub ratelimit_headers: RateLimitHeaders,
    /// Percent of Retry-After, 0 to 100.
    pub retry_jitter: u8,
    /// What a request gets that a limit refuses; `None` = the rejection.
    pub degrade: Option<Degrade>,
}

/// What answers instead of a rejection.
#[derive(Debug, Clone)]
pub enum Degrade {
    /// Index into [`crate::config::Config::upstreams`].
    Upstream(UpstreamId),
    Canned(CannedResponse),
}

/// An answer that is written in the file.
#[derive(Debug, Clone)]
pub struct CannedResponse {
    pub status: StatusCode,
    pub body: TemplateConfig,
    pub content_type: HeaderValue,
}

#[derive(Debug, Clone)]
pub enum RejectBody {
    Problem,
    Envelope,
    None,
    Template { template: TemplateConfig, content_type: HeaderValue },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimitHeaders {
    pub standard: bool,
    pub legacy: bool,
}

/// An `on_reject` section that overrides only what it names.
#[derive(Debug, Clone, Default)]
pub struct OnRejectPatch {
    /// `Some(None)` sets `auto` back.
    pub status: Option<Option<StatusCode>>,
    pub body: Option<RejectBody>,
    pub headers: Option<Vec<(HeaderName, HeaderValue)>>,
    pub ratelimit_headers: Option<RateLimitHeaders>,
    pub retry_jitter: Option<u8>,
    /// `Some(None)` switches it off.
    pub degrade: Option<Option<Degrade>>,
}

impl OnReject {
    /// This section with `patch` laid over it: limit over top level, location over both.
    pub fn merge_patch(&self, patch: &OnRejectPatch) -> OnReject {
        OnReject {
            status: patch.status.unwrap_or(self.status),
            body: patch.body.clone().unwrap_or_else(|| self.body.clone()),
            headers: patch.headers.clone().unwrap_or_else(|| self.headers.clone()),
            ratelimit_headers: patch.ratelimit_headers.unwrap_or(self.ratelimit_headers),
            retry_jitter: patch.retry_jitter.unwrap_or(self.retry_jitter),
            degrade: patch.degrade.clone().unwrap_or_else(|| self.degrade.clone()),
        }
    }
}
