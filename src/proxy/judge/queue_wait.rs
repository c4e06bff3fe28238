//! Standing in the queues: the body is not read meanwhile, and leaving is dropping the future.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::decisions::decision_kind;
use super::rejection_response;
use crate::admission::chain::{ChainPermit, ChainRejection};
use crate::base::clock::Now;
use crate::limit::{Decision, LimitOutcome};
use crate::net::deadline::GatewayDeadline;
use crate::proxy::reject::{Fault, LimitCause, LimitRejection as Refused, Rejection};
use crate::proxy::request_state::RequestState;

/// Whether the request has to wait for something before it can go on: its turn in a queue, or the word of a store.
#[inline]
pub fn must_wait(visit: &RequestState) -> bool {
    let waits = |passage: &ChainPermit| passage.must_wait() || passage.must_ask_for_slots();
    visit.charged_chain.as_ref().is_some_and(waits)
}

/// Waits for the request's turn in every queue, then takes its concurrency slots.
///
/// # Errors
/// The location's timeout, a queue that gave its place to another, a concurrency limit, that no location takes it,
/// or — as a rejection that nobody will read — a client that hung up.
pub async fn wait_and_take_slots(visit: &mut RequestState) -> Result<(), Rejection> {
    let mut now = visit.started;
    if visit.charged_chain.as_ref().is_some_and(ChainPermit::must_wait) {
        let waited = wait_in_queue(visit).await;
        now = Now::read_clock();
        visit.wait_ns = now.ns_since(visit.started);
        if let Some(limit) = visit.limit {
            visit.worker.gateway.metrics.observe_wait(visit.worker.id, limit, visit.wait_ns);
        }
        if let Err(rejection) = waited {
            visit.charged_chain = None;
            return Err(rejection);
        }
    }
    take_local_slots(visit, now)?;
    if let (Some(passage), Some(session)) = (&mut visit.charged_chain, &visit.worker.session)
        && passage.must_ask_for_slots()
    {
        let entered = passage.take_shared_slots(session, &mut visit.used_fallback).await;
        entered.map_err(|refusal| rejection_response::translate_rejection(&refusal))?;
    }
    count_slots(visit);
    Ok(())
}

/// As [`wait_and_enter`], for a request that need not wait.
///
/// # Errors
/// A concurrency limit, or that no location takes the request.
pub fn take_slots_now(visit: &mut RequestState) -> Result<(), Rejection> {
    take_local_slots(visit, visit.started)?;
    count_slots(visit);
    Ok(())
}

#[inline]
fn take_local_slots(visit: &mut RequestState, now: Now) -> Result<(), Rejection> {
    if let Some(rejection) = visit.no_location.take() {
        // Probing for locations costs as much as using one, its turn included: what was charged stays.
        if let Some(passage) = &mut visit.charged_chain {
            passage.mark_forwarded();
        }
        return Err(*rejection);
    }
    let Some(passage) = &mut visit.charged_chain else { return Ok(()) };
    passage.take_slots(now).map_err(|refusal| rejection_response::translate_rejection(&refusal))
}

/// Counts what concurrency limits said.
#[inline]
fn count_slots(visit: &mut RequestState) {
    let Some(passage) = &visit.charged_chain else { return };
    let gateway = &visit.worker.gateway;
    for judged in passage.slot_decisions() {
        let limit = gateway.chain_for(visit.route).chain.limits()[usize::from(judged.limit_index)].index;
        gateway.metrics.count_decision(visit.worker.id, limit, decision_kind(&judged));
        if judged.dry_run {
            visit.decisions.push(judged);
        }
    }
}

/// Makes the fields of the answer tell a refusal that came after the judgement.
fn mark_rejected(visit: &mut RequestState, refusal: &ChainRejection) {
    let Some(limit) = &refusal.limit else { return };
    let limits = visit.worker.gateway.clone();
    let limits = limits.chain_for(visit.route).chain.limits();
    let retry_ns = refusal.retry_after_ns.unwrap_or_default();
    for judged in &mut visit.decisions {
        // By its index: a share that judges in the store's place is not the limit itself.
        if limits[usize::from(judged.limit_index)].index == limit.index
            && usize::from(judged.rate) == refusal.rate
        {
            let (reset_ns, retry_after_ns) = (retry_ns, retry_ns);
            let wait_ns = judged.decision.wait_ns;
            let outcome = LimitOutcome::Reject;
            judged.decision = Decision { outcome, remaining: 0, reset_ns, retry_after_ns, wait_ns };
        }
    }
}

async fn wait_in_queue(visit: &mut RequestState) -> Result<(), Rejection> {
    let (connection, watch) = (visit.connection.clone(), visit.watch.clone());
    let Some(passage) = &mut visit.charged_chain else { return Ok(()) };
    let queued_on = passage.queued_limit().map(|limit| limit.index);
    let left = {
        let mut turn = pin!(passage.wait_turn());
        let mut hung_up = pin!(connection.socket.wait_for_hangup());
        std::future::poll_fn(|cx| {
            if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
                return Poll::Ready(turn.err().map(WaitEnd::Rejected));
            }
            if watch.fired_deadline() == Some(GatewayDeadline::Request) {
                return Poll::Ready(Some(WaitEnd::TimedOut));
            }
            hung_up.as_mut().poll(cx).map(|()| Some(WaitEnd::HungUp))
        })
        .await
    };
    match left {
        None => Ok(()),
        Some(WaitEnd::Rejected(refusal)) => {
            mark_rejected(visit, &refusal);
            Err(rejection_response::translate_rejection(&refusal))
        }
        Some(WaitEnd::TimedOut) => Err(reject_queued_too_long(queued_on)),
        Some(WaitEnd::HungUp) => {
            // Its place goes to the next one now; the connection ends once hyper has seen the close, too.
            visit.charged_chain = None;
            watch.abort_now();
            std::future::pending().await
        }
    }
}

/// The refusal of a request whose location's timeout ends in a queue.
fn reject_queued_too_long(limit: Option<usize>) -> Rejection {
    match limit {
        Some(limit) => Rejection::Limit(Refused {
            limit,
            rate: 0,
            cause: LimitCause::QueuedTooLong,
            retry_after_ns: None,
        }),
        None => Fault::LocationTimeout.into(),
    }
}

/// Why a request left its queue before its turn.
enum WaitEnd {
    /// By the queue itself.
    Rejected(ChainRejection),
    TimedOut,
    HungUp,
}
