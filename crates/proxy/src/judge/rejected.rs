//! Concludes a rejection: it is counted, may be a strike towards a ban, and is rendered or degraded.

use bytes::Bytes;
use http::Response;

use crate::judge::judged_chain::chain_of;
use crate::judge::limit_report;
use crate::judge::rejection_response::{RequestTexts, render_rejection};
use crate::judge::request_state::strike;
use crate::judge::request_state::{RequestState, Verdict};
use crate::reject::{DegradedTo, Fault, LimitCause, LimitRejection, Rejection};
use sluicegate_admission::chain;
use sluicegate_admission::chain::{ChainCause, RateDecision};
use sluicegate_limit::LimitOutcome;
use sluicegate_model::LocationId;
use sluicegate_observe::metrics::DecisionKind;

/// The end of a rejected request.
pub enum Conclusion {
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
            cause,
            retry_after_ns: rejection.retry_after_ns,
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
            gateway.rejecters.for_location(state.route).degraded_to(limit_rejection, state.is_grpc);
        is_degraded = degraded_to.is_some();
        record_rejection(state, limit_rejection, is_degraded);
        if let (Some(DegradedTo::Upstream(upstream)), Some(route)) = (degraded_to, state.route) {
            state.degraded = Some(upstream);
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
fn record_rejection(state: &mut RequestState, limit_rejection: &LimitRejection, is_degraded: bool) {
    let (kind, verdict) = match limit_rejection.cause {
        _ if is_degraded => (DecisionKind::Degrade, Verdict::Degrade),
        LimitCause::MissingKey => (DecisionKind::MissingKey, Verdict::MissingKey),
        _ => (DecisionKind::Reject, Verdict::Reject),
    };
    state.verdict = verdict;
    state.limit = Some(limit_rejection.limit);
    state.retry_after_ns = limit_rejection.exact_retry_ns();
    let (worker, call_chain) = (state.worker.clone(), state.call_chain.clone());
    worker.gateway.metrics.count_decision(worker.id, limit_rejection.limit, kind);
    let limits = chain_of(&worker, call_chain.as_ref(), state.route).chain.limits();
    let is_own = |judged: &RateDecision| limits[usize::from(judged.limit_index)].id == limit_rejection.limit;
    if state.decisions.iter().all(is_own) {
        return;
    }
    let is_rejection =
        |judged: &RateDecision| judged.decision.outcome == LimitOutcome::Reject && !judged.dry_run;
    let others = chain::strictest_by_limit(&state.decisions)
        .filter(is_rejection)
        .map(|judged| limits[usize::from(judged.limit_index)].id);
    let kind = if is_degraded { DecisionKind::Degrade } else { DecisionKind::Reject };
    for limit in others.filter(|limit| *limit != limit_rejection.limit) {
        worker.gateway.metrics.count_decision(worker.id, limit, kind);
        state.count_refused(limit);
    }
}
