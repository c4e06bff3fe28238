//! Judges a call: waits as far as its deadline allows, and answers it.

use std::time::Duration;

use http::StatusCode;

use super::messages::{RateLimitRequest, RateLimitResponse};
use super::plan::{CallPlan, HitsUse, PlannedPart};
use super::status::JudgedPart;
use super::wire::RlsFault;
use super::{CallRefusal, RlsCall, count_call};
use crate::gateway::Gateway;
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::{RequestState, Verdict};
use crate::judge::{self, Admitted, LookedAt, MergedPlaces, Received, Rejected, limit_report};
use crate::reject::{Fault, Rejection};
use sluicegate_admission::chain::Decisions;
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_http::net::deadline::ticks_for;
use sluicegate_observe::metrics::CallResult;

/// The moment until which the caller waits for its answer; `None` = it does not say.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallDeadline(Option<Now>);

// === impl CallDeadline ===

impl CallDeadline {
    pub(super) fn new(started: Now, timeout: Option<Duration>) -> CallDeadline {
        CallDeadline(timeout.map(|timeout| Now(started.0.saturating_add(duration_ns(timeout)))))
    }

    /// Limits also the reading of the body.
    pub(super) fn watch_request(self, state: &RequestState) {
        if let Some(due) = self.0 {
            state.watch.set_request_deadline(ticks_for(Duration::from_nanos(due.ns_since(state.started))));
        }
    }

    fn has_passed(self, now: Now) -> bool {
        self.0.is_some_and(|due| due <= now)
    }

    /// The longest wait in queues, ns. A tenth of the time is left for the way back. A caller that names no deadline
    /// does not wait.
    fn max_wait_ns(self, now: Now) -> u64 {
        self.0.map_or(0, |due| due.ns_since(now) / 10 * 9)
    }
}

/// Judges the call and makes its answer.
pub(super) async fn run_call(
    request: &RateLimitRequest,
    deadline: CallDeadline,
    inbound: Box<InboundRequest>,
    mut state: Box<RequestState>,
) -> (Box<RequestState>, Result<RateLimitResponse, CallRefusal>) {
    let worker = state.worker.clone();
    if deadline.has_passed(state.judged_at) {
        return (state, Err(late()));
    }
    let bad = |fault| CallRefusal::bad(RlsCall::ShouldRateLimit, fault);
    let planned = CallPlan::new(request, &worker.gateway).and_then(|plan| {
        PlannedParts::of_plan(&plan, &worker.gateway, deadline.max_wait_ns(state.judged_at))
    });
    let parts = match planned {
        Ok(parts) => parts,
        Err(fault) => return (state, Err(bad(fault))),
    };
    let mut answer = RateLimitResponse::admitting(request.descriptors.len());
    // A call that is refused by a mere look takes nothing either.
    let is_refused = match add_looks(&mut answer, &mut state, parts.peeked.as_deref().into_iter()).await {
        Ok(is_refused) => is_refused,
        Err(refusal) => return (state, Err(refusal)),
    };
    if is_refused {
        let others = parts.charged.as_deref().into_iter().chain(parts.given.as_deref());
        let refused = add_looks(&mut answer, &mut state, others).await;
        count_call(&state, CallResult::RlsRejected);
        return (state, refused.map(|_| answer));
    }
    if let Some(part) = parts.charged.as_deref() {
        let (judged, merged) = Received { inbound, state }.judge_descriptors(&part.terms);
        let is_admitted;
        (state, is_admitted) = unpack_outcome(judged.conclude_call().await);
        limit_report::log_decisions(&mut state);
        if let Err(refusal) = conclude(&mut state, is_admitted, deadline) {
            return (state, Err(refusal));
        }
        let (decisions, refused) =
            (std::mem::take(&mut state.judgement.decisions), (!is_admitted).then_some(state.judgement.limit));
        answer.add_judged(&JudgedPart { part, decisions: &decisions, merged: &merged, refused });
        answer.add_headers(&state, &part.terms.chain, &decisions);
        if refused.is_some() {
            let refused = add_looks(&mut answer, &mut state, parts.given.as_deref().into_iter()).await;
            count_verdict(&state);
            return (state, refused.map(|_| answer));
        }
    }
    if let Some(part) = parts.given.as_deref()
        && let Err(rejection) = judge::give_back_hits(&worker, state.judged_at, &part.terms)
    {
        return (state, Err(refusal_of(rejection)));
    }
    let given = add_looks(&mut answer, &mut state, parts.given.as_deref().into_iter()).await.map(|_| answer);
    if given.is_ok() {
        count_verdict(&state);
    }
    (state, given)
}

/// The state of a judged call, and whether it is admitted; an answer of `degrade` is no admission.
fn unpack_outcome(outcome: Result<Admitted, Rejected>) -> (Box<RequestState>, bool) {
    match outcome {
        Ok(admitted) => {
            let (_, state, _) = admitted.into_parts();
            let is_admitted = state.judgement.degraded.is_none();
            (state, is_admitted)
        }
        Err(rejected) => (rejected.state, false),
    }
}

/// The descriptors of a call by their use of hits.
/// They are boxed, because the future of the call holds all three.
struct PlannedParts<'c> {
    peeked: Option<Box<PlannedPart<'c>>>,
    charged: Option<Box<PlannedPart<'c>>>,
    given: Option<Box<PlannedPart<'c>>>,
}

impl<'c> PlannedParts<'c> {
    fn of_plan(
        plan: &CallPlan<'c>,
        gateway: &Gateway,
        max_wait_ns: u64,
    ) -> Result<PlannedParts<'c>, RlsFault> {
        let select = |selects: fn(HitsUse) -> bool| -> Result<Option<Box<PlannedPart<'c>>>, RlsFault> {
            Ok(plan.select(gateway, max_wait_ns, selects)?.map(Box::new))
        };
        let parts = PlannedParts {
            peeked: select(|hits| hits == HitsUse::Peek)?,
            charged: select(|hits| matches!(hits, HitsUse::Charge(_)))?,
            given: select(|hits| matches!(hits, HitsUse::GiveBack(_)))?,
        };
        let given = parts.given.iter().flat_map(|part| part.terms.chain.chain.limits());
        match { given }.find(|limit| !limit.takes_back()) {
            None => Ok(parts),
            Some(limit) => {
                let name = &limit.name;
                let message = format!("is_negative_hits: the limit {name} has a queue or counts in Redis");
                Err(RlsFault::unimplemented(message))
            }
        }
    }
}

/// Adds the statuses of descriptors that are only looked at; true if they are refused.
async fn add_looks<'p, 'c: 'p>(
    answer: &mut RateLimitResponse,
    state: &mut RequestState,
    parts: impl Iterator<Item = &'p PlannedPart<'c>>,
) -> Result<bool, CallRefusal> {
    let mut is_refused = false;
    for part in parts {
        // Boxed, because most calls look at nothing, and the future of each is copied.
        let looked = match Box::pin(judge::look_at_descriptors(state, &part.terms)).await {
            Ok(looked) => looked,
            Err(Rejection::Banned { left_ns, .. }) => {
                (state.outcome.verdict, state.judgement.retry_after_ns) = (Verdict::Ban, Some(left_ns));
                let merged = MergedPlaces::new();
                LookedAt { decisions: Decisions::new(), merged, refused: Some(None) }
            }
            Err(rejection) => return Err(refusal_of(rejection)),
        };
        let LookedAt { decisions, merged, refused } = looked;
        if let Some(limit) = refused
            && state.outcome.verdict == Verdict::Admit
        {
            (state.outcome.verdict, state.judgement.limit) = (Verdict::Reject, limit);
            let retries = decisions.iter().filter(|judged| !judged.dry_run);
            let retry_ns = retries.map(|judged| judged.decision.retry_after_ns).max();
            state.judgement.retry_after_ns = retry_ns.filter(|ns| *ns < u64::MAX);
        }
        // A part that gives back is never refused.
        let refused = refused.filter(|_| !part.gives_back);
        is_refused |= refused.is_some();
        answer.add_judged(&JudgedPart { part, decisions: &decisions, merged: &merged, refused });
        answer.add_headers(state, &part.terms.chain, &decisions);
    }
    Ok(is_refused)
}

/// The end of a call that was not judged by limits alone.
fn refusal_of(rejection: Rejection) -> CallRefusal {
    let fault = rejection.counted_fault().unwrap_or(Fault::Internal);
    let fault_answer = RlsFault::of_gateway(fault);
    CallRefusal { fault: fault_answer, result: CallResult::RlsFault, counted: Some(fault) }
}

/// Keeps the charges of an admitted call.
///
/// # Errors
/// Its caller has left meanwhile, or something broke: there is no decision.
fn conclude(state: &mut RequestState, is_admitted: bool, deadline: CallDeadline) -> Result<(), CallRefusal> {
    match (is_admitted, state.outcome.verdict) {
        // A fault has no answer of the service, and is counted where it was found.
        (false, Verdict::Fault(fault)) => {
            let (fault, result) = (RlsFault::of_gateway(fault), CallResult::RlsFault);
            Err(CallRefusal { fault, result, counted: None })
        }
        (false, _) => Ok(()),
        (true, _) => {
            state.response.reading = None;
            // Dropping the permit gives everything back.
            let permit = state.permits.chain.take();
            if deadline.has_passed(Now::read_clock()) {
                return Err(late());
            }
            // The charges of an admitted call stay as they were taken: no response corrects them.
            if let Some(mut permit) = permit {
                permit.keep_charges();
                permit.settle_reserved(Now::read_clock());
            }
            Ok(())
        }
    }
}

fn late() -> CallRefusal {
    let message = "the decision took longer than grpc-timeout";
    let fault = RlsFault::new("4", message, StatusCode::GATEWAY_TIMEOUT);
    CallRefusal { fault, result: CallResult::RlsLate, counted: Some(Fault::LocationTimeout) }
}

fn count_verdict(state: &RequestState) {
    let result = match state.outcome.verdict {
        Verdict::Admit => CallResult::RlsAdmitted,
        Verdict::Wait => CallResult::RlsWaited,
        Verdict::Ban => CallResult::RlsBanned,
        _ => CallResult::RlsRejected,
    };
    count_call(state, result);
}
