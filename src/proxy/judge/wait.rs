//! Standing in the queues: the body is not read meanwhile, and leaving is dropping the future.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::head::said;
use super::rejecting;
use crate::admission::chain::{Passage, Refusal};
use crate::base::clock::Now;
use crate::limit::{Decision, Outcome};
use crate::net::deadline::Due;
use crate::proxy::reject::{Fault, Refusal as Refused, Rejection, Why};
use crate::proxy::request_state::Visit;

/// Whether the request has to wait for something before it can go on: its turn in a queue, or the word of a store.
#[inline]
pub fn must_wait(visit: &Visit) -> bool {
    let waits = |passage: &Passage| passage.must_wait() || passage.must_ask_for_slots();
    visit.passage.as_ref().is_some_and(waits)
}

/// Waits for the request's turn in every queue, then takes its concurrency slots.
///
/// # Errors
/// The location's timeout, a queue that gave its place to another, a concurrency limit, that no location takes it,
/// or — as a rejection that nobody will read — a client that hung up.
pub async fn wait_and_enter(visit: &mut Visit) -> Result<(), Rejection> {
    let mut now = visit.started;
    if visit.passage.as_ref().is_some_and(Passage::must_wait) {
        let waited = wait(visit).await;
        now = Now::read();
        visit.waited_ns = now.since(visit.started);
        if let Some(limit) = visit.limit {
            visit.worker.gateway.metrics.waited(visit.worker.id, limit, visit.waited_ns);
        }
        if let Err(rejection) = waited {
            visit.passage = None;
            return Err(rejection);
        }
    }
    take_slots(visit, now)?;
    if let (Some(passage), Some(session)) = (&mut visit.passage, &visit.worker.session)
        && passage.must_ask_for_slots()
    {
        let entered = passage.enter_shared(session, &mut visit.fell_back).await;
        entered.map_err(|refusal| rejecting::rejection(&refusal))?;
    }
    note_slots(visit);
    Ok(())
}

/// As [`wait_and_enter`], for a request that need not wait.
///
/// # Errors
/// A concurrency limit, or that no location takes the request.
pub fn enter(visit: &mut Visit) -> Result<(), Rejection> {
    take_slots(visit, visit.started)?;
    note_slots(visit);
    Ok(())
}

#[inline]
fn take_slots(visit: &mut Visit, now: Now) -> Result<(), Rejection> {
    if let Some(rejection) = visit.nowhere.take() {
        // Probing for locations costs as much as using one, its turn included: what was charged stays.
        if let Some(passage) = &mut visit.passage {
            passage.forwarded();
        }
        return Err(*rejection);
    }
    let Some(passage) = &mut visit.passage else { return Ok(()) };
    passage.enter(now).map_err(|refusal| rejecting::rejection(&refusal))
}

/// Counts what concurrency limits said.
#[inline]
fn note_slots(visit: &mut Visit) {
    let Some(passage) = &visit.passage else { return };
    let gateway = &visit.worker.gateway;
    for judged in passage.entered() {
        let limit = gateway.chain(visit.route).chain.limits()[usize::from(judged.place)].index;
        gateway.metrics.decided(visit.worker.id, limit, said(&judged));
        if judged.dry_run {
            visit.decisions.push(judged);
        }
    }
}

/// Makes the fields of the answer tell a refusal that came after the judgement.
fn tell_refusal(visit: &mut Visit, refusal: &Refusal) {
    let Some(limit) = &refusal.limit else { return };
    let limits = visit.worker.gateway.clone();
    let limits = limits.chain(visit.route).chain.limits();
    let retry_ns = refusal.retry_after_ns.unwrap_or_default();
    for judged in &mut visit.decisions {
        // By its index: a share that judges in the store's place is not the limit itself.
        if limits[usize::from(judged.place)].index == limit.index && usize::from(judged.rate) == refusal.rate
        {
            let (reset_ns, retry_after_ns) = (retry_ns, retry_ns);
            let wait_ns = judged.decision.wait_ns;
            let outcome = Outcome::Reject;
            judged.decision = Decision { outcome, remaining: 0, reset_ns, retry_after_ns, wait_ns };
        }
    }
}

async fn wait(visit: &mut Visit) -> Result<(), Rejection> {
    let (connection, watch) = (visit.connection.clone(), visit.watch.clone());
    let Some(passage) = &mut visit.passage else { return Ok(()) };
    let queued_on = passage.queued_on().map(|limit| limit.index);
    let left = {
        let mut turn = pin!(passage.wait());
        let mut hung_up = pin!(connection.socket.hung_up());
        std::future::poll_fn(|cx| {
            if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
                return Poll::Ready(turn.err().map(Left::Refused));
            }
            if watch.fired() == Some(Due::Request) {
                return Poll::Ready(Some(Left::TimedOut));
            }
            hung_up.as_mut().poll(cx).map(|()| Some(Left::HungUp))
        })
        .await
    };
    match left {
        None => Ok(()),
        Some(Left::Refused(refusal)) => {
            tell_refusal(visit, &refusal);
            Err(rejecting::rejection(&refusal))
        }
        Some(Left::TimedOut) => Err(queued_too_long(queued_on)),
        Some(Left::HungUp) => {
            // Its place goes to the next one now; the connection ends once hyper has seen the close, too.
            visit.passage = None;
            watch.abort_now();
            std::future::pending().await
        }
    }
}

/// The refusal of a request whose location's timeout ends in a queue.
fn queued_too_long(limit: Option<usize>) -> Rejection {
    match limit {
        Some(limit) => {
            Rejection::Limit(Refused { limit, rate: 0, why: Why::QueuedTooLong, retry_after_ns: None })
        }
        None => Fault::LocationTimeout.into(),
    }
}

/// Why a request left its queue before its turn.
enum Left {
    /// By the queue itself.
    Refused(Refusal),
    TimedOut,
    HungUp,
}
