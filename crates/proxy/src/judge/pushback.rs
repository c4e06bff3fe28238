//! A request to an upstream that pushes back: it passes, waits for the end of the pause, or is rejected.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use crate::judge::request_state::RequestState;
use crate::reject::{PauseRejection, Rejection};
use sluicegate_admission::chain::QueueTerms;
use sluicegate_base::clock::Now;
use sluicegate_http::net::deadline::GatewayDeadline;
use sluicegate_http::upstream::{Upstream, WHOLE_UPSTREAM};
use sluicegate_limit::pushback::{Pause, PauseCheck, PauseDecision, PauseWaiter, WaitTerms};
use sluicegate_model::{LocationId, UpstreamId};

/// The end of a wait, unless the client hung up.
pub(super) enum Waited<T> {
    Done(T),
    /// The timeout of the location passed.
    TimedOut,
}

/// A place in the queue for the end of a pause.
pub(super) struct PausePlace {
    upstream: UpstreamId,
    waiter: PauseWaiter,
}

/// Lets a request of this location pass; `Some` = it has to wait.
///
/// # Errors
/// The rejection: no queue stands in front, or none may hold it for so long.
pub(super) fn try_pass(state: &RequestState, route: LocationId) -> Result<Option<PausePlace>, Rejection> {
    let Some(key) = state.pause_key() else { return Ok(None) };
    let Some(upstream) = state.upstream(&state.worker.gateway, route) else { return Ok(None) };
    let Some(pushback) = &upstream.pushback else { return Ok(None) };
    match pushback.pauses().enter(*key, Now::read_clock(), wait_terms(state, route)) {
        PauseDecision::Pass => Ok(None),
        PauseDecision::Wait(waiter) => Ok(Some(PausePlace { upstream: upstream.id, waiter })),
        PauseDecision::Refuse(pause) => Err(Rejection::Paused(PauseRejection::new(upstream.id, pause))),
    }
}

/// The time for which the request has to pause, ns; 0 = not at all.
pub(super) fn pause_ns(state: &RequestState, route: LocationId) -> u64 {
    let upstream = state.upstream(&state.worker.gateway, route);
    let pause = upstream.and_then(|upstream| find_pause(state, upstream, Now::read_clock()));
    pause.map_or(0, |pause| pause.wait_ns)
}

/// Lets the request pass, if necessary after a wait. `None`: the client hung up.
pub(super) async fn pass_or_wait(state: &RequestState, route: LocationId) -> Option<Result<(), Rejection>> {
    match try_pass(state, route) {
        Ok(None) => Some(Ok(())),
        Ok(Some(place)) => wait_out_pause(state, place).await,
        Err(rejection) => Some(Err(rejection)),
    }
}

/// Waits until the request may be sent. `None`: the client hung up.
pub(super) async fn wait_out_pause(state: &RequestState, place: PausePlace) -> Option<Result<(), Rejection>> {
    let rejection = |pause| Rejection::Paused(PauseRejection::new(place.upstream, pause));
    Some(match wait_or_leave(state, place.waiter.wait_turn()).await? {
        Waited::Done(turn) => turn.map_err(rejection),
        Waited::TimedOut => {
            let now = Now::read_clock();
            let pause = find_pause(state, &state.worker.gateway.upstreams[place.upstream.0], now);
            Err(rejection(pause.unwrap_or(Pause { until: now, wait_ns: 1, status: 0 })))
        }
    })
}

/// Runs `work` until it is done or the timeout of the location passes, which the sweep of deadlines tells this task.
/// `None`: the client hung up.
pub(super) async fn wait_or_leave<T>(
    state: &RequestState,
    work: impl Future<Output = T>,
) -> Option<Waited<T>> {
    let mut work = pin!(work);
    let mut hangup = pin!(state.connection.wait_for_hangup());
    std::future::poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(Waited::Done(done)));
        }
        if state.watch.fired_deadline() == Some(GatewayDeadline::Request) {
            return Poll::Ready(Some(Waited::TimedOut));
        }
        hangup.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Makes a degraded request pause with the upstream that responds instead. All of them pause together: their keys
/// were made for another upstream.
pub(super) fn redirect_to_degraded(state: &mut RequestState) {
    let gateway = &state.worker.gateway;
    let degraded = state.judgement.degraded.and_then(|id| gateway.upstreams[id.0].pushback.as_ref());
    state.permits.pause = degraded.map(|_| Box::new(PauseCheck { key: WHOLE_UPSTREAM, paused: None }));
}

/// The pause of the request's key at this upstream, if one lasts.
fn find_pause(state: &RequestState, upstream: &Upstream, now: Now) -> Option<Pause> {
    upstream.pushback.as_ref()?.pauses().find_pause(state.pause_key()?, now)
}

/// The terms of the queue in front, if there is one.
fn wait_terms(state: &RequestState, route: LocationId) -> Option<WaitTerms> {
    if state.judgement.degraded.is_some() {
        return None;
    }
    let gateway = &state.worker.gateway;
    let queue = QueueTerms::find(gateway.routes[route.0].chain.chain.limits(), &state.judgement.decisions)?;
    let timeout = gateway.config.locations[route.0].timeout;
    let timeout_ns = timeout.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let latest = Now(state.started.0.saturating_add(queue.max_wait_ns.min(timeout_ns)));
    Some(WaitTerms { latest, front_ns: queue.interval_ns })
}
