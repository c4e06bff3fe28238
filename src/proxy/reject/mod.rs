//! How the gateway says no: the only room that knows error statuses, bodies and the fields about limits.
//!
//! A [`Rejecter`] is prepared per location when the configuration is read: saying no is what a gateway does most
//! when it is under attack, so that an answer is a few copies.

mod dry_run;
mod interned_headers;
mod limit_fields;
mod location_responses;
mod prepared_response;
mod rejection;
pub mod status;
mod template;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderMap, HeaderName, Response};

use crate::base::escape;
use crate::config::{Config, OnRejectPatch};
use crate::limit::Decision;
use dry_run::DryRuns;
use limit_fields::RateLimitFields;
use location_responses::{FaultResponses, LimitResponses, prepare_limit};
use prepared_response::PreparedResponse;

pub use rejection::{Fault, LimitCause, LimitRejection, Rejection};
pub use template::CompiledTemplate;

/// What an answer may tell about the request; empty where unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct RejectContext<'a> {
    /// Of ASCII letters, digits and `-_.:+/=@`.
    pub request_id: &'a str,
    pub client_ip: Option<IpAddr>,
    pub account: &'a str,
    pub tier: &'a str,
    pub host: &'a str,
    /// The normalised path without the query.
    pub uri: &'a str,
    /// The target as sent.
    pub request_uri: &'a str,
    pub location: &'a str,
}

/// The rejecters of one configuration.
pub struct Rejecters {
    locations: Vec<Rejecter>,
    default_rejecter: Rejecter,
}

/// Says no for one location.
pub struct Rejecter {
    limits: Box<[LimitResponses]>,
    fault_responses: Arc<FaultResponses>,
    rate_limit_fields: RateLimitFields,
    dry_runs: DryRuns,
    uses_target: bool,
}

/// What a request gets that a limit refuses, if that is no rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DegradedTo {
    /// [`Rejecter::answer`] gives the one that is written in the file.
    Canned,
    /// Place in [`Config::upstreams`].
    Upstream(usize),
}

const DEGRADED: HeaderName = HeaderName::from_static("sluicegate-degraded");

// === impl Rejecters ===

impl Rejecters {
    pub fn new(config: &Config) -> Rejecters {
        // What no location serves is never degraded: it would be a 404 otherwise.
        let never = OnRejectPatch { degrade: Some(None), ..OnRejectPatch::default() };
        let nowhere = Rejecter::new(config, &[], &never, None);
        let location = |location: &crate::config::LocationConfig| {
            let patch = &location.on_reject;
            let plain = patch.status.is_none()
                && patch.body.is_none()
                && patch.headers.is_none()
                && patch.retry_jitter.is_none();
            let plain = plain.then(|| nowhere.fault_responses.clone());
            Rejecter::new(config, &location.limits, patch, plain)
        };
        Rejecters { locations: config.locations.iter().map(location).collect(), default_rejecter: nowhere }
    }

    /// The rejecter of a location, by its place in [`Config::locations`]; `None` = the request has none.
    #[inline]
    pub fn for_location(&self, location: Option<usize>) -> &Rejecter {
        location.and_then(|place| self.locations.get(place)).unwrap_or(&self.default_rejecter)
    }
}

// === impl Rejecter ===

impl Rejecter {
    fn new(
        config: &Config,
        own: &[usize],
        patch: &OnRejectPatch,
        plain: Option<Arc<FaultResponses>>,
    ) -> Rejecter {
        let mut chain: Vec<usize> = Vec::new();
        for &limit in config.server.limits.iter().chain(own) {
            if !chain.contains(&limit) {
                chain.push(limit);
            }
        }
        let layered =
            |limit: usize| config.on_reject.merge_patch(&config.limits[limit].on_reject).merge_patch(patch);
        let limits = chain.iter().flat_map(|&limit| prepare_limit(config, limit, &layered(limit))).collect();
        let style = |limit: usize| {
            let headers = layered(limit).ratelimit_headers;
            (headers.standard, headers.legacy)
        };
        let plain =
            plain.unwrap_or_else(|| Arc::new(FaultResponses::new(&config.on_reject.merge_patch(patch))));
        Rejecter {
            limits,
            uses_target: plain.faults.iter().any(PreparedResponse::uses_target),
            fault_responses: plain,
            rate_limit_fields: RateLimitFields::new(config, &chain, style),
            dry_runs: DryRuns::new(config, &chain),
        }
    }

    /// Whether answers to faults tell the target or the host of the request.
    #[inline]
    pub fn uses_target(&self) -> bool {
        self.uses_target
    }

    /// What a refused request gets instead of a rejection; `None` = the rejection. gRPC callers cannot read an
    /// answer that is written in the file.
    pub fn degraded_to(&self, refusal: &LimitRejection, grpc: bool) -> Option<DegradedTo> {
        let instead = self.limit_responses(refusal)?.degraded_to;
        instead.filter(|instead| !(grpc && *instead == DegradedTo::Canned))
    }

    /// Marks an answer that came from the upstream instead of the rejection by a limit.
    pub fn mark_degraded(&self, limit: usize, headers: &mut HeaderMap) {
        if let Some(voices) = self.limits.iter().find(|voices| voices.limit == limit) {
            headers.insert(DEGRADED, voices.degraded_value.clone());
        }
    }

    /// The whole answer, but for the fields about limits; see [`Rejecter::write_fields`].
    pub fn render_rejection(
        &self,
        rejection: &Rejection,
        context: &RejectContext<'_>,
        grpc: bool,
    ) -> Response<Bytes> {
        let faults = &self.fault_responses.faults;
        let (voice, retry_after_ns) = match rejection {
            Rejection::Limit(refusal) => match self.limit_responses(refusal) {
                Some(voices) => (voices.response_for(refusal.cause), refusal.retry_after_ns),
                // A refusal by a limit that is not in this chain: a mistake of ours, told as such.
                None => (&faults[Fault::Internal.index()], None),
            },
            Rejection::Fault(fault) => (&faults[fault.index()], None),
            Rejection::Banned { left_ns } => (&self.fault_responses.banned, Some(*left_ns)),
            Rejection::MethodNotAllowed { .. } => (&faults[Fault::BadMethod.index()], None),
        };
        let mut response = voice.render_response(context, retry_after_ns, grpc);
        if let Rejection::MethodNotAllowed { allow } = rejection {
            response.headers_mut().insert(ALLOW, allow.clone());
        }
        if let Rejection::Limit(refusal) = rejection
            && self.degraded_to(refusal, grpc) == Some(DegradedTo::Canned)
        {
            self.mark_degraded(refusal.limit, response.headers_mut());
        }
        response
    }

    /// Writes what the limits said into the head of an answer, on admitted ones too. `decisions` are (place in
    /// [`Config::limits`], place of the rate, decision) in chain order; those that must not be told are left out.
    #[inline]
    pub fn write_fields(
        &self,
        decisions: impl IntoIterator<Item = (usize, usize, Decision)>,
        headers: &mut HeaderMap,
    ) {
        self.rate_limit_fields.write_fields(decisions, headers);
    }

    /// Whether the chain has limits in a dry run.
    #[inline]
    pub fn has_dry_runs(&self) -> bool {
        !self.dry_runs.is_empty()
    }

    /// Writes what dry-run limits would have done into the head of an answer. `decisions` are (place in
    /// [`Config::limits`], decision), one per limit.
    #[inline]
    pub fn write_dry_runs(
        &self,
        decisions: impl IntoIterator<Item = (usize, Decision)>,
        headers: &mut HeaderMap,
    ) {
        self.dry_runs.write_header(decisions, headers);
    }

    /// The same for the access log, of those that would have acted.
    pub fn dry_run_summary(&self, decisions: impl IntoIterator<Item = (usize, Decision)>) -> Option<String> {
        self.dry_runs.log_summary(decisions)
    }

    fn limit_responses(&self, refusal: &LimitRejection) -> Option<&LimitResponses> {
        let fits = |voices: &&LimitResponses| voices.limit == refusal.limit && voices.rate == refusal.rate;
        self.limits.iter().find(fits)
    }
}

/// A name as the string of a structured field.
fn quote_name(name: &str) -> Vec<u8> {
    let mut out = vec![b'"'];
    escape::escape_structured_string(&mut out, name);
    out.push(b'"');
    out
}

#[cfg(test)]
mod tests;
