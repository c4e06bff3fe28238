//! Waits in the queues of the limits. The body is not read meanwhile; dropping the future leaves the queue.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::decisions::count_slots;
use super::rejection_response;
use crate::admission::chain::{ChainRejection, Queued, TurnTaken};
use crate::base::clock::Now;
use crate::limit::{Decision, LimitOutcome};
use crate::net::deadline::GatewayDeadline;
use crate::proxy::reject::{LimitCause, LimitRejection, Rejection};
use crate::proxy::request_state::RequestState;

/// Whether the request must wait for its turn in a queue before it can continue.
#[inline]
pub fn must_wait(state: &RequestState) -> bool {
    state.queued.is_some()
}

/// Waits for the request's turn in every queue, then takes its concurrency slots.
///
/// # Errors
/// The location's timeout passed, another request displaced it from the queue, a concurrency limit rejected it, or no
/// location serves it. If the client hangs up, the future never ends.
pub async fn wait_and_take_slots(state: &mut RequestState) -> Result<(), Rejection> {
    let Some(queued) = state.queued.take() else { return reject_unserved(state) };
    let turn = wait_in_queue(state, *queued).await;
    let now = Now::read_clock();
    state.wait_ns = now.ns_since(state.started);
    if let Some(limit) = state.limit {
        state.worker.gateway.metrics.observe_wait(state.worker.id, limit, state.wait_ns);
    }
    let turn = turn?;
    if let Some(rejection) = state.no_location.take() {
        turn.keep_charges();
        return Err(*rejection);
    }
    let mut unanswered = Vec::new();
    let permit = turn.take_slots(now, state.worker.session.as_deref(), &mut unanswered).await;
    state.used_fallback |= unanswered.iter().any(|limit| limit.fallback.is_some());
    let permit = permit.map_err(|rejection| rejection_response::translate_rejection(&rejection))?;
    state.chain_permit = Some(permit);
    count_slots(state);
    Ok(())
}

/// Rejects a request that no location serves. Its charges stay: probing for locations costs as much as using one, its
/// turn in a queue included.
#[inline]
pub fn reject_unserved(state: &mut RequestState) -> Result<(), Rejection> {
    let Some(rejection) = state.no_location.take() else { return Ok(()) };
    if let Some(permit) = &mut state.chain_permit {
        permit.keep_charges();
    }
    Err(*rejection)
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

async fn wait_in_queue(state: &mut RequestState, queued: Queued) -> Result<TurnTaken, Rejection> {
    let (connection, watch) = (state.connection.clone(), state.watch.clone());
    let limit = queued.limit().id;
    let wait_end = {
        let mut turn = pin!(queued.wait_turn());
        let mut hangup = pin!(connection.socket.wait_for_hangup());
        std::future::poll_fn(|cx| {
            if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
                return Poll::Ready(turn.map_err(WaitEnd::Rejected));
            }
            if watch.fired_deadline() == Some(GatewayDeadline::Request) {
                return Poll::Ready(Err(WaitEnd::TimedOut));
            }
            hangup.as_mut().poll(cx).map(|()| Err(WaitEnd::HungUp))
        })
        .await
    };
    match wait_end {
        Ok(turn) => Ok(turn),
        Err(WaitEnd::Rejected(rejection)) => {
            mark_rejected(state, &rejection);
            Err(rejection_response::translate_rejection(&rejection))
        }
        Err(WaitEnd::TimedOut) => Err(Rejection::Limit(LimitRejection {
            limit,
            rate: 0,
            cause: LimitCause::QueuedTooLong,
            retry_after_ns: None,
        })),
        Err(WaitEnd::HungUp) => {
            // The request has left its queues; the connection ends when hyper sees the close as well.
            watch.abort_now();
            std::future::pending().await
        }
    }
}

/// Why a request leaves its queue before its turn.
enum WaitEnd {
    /// The queue rejected it.
    Rejected(ChainRejection),
    TimedOut,
    HungUp,
}
