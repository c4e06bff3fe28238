//! Renders rejections and faults: the only room that knows error statuses, their bodies and the fields about limits.
//!
//! A [`Rejecter`] is prepared for each location when the configuration is read. Under attack a gateway mostly rejects,
//! so rendering a response is a few copies.

mod cause;
mod dialect;
mod dry_run;
pub mod header_edits;
mod limit_fields;
mod location_responses;
mod prepared_response;
mod template;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::ALLOW;
use http::response::Parts;
use http::{HeaderMap, HeaderName, Response};

use dry_run::DryRuns;
use limit_fields::RateLimitFields;
use location_responses::{FaultResponses, LimitResponses, PauseResponses, prepare_limit};
use prepared_response::PreparedResponse;
use sluicegate_base::escape;
use sluicegate_http::request::source::BodyTexts;
use sluicegate_limit::Decision;
use sluicegate_model::{Config, LimitId, LocationId, OnRejectPatch, UpstreamId};
use template::RetryTimes;

pub use cause::{
    CLIENT_GONE, Fault, LimitCause, LimitRejection, PANICKED, PLAIN_HTTP_ON_TLS, PauseRejection, Rejection,
};
pub(crate) use location_responses::rate_texts;
pub(crate) use prepared_response::rate_text;
pub use template::CompiledTemplate;

/// The facts of a request that a response may contain; empty if unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct RejectContext<'a> {
    /// ASCII letters, digits and `-_.:+/=@`.
    pub request_id: &'a [u8],
    /// The client's address, unmasked.
    pub client_ip: Option<IpAddr>,
    /// The account of the caller.
    pub account: &'a str,
    /// The tier of the caller.
    pub tier: &'a str,
    /// The canonical host.
    pub host: &'a str,
    /// The normalised path without the query.
    pub uri: &'a str,
    /// The same as bytes, also where `uri` is the path as sent because it is not UTF-8.
    pub path: &'a [u8],
    /// The target as sent.
    pub request_uri: &'a str,
    /// Its class in the shares of the limit that rejects it.
    pub class: &'a str,
    /// The scheme: `http` or `https`.
    pub scheme: &'a str,
    /// The name of the location.
    pub location: &'a str,
    /// The name of the upstream that responds or would respond.
    pub upstream: &'a str,
    /// The further columns of its API key.
    pub key_columns: &'a [(Arc<str>, Box<str>)],
    /// The values of its body; `None` = it was not read for that.
    pub body: Option<&'a BodyTexts>,
}

/// The rejecters of one configuration.
pub struct Rejecters {
    /// Locations with the same limits and no `on_reject` share one.
    locations: Vec<Arc<Rejecter>>,
    default_rejecter: Rejecter,
}

/// Renders the rejections and faults of one location.
pub struct Rejecter {
    limits: Box<[LimitResponses]>,
    fault_responses: Arc<FaultResponses>,
    pub(crate) rate_limit_fields: RateLimitFields,
    pub(crate) dry_runs: DryRuns,
    /// `None` if no upstream may push back.
    pauses: Option<PauseResponses>,
    /// Responses to faults contain the target or the host of the request.
    pub uses_target: bool,
}

/// The response to a frequent rejection, with its head kept.
pub struct UsualResponse<'a> {
    response: &'a PreparedResponse,
    head: &'a Parts,
    retry: RetryTimes,
}

/// The substitute for a rejection by a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DegradedTo {
    /// The response in the configuration, which [`Rejecter::render_rejection`] renders.
    Canned,
    /// Index in [`Config::upstreams`].
    Upstream(UpstreamId),
}

const DEGRADED: HeaderName = HeaderName::from_static("sluicegate-degraded");

// === impl RejectContext ===

impl<'a> RejectContext<'a> {
    /// The value of a further column; empty if the request has no such value.
    fn key_column(&self, name: &str) -> &'a str {
        let column = self.key_columns.iter().find(|(known, _)| **known == *name);
        column.map_or("", |(_, value)| value)
    }
}

// === impl Rejecters ===

impl Rejecters {
    /// Prepares the responses of every location.
    pub fn new(config: &Config) -> Rejecters {
        // A request that no location serves is never degraded: admitted, it would be a 404.
        let not_degraded = OnRejectPatch { degrade: Some(None), ..OnRejectPatch::default() };
        let default_rejecter = Rejecter::new(config, &[], &not_degraded, None);
        let mut shared: HashMap<Vec<LimitId>, Arc<Rejecter>> = HashMap::new();
        let judging = |location: &sluicegate_model::LocationConfig| -> Vec<LimitId> {
            let asked = location.auth.iter().flat_map(|auth| &auth.limits);
            location.limits.iter().chain(asked).copied().collect()
        };
        let build = |location: &sluicegate_model::LocationConfig| {
            let patch = &location.on_reject;
            let shares_faults = patch.status.is_none()
                && patch.body.is_none()
                && patch.headers.is_none()
                && patch.retry_jitter.is_none();
            let fault_responses = shares_faults.then(|| default_rejecter.fault_responses.clone());
            Arc::new(Rejecter::new(config, &judging(location), patch, fault_responses))
        };
        let locations = config.locations.iter().map(|location| match location.on_reject.is_empty() {
            true => shared.entry(judging(location)).or_insert_with(|| build(location)).clone(),
            false => build(location),
        });
        let mut locations: Vec<Arc<Rejecter>> = locations.collect();
        // That of calls, which may name any limit.
        locations.extend(config.service.as_ref().map(|_| {
            let fault_responses = Some(default_rejecter.fault_responses.clone());
            Arc::new(Rejecter::new(config, &config.declared_limits(), &not_degraded, fault_responses))
        }));
        Rejecters { locations, default_rejecter }
    }

    /// The rejecter of a location, by its index in [`Config::locations`]; `None` = the request has none.
    #[inline]
    pub fn for_location(&self, location: Option<LocationId>) -> &Rejecter {
        location.and_then(|index| self.locations.get(index.0)).map_or(&self.default_rejecter, |own| own)
    }
}

// === impl Rejecter ===

impl Rejecter {
    fn new(
        config: &Config,
        location_limits: &[LimitId],
        patch: &OnRejectPatch,
        fault_responses: Option<Arc<FaultResponses>>,
    ) -> Rejecter {
        let mut known = HashSet::new();
        let all = config.server.limits.iter().chain(location_limits);
        let chain: Vec<LimitId> = all.copied().filter(|limit| known.insert(*limit)).collect();
        let layered = |limit: LimitId| config.on_reject_at(&config.limits[limit], Some(patch));
        let limits = chain.iter().flat_map(|&limit| prepare_limit(config, limit, &layered(limit))).collect();
        let fault_responses = fault_responses.unwrap_or_else(|| {
            let on_reject = config.on_reject.merge_patch(patch);
            Arc::new(FaultResponses::new(&on_reject, config.bans.as_ref()))
        });
        Rejecter {
            limits,
            uses_target: fault_responses.faults.iter().any(PreparedResponse::uses_target),
            fault_responses,
            rate_limit_fields: RateLimitFields::new(config, &chain, |limit| layered(limit).ratelimit_headers),
            dry_runs: DryRuns::new(config, &chain),
            pauses: PauseResponses::new(config, patch),
        }
    }

    /// The substitute for a rejection, or `None`. gRPC callers cannot read a response from the configuration, so they
    /// get the rejection.
    pub fn degraded_to(&self, limit_rejection: &LimitRejection, grpc: bool) -> Option<DegradedTo> {
        let degraded_to = self.limit_responses(limit_rejection)?.degraded_to;
        degraded_to.filter(|degraded_to| !(grpc && *degraded_to == DegradedTo::Canned))
    }

    /// Marks a response that is sent instead of the rejection by a limit.
    pub fn mark_degraded(&self, limit: LimitId, headers: &mut HeaderMap) {
        if let Some(responses) = self.limits.iter().find(|responses| responses.limit == limit) {
            headers.insert(DEGRADED, responses.degraded_value.clone());
        }
    }

    /// The whole response, except the fields about limits; see [`RateLimitFields::write_fields`].
    pub fn render_rejection(
        &self,
        rejection: &Rejection,
        context: &RejectContext<'_>,
        grpc: bool,
    ) -> Response<Bytes> {
        let faults = &self.fault_responses.faults;
        if let (Rejection::Paused(pause), Some(pauses)) = (rejection, &self.pauses) {
            return pauses.render_response(pause, context, grpc);
        }
        let (response, retry_after_ns) = match rejection {
            Rejection::Limit(limit_rejection) => match self.limit_responses(limit_rejection) {
                Some(responses) => {
                    (responses.response_for(limit_rejection.cause), limit_rejection.retry_after_ns)
                }
                // A rejection by a limit that is not in this chain is a bug of the gateway, so it is an internal fault.
                None => (&faults[Fault::Internal.index()], None),
            },
            Rejection::Fault(fault) => (&faults[fault.index()], None),
            // A pause of a gateway in which no upstream pushes back is a bug, so it is an internal fault.
            Rejection::Paused(_) => (&faults[Fault::Internal.index()], None),
            Rejection::Banned { by_operator, left_ns } => {
                let FaultResponses { banned, banned_by_operator, .. } = &*self.fault_responses;
                (if *by_operator { banned_by_operator } else { banned }, Some(*left_ns))
            }
            Rejection::MethodNotAllowed { .. } => (&faults[Fault::BadMethod.index()], None),
        };
        let is_turn = matches!(rejection, Rejection::Limit(limit_rejection) if limit_rejection.is_turn);
        let mut response = response.render_response(context, (retry_after_ns, is_turn), grpc);
        if let Rejection::MethodNotAllowed { allow } = rejection {
            response.headers_mut().insert(ALLOW, allow.clone());
        }
        if let Rejection::Limit(limit_rejection) = rejection
            && self.degraded_to(limit_rejection, grpc) == Some(DegradedTo::Canned)
        {
            self.mark_degraded(limit_rejection.limit, response.headers_mut());
        }
        response
    }

    /// The kept response to the most frequent rejection: `decision` is the only one of the chain, it rejects, and it
    /// leaves no unit until the retry. `None` for any other.
    #[inline]
    pub fn find_usual(
        &self,
        limit_rejection: &LimitRejection,
        decision: &Decision,
        request_id: &[u8],
    ) -> Option<UsualResponse<'_>> {
        let responses = self.limit_responses(limit_rejection)?;
        if !matches!(limit_rejection.cause, LimitCause::Rate | LimitCause::Queue)
            || responses.degraded_to.is_some()
            || !self.rate_limit_fields.is_fixed
            || responses.rejected.extra_headers.has_variables
        {
            return None;
        }
        let response = &responses.rejected;
        let retry = response.retry_times(request_id, limit_rejection.retry_after_ns, limit_rejection.is_turn);
        let seconds = retry.seconds?;
        if decision.remaining > 0 || decision.window_ns().map(limit_fields::whole_seconds) != Some(seconds) {
            return None;
        }
        let kept = responses.usual_heads.get(usize::try_from(seconds).ok()?.checked_sub(1)?)?;
        let head = kept.get_or_init(|| {
            let mut head = response.render_head(&RejectContext::default(), retry);
            let rejecting = (limit_rejection.limit, limit_rejection.rate, *decision);
            self.rate_limit_fields.write_fields([rejecting], &mut head.headers);
            Box::new(head)
        });
        Some(UsualResponse { response, head, retry })
    }

    fn limit_responses(&self, limit_rejection: &LimitRejection) -> Option<&LimitResponses> {
        let matches = |responses: &&LimitResponses| {
            responses.limit == limit_rejection.limit && responses.rate == limit_rejection.rate
        };
        self.limits.iter().find(matches)
    }
}

// === impl UsualResponse ===

impl UsualResponse<'_> {
    /// The whole response. `context` is called only if it contains more of the request than its id.
    #[inline]
    pub fn build_response<'c>(
        self,
        request_id: &'c [u8],
        context: impl FnOnce() -> RejectContext<'c>,
    ) -> Response<Bytes> {
        let context = match self.response.uses_context {
            true => context(),
            false => RejectContext { request_id, ..RejectContext::default() },
        };
        self.response.build_response(self.head.clone(), &context, self.retry)
    }
}

/// A name as the string of a structured field.
pub(crate) fn quote_name(name: &str) -> Vec<u8> {
    let mut out = vec![b'"'];
    escape::escape_structured_string(&mut out, name);
    out.push(b'"');
    out
}

#[cfg(test)]
mod tests;
