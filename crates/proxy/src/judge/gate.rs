//! A request at the gate of its upstream: it passes, waits while the upstream stops it, or is rejected.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use crate::judge::request_state::RequestState;
use crate::reject::{Rejection, StopRejection};
use sluicegate_admission::chain::QueueTerms;
use sluicegate_base::clock::Now;
use sluicegate_http::net::deadline::GatewayDeadline;
use sluicegate_http::upstream::WHOLE_UPSTREAM;
use sluicegate_limit::pushback::{GateDecision, GatePlace, StopCheck, Stopped, WaitTerms};
use sluicegate_model::{LocationId, UpstreamId};

/// The end of a wait, unless the client hung up.
pub(super) enum Waited<T> {
    Done(T),
    /// The timeout of the location passed.
    TimedOut,
}

/// A place at the gate of an upstream.
pub(super) struct HeldPlace {
    upstream: UpstreamId,
    place: GatePlace,
}

/// Lets a request of this location pass; `Some` = it has to wait.
///
/// # Errors
/// The rejection: no queue stands in front, or none may hold it for so long.
pub(super) fn enter_gate(state: &RequestState, route: LocationId) -> Result<Option<HeldPlace>, Rejection> {
    let Some(key) = state.stop_key() else { return Ok(None) };
    let Some(upstream) = state.upstream(&state.worker.gateway, route) else { return Ok(None) };
    let Some(obey) = &upstream.obey else { return Ok(None) };
    match obey.gate().enter(*key, Now::read_clock(), find_terms(state, route)) {
        GateDecision::Pass => Ok(None),
        GateDecision::Wait(place) => Ok(Some(HeldPlace { upstream: upstream.id, place })),
        GateDecision::Refuse(stopped) => Err(Rejection::Stopped(StopRejection::new(upstream.id, stopped))),
    }
}

/// The time for which the upstream stops the request, ns; 0 = not at all.
pub(super) fn hold_ns(state: &RequestState, route: LocationId) -> u64 {
    let now = Now::read_clock();
    let obey = state.upstream(&state.worker.gateway, route).and_then(|upstream| upstream.obey.as_ref());
    let stopped = obey.zip(state.stop_key()).and_then(|(obey, key)| obey.gate().find_stop(key, now));
    stopped.map_or(0, |stopped| stopped.wait_ns)
}

/// Passes the gate, if necessary after a wait. `None`: the client hung up.
pub(super) async fn pass_gate(state: &RequestState, route: LocationId) -> Option<Result<(), Rejection>> {
    match enter_gate(state, route) {
        Ok(None) => Some(Ok(())),
        Ok(Some(held)) => wait_at_gate(state, held).await,
        Err(rejection) => Some(Err(rejection)),
    }
}

/// Waits at the gate. `None`: the client hung up.
pub(super) async fn wait_at_gate(state: &RequestState, held: HeldPlace) -> Option<Result<(), Rejection>> {
    let HeldPlace { upstream, place } = held;
    let rejection = |stopped| Rejection::Stopped(StopRejection::new(upstream, stopped));
    Some(match wait_or_leave(state, place.wait_turn()).await? {
        Waited::Done(turn) => turn.map_err(rejection),
        Waited::TimedOut => {
            let now = Now::read_clock();
            let obey = state.worker.gateway.upstreams[upstream.0].obey.as_ref();
            let stopped = obey.zip(state.stop_key()).and_then(|(obey, key)| obey.gate().find_stop(key, now));
            Err(rejection(stopped.unwrap_or(Stopped { until: now, wait_ns: 1, status: 0 })))
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

/// Sends a degraded request through the gate of the upstream that responds instead. All of them stop together: their
/// keys were made for another upstream.
pub(super) fn redirect_to_degraded(state: &mut RequestState) {
    let gateway = &state.worker.gateway;
    let degraded = state.judgement.degraded.and_then(|degraded| gateway.upstreams[degraded.0].obey.as_ref());
    state.permits.stop = degraded.map(|_| Box::new(StopCheck { key: WHOLE_UPSTREAM, stopped: None }));
}

/// The terms of the queue in front, if there is one.
fn find_terms(state: &RequestState, route: LocationId) -> Option<WaitTerms> {
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
