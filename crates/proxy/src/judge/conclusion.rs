//! Concludes a rejection: it is counted, may be a strike towards a ban, and is rendered or degraded.

use std::borrow::Cow;

use bytes::Bytes;
use http::uri::{PathAndQuery, Uri};
use http::{HeaderMap, Response};

use crate::gateway::LimitChain;
use crate::gateway::worker::Worker;
use crate::judge::inbound::InboundRequest;
use crate::judge::limit_report::{self, write_dry_runs, write_judged};
use crate::judge::request_state::{RequestState, Verdict, chain_of, strike};
use crate::reject::{DegradedTo, Fault, LimitCause, LimitRejection, RejectContext, Rejection};
use sluicegate_admission::chain::{self, ChainCause, RateDecision};
use sluicegate_http::request::headers::hop_by_hop;
use sluicegate_http::request::location;
use sluicegate_limit::LimitOutcome;
use sluicegate_model::LocationId;
use sluicegate_observe::metrics::{BanEvent, DecisionKind};

/// The end of a rejected request.
pub enum Conclusion {
    /// The gateway responds itself.
    Respond(Response<Bytes>),
    /// The upstream in `degraded` responds instead; the request goes on as one of this location.
    Degrade(LocationId),
}

/// Counts the decisions beside the chain's rejection, which is counted once it is final, and translates it.
#[inline]
pub fn translate_counted(state: &RequestState, rejection: &chain::ChainRejection) -> Rejection {
    match rejection.late {
        true => limit_report::count_accepted(state),
        false => {
            limit_report::count_dry_run_rejections(state, rejection.limit.as_ref().map(|limit| limit.id))
        }
    }
    translate_rejection(rejection)
}

/// Translates the chain's rejection into the one that is rendered.
pub fn translate_rejection(rejection: &chain::ChainRejection) -> Rejection {
    let cause = match rejection.cause {
        ChainCause::Rate => LimitCause::Rate,
        ChainCause::Queue => LimitCause::Queue,
        ChainCause::Concurrency => LimitCause::Concurrency,
        ChainCause::TooCostly => LimitCause::TooCostly,
        ChainCause::MissingKey => LimitCause::MissingKey,
        ChainCause::WaitTooLong => LimitCause::QueuedTooLong,
        ChainCause::Overload => return Fault::TooManyWaiting.into(),
        ChainCause::Unavailable => return Fault::StateUnavailable.into(),
    };
    match &rejection.limit {
        Some(limit) => Rejection::Limit(LimitRejection {
            limit: limit.id,
            rate: rejection.rate,
            class: rejection.class,
            cause,
            retry_after_ns: rejection.retry_after_ns,
            is_turn: rejection.is_turn,
        }),
        None => Fault::TooManyWaiting.into(),
    }
}

/// Concludes a rejection that is final: only here may one by a limit be a strike.
#[inline]
pub fn conclude_rejection(
    state: &mut RequestState,
    texts: &RequestTexts<'_>,
    rejection: &Rejection,
) -> Conclusion {
    let mut is_degraded = false;
    if let Rejection::Limit(limit_rejection) = rejection {
        let worker = state.worker.clone();
        let gateway = &worker.gateway;
        let degraded_to =
            gateway.rejecters.for_location(state.route).degraded_to(limit_rejection, state.identity.is_grpc);
        // Another upstream is no way around the auth service or a missing key.
        let degraded_to = degraded_to.filter(|to| *to == DegradedTo::Canned || !state.is_unknown_caller());
        is_degraded = degraded_to.is_some();
        record_rejection(&worker, state, limit_rejection, is_degraded);
        if let (Some(DegradedTo::Upstream(upstream)), Some(route)) = (degraded_to, state.route) {
            state.judgement.degraded = Some(upstream);
            state.record_refusal(limit_rejection, None);
            // It gets the whole timeout of the location again, also after a wait in the queue.
            state.start_timeout();
            return Conclusion::Degrade(route);
        }
    }
    let response = render_rejection(state, texts, rejection);
    if let Rejection::Limit(limit_rejection) = rejection {
        if !is_degraded {
            strike::record_rejection(state, limit_rejection.cause, response.status());
        }
        state.record_refusal(limit_rejection, Some(response.status()));
    }
    Conclusion::Respond(response)
}

/// Stores and counts the rejection by a limit.
#[inline(always)]
fn record_rejection(
    worker: &Worker,
    state: &mut RequestState,
    limit_rejection: &LimitRejection,
    is_degraded: bool,
) {
    let (kind, verdict) = match limit_rejection.cause {
        _ if is_degraded => (DecisionKind::Degrade, Verdict::Degrade),
        LimitCause::MissingKey => (DecisionKind::MissingKey, Verdict::MissingKey),
        _ => (DecisionKind::Reject, Verdict::Reject),
    };
    state.outcome.verdict = verdict;
    state.judgement.limit = Some(limit_rejection.limit);
    let has_shares = worker.gateway.limits[limit_rejection.limit.0].config.shares.is_some();
    state.judgement.class = has_shares.then_some((limit_rejection.limit, limit_rejection.class));
    state.judgement.retry_after_ns = limit_rejection.exact_retry_ns();
    limit_report::mark_refused(state, limit_rejection);
    let call_chain = state.call_chain.clone();
    let LimitRejection { limit, class, .. } = *limit_rejection;
    worker.gateway.metrics.count_decision(worker.id, (limit, class), kind);
    let limits = chain_of(worker, call_chain.as_ref(), state.route).chain.limits();
    let is_own = |judged: &RateDecision| limits[usize::from(judged.limit_index)].id == limit_rejection.limit;
    if state.judgement.decisions.iter().all(is_own) {
        return;
    }
    let is_rejection =
        |judged: &RateDecision| judged.decision.outcome == LimitOutcome::Reject && !judged.dry_run;
    let others = chain::strictest_by_limit(&state.judgement.decisions)
        .filter(is_rejection)
        .map(|judged| (limits[usize::from(judged.limit_index)].id, judged.class));
    let kind = if is_degraded { DecisionKind::Degrade } else { DecisionKind::Reject };
    for (limit, class) in others.filter(|(limit, _)| *limit != limit_rejection.limit) {
        worker.gateway.metrics.count_decision(worker.id, (limit, class), kind);
        state.count_refused(limit);
    }
}

/// The texts of a request that a response may contain.
pub struct RequestTexts<'r> {
    /// Canonical.
    pub host: Cow<'r, str>,
    /// Normalised.
    pub path: Cow<'r, [u8]>,
    /// The target as judged.
    pub uri: &'r Uri,
}

impl<'r> RequestTexts<'r> {
    /// Reads the texts again, for a rejection after a wait.
    pub fn read_again(inbound: &'r InboundRequest) -> RequestTexts<'r> {
        let InboundRequest { request, authority, .. } = inbound;
        RequestTexts {
            host: location::request_host(request.version(), request.headers(), authority.as_ref())
                .unwrap_or_default(),
            path: location::normalise_path(request.uri().path()).unwrap_or_default(),
            uri: request.uri(),
        }
    }
}

/// The facts of a request that a response or a header value may contain.
pub fn response_context<'c>(state: &'c RequestState, texts: &'c RequestTexts<'_>) -> RejectContext<'c> {
    let gateway = &state.worker.gateway;
    let upstream = state.route.and_then(|route| state.upstream(gateway, route));
    RejectContext {
        request_id: state.identity.request_id.as_bytes(),
        client_ip: Some(state.identity.client.ip),
        account: state.identity.account().unwrap_or_default(),
        tier: state.tier_name(),
        class: state.class_name().unwrap_or_default(),
        key_columns: state.identity.key.as_ref().map_or(&[], |caller| &caller.columns),
        body: state.identity.body_texts.as_deref(),
        host: &texts.host,
        uri: str::from_utf8(&texts.path).unwrap_or(texts.uri.path()),
        path: &texts.path,
        request_uri: texts.uri.path_and_query().map_or("", PathAndQuery::as_str),
        scheme: state.identity.scheme.as_str(),
        location: gateway.location_name(state.route).map_or("", |name| name),
        upstream: upstream.map_or("", |upstream| &upstream.name),
    }
}

/// Renders the response, and stores and counts the fault or the ban.
pub fn render_rejection(
    state: &mut RequestState,
    texts: &RequestTexts<'_>,
    rejection: &Rejection,
) -> Response<Bytes> {
    let worker = state.worker.clone();
    let gateway = &worker.gateway;
    if let Some(fault) = rejection.counted_fault() {
        state.outcome.verdict = Verdict::Fault(fault);
        gateway.metrics.count_fault(worker.id, fault.index());
    }
    if let Rejection::Banned { by_operator, left_ns } = rejection {
        state.outcome.verdict = Verdict::Ban;
        state.outcome.error = by_operator.then_some("banned by an operator");
        state.judgement.retry_after_ns = Some(*left_ns);
        gateway.metrics.count_ban_event(worker.id, BanEvent::Rejected);
    }
    if let Rejection::Paused(pause) = rejection {
        state.outcome.verdict = Verdict::Reject;
        state.outcome.error = Some("stopped by the upstream");
        state.judgement.retry_after_ns = Some(pause.retry_after_ns);
        if let Some(pushback) = &gateway.upstreams[pause.upstream.0].pushback {
            pushback.pauses().count_refused();
        }
    }
    let context = || response_context(state, texts);
    let edit_headers = |headers: &mut HeaderMap| {
        let edits = &gateway.headers.response_edits;
        let values = if edits.has_variables { edits.render_values(&context()) } else { Default::default() };
        edits.apply(headers, &values);
    };
    let rejecter = gateway.rejecters.for_location(state.route);
    let usual = match (rejection, &state.judgement.decisions[..]) {
        (Rejection::Limit(limit_rejection), [only])
            if !state.identity.is_grpc
                && only.decision.reached == 0
                && is_decision_of(only, limit_rejection, state.chain()) =>
        {
            rejecter.find_usual(limit_rejection, &only.decision, state.identity.request_id.as_bytes())
        }
        _ => None,
    };
    let mut response = match usual {
        Some(usual) => usual.build_response(state.identity.request_id.as_bytes(), context),
        None => {
            let mut response = rejecter.render_rejection(rejection, &context(), state.identity.is_grpc);
            // No wait brings a missing key, so the fields about limits would mislead.
            let write_fields = if rejection.is_missing_key() { write_dry_runs } else { write_judged };
            write_fields(
                gateway,
                state.route,
                state.chain(),
                &state.judgement.decisions,
                response.headers_mut(),
            );
            response
        }
    };
    edit_headers(response.headers_mut());
    if rejection.closes_connection() {
        hop_by_hop::set_connection_close(response.headers_mut());
    }
    response
}

/// True if this is the decision that rejects.
#[inline]
fn is_decision_of(judged: &RateDecision, limit_rejection: &LimitRejection, limits: &LimitChain) -> bool {
    !judged.dry_run
        && limits.chain.limits()[usize::from(judged.limit_index)].id == limit_rejection.limit
        && usize::from(judged.rate) == limit_rejection.rate
}
