//! The typed model of `auth` of a location: the service that decides on each request.

use std::time::Duration;

use http::HeaderName;
use http::uri::PathAndQuery;

use crate::id::{LimitId, UpstreamId, ViewId};

/// The service that is asked before a request is judged by its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    /// The upstream of the service.
    pub upstream: UpstreamId,
    /// The target of each question.
    pub target: PathAndQuery,
    /// The limits before the question, in the order of evaluation.
    pub limits: Vec<LimitId>,
    /// The limits of this chain that are used with other numbers.
    pub views: Vec<(LimitId, ViewId)>,
    /// Request headers that go along with the question.
    pub send: Vec<HeaderName>,
    /// Headers of the answer that the upstream gets; every request loses its own.
    pub copy: Vec<HeaderName>,
    /// `None` = each request is asked about.
    pub cache: Option<AuthCacheConfig>,
    /// The time of a whole question.
    pub timeout: Duration,
    /// The status without a decision is 403; otherwise 503.
    pub denies_on_failure: bool,
}

/// The answers that are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthCacheConfig {
    /// The request headers that tell answers apart, those of [`AuthConfig::send`] among them.
    pub by: Vec<HeaderName>,
    /// `for`: the longest time for which an answer holds.
    pub span: Duration,
    /// Answers of all workers.
    pub at_most: usize,
    /// Answers do not depend on the target.
    pub ignores_target: bool,
    /// Answers do not depend on the method.
    pub ignores_method: bool,
    /// Answers do not depend on the client's address.
    pub ignores_address: bool,
}
