//! The phases of a request that waits: for its turn, for its upstream, and for its slots.

use super::{Admitted, NextPhase, Paused, Received, Waiting, note_fallbacks};
use crate::judge::pushback::{self, Waited};
use crate::judge::request_state::{RequestState, Verdict};
use crate::judge::{conclusion, limit_report};
use crate::reject::{LimitCause, LimitRejection, Rejection};
use sluicegate_admission::chain::{ChainRejection, Queued, UndecidedLimit};
use sluicegate_base::clock::Now;
use sluicegate_model::{LimitId, LocationId};

// === impl Waiting ===

/// Why a request leaves its queues, unless its client hangs up.
enum WaitEnd {
    /// The request has its turn and its slots.
    Turn,
    /// A queue rejected it, or too few slots are free.
    Rejected(ChainRejection),
    /// Its upstream pauses, and no queue may hold it for so long.
    Paused(Rejection),
    TimedOut,
}

impl Waiting {
    /// Waits for the request's turn in every queue, then for its slots. The body is not read meanwhile. If the client
    /// hangs up, the future never ends.
    pub async fn wait_for_turn(self) -> NextPhase {
        let Waiting { mut received, mut queued, route } = self;
        let mut undecided = Vec::new();
        let location = route.as_ref().ok().copied();
        let end = wait_in_queues(&received.state, &mut queued, location, &mut undecided).await;
        let state = &mut *received.state;
        note_fallbacks(state, &undecided);
        let Some(end) = end else {
            limit_report::count_slot_waits(state, &queued);
            drop(queued);
            return hang_up(state).await;
        };
        limit_report::record_stays(state, &queued, Now::read_clock());
        match (end, route) {
            (WaitEnd::Turn, Ok(route)) => {
                state.hold_permit(queued.into_permit());
                limit_report::count_slots(state);
                if state.awaits_answer() {
                    return received.start_asking(route);
                }
                let Received { inbound, state } = received;
                NextPhase::Admit(Admitted { inbound, state, route })
            }
            (WaitEnd::Turn, Err(rejection)) => {
                queued.keep_charges();
                received.reject(&rejection)
            }
            (WaitEnd::Paused(rejection), _) => {
                drop(queued);
                received.reject(&rejection)
            }
            (WaitEnd::Rejected(rejection), _) => {
                drop(queued);
                limit_report::mark_rejected(state, &rejection);
                received.reject(&conclusion::translate_rejection(&rejection))
            }
            (WaitEnd::TimedOut, _) => {
                let (limit, class) = (queued.limit().id, queued.class_in(queued.limit_index() as u16));
                drop(queued);
                received.reject(&queued_too_long(limit, class))
            }
        }
    }
}

// === impl Paused ===

impl Paused {
    /// Waits until the upstream takes the request. If the client hangs up, the future never ends.
    pub async fn wait_out_pause(self) -> NextPhase {
        let Paused { mut received, pause, _place, route } = self;
        let passed = pushback::wait_out_pause(&received.state, pause).await;
        let state = &mut *received.state;
        let Some(passed) = passed else { return hang_up(state).await };
        state.judgement.wait_ns = Now::read_clock().ns_since(state.judged_at);
        state.outcome.verdict = Verdict::Wait;
        match passed {
            Ok(()) => {
                let Received { inbound, state } = received;
                NextPhase::Admit(Admitted { inbound, state, route })
            }
            Err(rejection) => received.reject(&rejection),
        }
    }
}

/// Waits for the turn, for the upstream if that pauses, and for the slots; the timeout of the location
/// ends each wait. `None`: the client hung up.
async fn wait_in_queues(
    state: &RequestState,
    queued: &mut Queued,
    route: Option<LocationId>,
    undecided: &mut Vec<UndecidedLimit>,
) -> Option<WaitEnd> {
    match pushback::wait_or_leave(state, queued.wait_turn()).await? {
        Waited::Done(Ok(())) => {}
        Waited::Done(Err(rejection)) => return Some(WaitEnd::Rejected(rejection)),
        Waited::TimedOut => return Some(WaitEnd::TimedOut),
    }
    // It holds no slot yet, so this is the place to wait for its upstream.
    if let Some(route) = route
        && let Err(rejection) = pushback::pass_or_wait(state, route).await?
    {
        return Some(WaitEnd::Paused(rejection));
    }
    let session = state.worker.session.as_ref();
    Some(match pushback::wait_or_leave(state, queued.take_slots(session, undecided)).await? {
        Waited::Done(taken) => taken.map_or_else(WaitEnd::Rejected, |()| WaitEnd::Turn),
        Waited::TimedOut => WaitEnd::TimedOut,
    })
}

/// Ends the task of a client that hung up at its next await; until then the request must have no response.
pub(super) async fn hang_up(state: &RequestState) -> NextPhase {
    state.watch.abort_now();
    std::future::pending().await
}

/// The rejection after the location's timeout passed in a queue.
fn queued_too_long(limit: LimitId, class: u8) -> Rejection {
    let cause = LimitCause::QueuedTooLong;
    let (rate, retry_after_ns, is_turn) = (0, None, false);
    Rejection::Limit(LimitRejection { limit, rate, class, cause, retry_after_ns, is_turn })
}
