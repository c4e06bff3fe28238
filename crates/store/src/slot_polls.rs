//! Polls the store for slots that other gateways freed, while requests wait for them here.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::session::{LateReplies, Session, StoreAnswer};
use super::shared_limit::SharedLimit;
use super::slot_queue::{PolledLine, SharedSlotQueue};
use super::{CallItem, ScriptOp, SlotCount, SlotKey};
use sluicegate_base::clock::Now;
use sluicegate_limit::LimitOutcome;

/// The pauses between two looks for keys that are to be polled.
const LOOK_INTERVALS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(10);
/// The pause between two polls of a limit while the store does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Keys in one poll; if requests wait for slots of more keys, they take turns.
const KEYS_MAX: usize = 64;

/// Lets another task poll if this one is dropped.
struct PollGuard {
    queue: Arc<SharedSlotQueue>,
    is_over: bool,
}

impl Session {
    /// Starts to poll the store for the waiters of a limit, on the runtime of this worker, as long as there are any.
    pub fn start_polls(self: &Rc<Session>, limit: &SharedLimit) {
        let guard = PollGuard { queue: limit.slot_queue.clone(), is_over: false };
        let (session, fleet) = (self.clone(), limit.fleet.clone());
        tokio::task::spawn_local(async move {
            let mut pause = *LOOK_INTERVALS.start();
            loop {
                tokio::time::sleep(pause).await;
                let (node, now) = (session.store.process_node(), Now::read_clock());
                let Some((lines, next)) = guard.queue.take_polled(KEYS_MAX, (node, fleet.nodes()), now)
                else {
                    // Another task may poll already.
                    return guard.end_polls();
                };
                let until_next = Duration::from_nanos(next.ns_since(now));
                pause = match session.poll_lines(&guard.queue, &lines).await {
                    true => until_next.clamp(*LOOK_INTERVALS.start(), *LOOK_INTERVALS.end()),
                    false => RETRY_INTERVAL,
                };
            }
        });
    }

    /// Returns true if the store answers.
    async fn poll_lines(&self, queue: &SharedSlotQueue, lines: &[PolledLine]) -> bool {
        let items: SmallVec<[CallItem<'_>; 4]> = lines.iter().map(|line| self.poll_item(line)).collect();
        let mut answers = true;
        for (line, answer) in
            lines.iter().zip(self.ask_items(ScriptOp::Peek, &items, &LateReplies::default()).await)
        {
            answers &= matches!(answer, StoreAnswer::Answered { .. });
            match answer {
                StoreAnswer::Answered { answer, .. } if answer.decision.outcome == LimitOutcome::Reject => {}
                // Without an answer, its `on_failure` decides about each waiter.
                _ => queue.note_freed(&line.slot_key),
            }
        }
        answers
    }

    fn poll_item<'a>(&self, line: &'a PolledLine) -> CallItem<'a> {
        let held = self.outbox.slots.peek_slots(&line.slot_key, line.cost);
        let slot_count = SlotCount { turn: Some(line.turn), ..held };
        let SlotKey { key, class, .. } = line.slot_key;
        CallItem { slot_count, class, ..CallItem::new(&line.rule, key, line.cost) }
    }
}

// === impl PollGuard ===

impl PollGuard {
    fn end_polls(mut self) {
        self.is_over = true;
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.queue.abandon_polls();
        }
    }
}
