//! Waits in the queues of the limits. The body is not read meanwhile; dropping the future leaves the queue.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::decisions::decision_kind;
use super::rejection_response;
use crate::admission::chain::{ChainPermit, ChainRejection};
use crate::base::clock::Now;
use crate::config::LimitId;
use crate::limit::{Decision, LimitOutcome};
use crate::net::deadline::GatewayDeadline;
use crate::proxy::reject::{Fault, LimitCause, LimitRejection, Rejection};
use crate::proxy::request_state::RequestState;

/// Whether the request must wait before it can continue: for its turn in a queue, or for slots from the store.
#[inline]
pub fn must_wait(state: &RequestState) -> bool {
    let waits = |permit: &ChainPermit| permit.must_wait() || permit.must_ask_for_slots();
    state.chain_permit.as_ref().is_some_and(waits)
}

/// Waits for the request's turn in every queue, then takes its concurrency slots.
///
/// # Errors
/// The location's timeout passed, another request displaced it from the queue, a concurrency limit rejected it, or no
/// location serves it. If the client hangs up, the future never ends.
pub async fn wait_and_take_slots(state: &mut RequestState) -> Result<(), Rejection> {
    let mut now = state.started;
    if state.chain_permit.as_ref().is_some_and(ChainPermit::must_wait) {
        let waited = wait_in_queue(state).await;
        now = Now::read_clock();
        state.wait_ns = now.ns_since(state.started);
        if let Some(limit) = state.limit {
            state.worker.gateway.metrics.observe_wait(state.worker.id, limit, state.wait_ns);
        }
        if let Err(rejection) = waited {
            state.chain_permit = None;
            return Err(rejection);
        }
    }
    finish_admission(state, now)?;
    if let (Some(permit), Some(session)) = (&mut state.chain_permit, &state.worker.session)
        && permit.must_ask_for_slots()
    {
        let taken = permit.take_shared_slots(session, &mut state.used_fallback).await;
        taken.map_err(|rejection| rejection_response::translate_rejection(&rejection))?;
    }
    count_slots(state);
    Ok(())
}

/// As [`wait_and_take_slots`], for a request that need not wait.
///
/// # Errors
/// A concurrency limit rejected the request, or no location serves it.
pub fn take_slots_now(state: &mut RequestState) -> Result<(), Rejection> {
    finish_admission(state, state.started)?;
    count_slots(state);
    Ok(())
}

/// The last step before forwarding: rejects a request that no location serves, and takes the concurrency slots.
#[inline]
fn finish_admission(state: &mut RequestState, now: Now) -> Result<(), Rejection> {
    if let Some(rejection) = state.no_location.take() {
        // The charges stay: probing for locations costs as much as using one, its turn in a queue included.
        if let Some(permit) = &mut state.chain_permit {
            permit.keep_charges();
        }
        return Err(*rejection);
    }
    let Some(permit) = &mut state.chain_permit else { return Ok(()) };
    permit.take_slots(now).map_err(|rejection| rejection_response::translate_rejection(&rejection))
}

/// Counts the decisions of concurrency limits.
#[inline]
fn count_slots(state: &mut RequestState) {
    let Some(permit) = &state.chain_permit else { return };
    let gateway = &state.worker.gateway;
    for judged in permit.slot_decisions() {
        let limit = gateway.chain_for(state.route).chain.limits()[usize::from(judged.limit_index)].id;
        gateway.metrics.count_decision(state.worker.id, limit, decision_kind(&judged));
        if judged.dry_run {
            state.decisions.push(judged);
        }
    }
}

/// Changes the limit's decision to a rejection that came after the judgement, for the fields of the response.
fn mark_rejected(state: &mut RequestState, rejection: &ChainRejection) {
    let Some(limit) = &rejection.limit else { return };
    let limits = state.worker.gateway.clone();
    let limits = limits.chain_for(state.route).chain.limits();
    let retry_ns = rejection.retry_after_ns.unwrap_or_default();
    for judged in &mut state.decisions {
        // Compare indices: a local share that judges instead of the store is another object than the limit.
        if limits[usize::from(judged.limit_index)].id == limit.id
            && usize::from(judged.rate) == rejection.rate
        {
            let (reset_ns, retry_after_ns) = (retry_ns, retry_ns);
            let wait_ns = judged.decision.wait_ns;
            let outcome = LimitOutcome::Reject;
            judged.decision = Decision { outcome, remaining: 0, reset_ns, retry_after_ns, wait_ns };
        }
    }
}

async fn wait_in_queue(state: &mut RequestState) -> Result<(), Rejection> {
    let (connection, watch) = (state.connection.clone(), state.watch.clone());
    let Some(permit) = &mut state.chain_permit else { return Ok(()) };
    let queue_limit = permit.queued_limit().map(|limit| limit.id);
    let wait_end = {
        let mut turn = pin!(permit.wait_turn());
        let mut hangup = pin!(connection.socket.wait_for_hangup());
        std::future::poll_fn(|cx| {
            if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
                return Poll::Ready(turn.err().map(WaitEnd::Rejected));
            }
            if watch.fired_deadline() == Some(GatewayDeadline::Request) {
                return Poll::Ready(Some(WaitEnd::TimedOut));
            }
            hangup.as_mut().poll(cx).map(|()| Some(WaitEnd::HungUp))
        })
        .await
    };
    match wait_end {
        None => Ok(()),
        Some(WaitEnd::Rejected(rejection)) => {
            mark_rejected(state, &rejection);
            Err(rejection_response::translate_rejection(&rejection))
        }
        Some(WaitEnd::TimedOut) => Err(reject_queued_too_long(queue_limit)),
        Some(WaitEnd::HungUp) => {
            // Leave the queue at once; the connection ends when hyper sees the close as well.
            state.chain_permit = None;
            watch.abort_now();
            std::future::pending().await
        }
    }
}

/// The rejection after the location's timeout passed in a queue.
fn reject_queued_too_long(limit: Option<LimitId>) -> Rejection {
    match limit {
        Some(limit) => Rejection::Limit(LimitRejection {
            limit,
            rate: 0,
            cause: LimitCause::QueuedTooLong,
            retry_after_ns: None,
        }),
        None => Fault::LocationTimeout.into(),
    }
}

/// Why a request leaves its queue before its turn.
enum WaitEnd {
    /// The queue rejected it.
    Rejected(ChainRejection),
    TimedOut,
    HungUp,
}
