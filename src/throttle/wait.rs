//! Standing in the queues: the body is not read meanwhile, and leaving is dropping the future.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::judge::queued_too_long;
use super::refuse;
use crate::clock::Now;
use crate::deadline::Due;
use crate::metrics::Said;
use crate::reject::Rejection;
use crate::visit::Visit;

/// Waits for the request's turn in every queue, then takes its concurrency slots.
///
/// # Errors
/// The location's timeout, a concurrency limit, or — as a rejection that nobody will read — a client that hung up.
pub async fn wait_and_enter(visit: &mut Visit) -> Result<(), Rejection> {
    let Some(passage) = &visit.passage else { return Ok(()) };
    let mut now = visit.started;
    if passage.must_wait() {
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
    let Some(passage) = &mut visit.passage else { return Ok(()) };
    match passage.enter(now) {
        Ok(dry_runs) => {
            let limits = visit.worker.gateway.chain(visit.route);
            for &limit in &limits.concurrency {
                count(visit, limit, Said::Admit);
            }
            for place in dry_runs {
                count(visit, limits.chain.limits()[usize::from(place)].index, Said::DryRunReject);
            }
            Ok(())
        }
        Err(refusal) => {
            if let Some(limit) = &refusal.limit {
                count(visit, limit.index, Said::Reject);
            }
            Err(refuse::rejection(&refusal))
        }
    }
}

fn count(visit: &Visit, limit: usize, said: Said) {
    visit.worker.gateway.metrics.decided(visit.worker.id, limit, said);
}

async fn wait(visit: &mut Visit) -> Result<(), Rejection> {
    let connection = visit.connection.clone();
    let Some(passage) = &mut visit.passage else { return Ok(()) };
    let queued_on = passage.queued_on().map(|limit| limit.index);
    let left = {
        let mut turn = pin!(passage.wait());
        let mut hung_up = pin!(connection.socket.hung_up());
        std::future::poll_fn(|cx| {
            if turn.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            if connection.watch.fired() == Some(Due::Request) {
                return Poll::Ready(Some(Left::TimedOut));
            }
            hung_up.as_mut().poll(cx).map(|()| Some(Left::HungUp))
        })
        .await
    };
    match left {
        None => Ok(()),
        Some(Left::TimedOut) => Err(queued_too_long(queued_on)),
        Some(Left::HungUp) => {
            // Its place goes to the next one now; the connection ends once hyper has seen the close, too.
            visit.passage = None;
            connection.watch.abort_now();
            std::future::pending().await
        }
    }
}

/// Why a request left its queue before its turn.
enum Left {
    TimedOut,
    HungUp,
}
