//! Polls the store for slots that other gateways freed, while requests wait for them here.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::late_replies::LateReplies;
use super::session::{Session, StoreAnswer};
use super::slot_queue::{PolledLine, SharedSlotQueue};
use super::{CallItem, ScriptOp, SlotCount};
use crate::limit::LimitOutcome;

/// Between two polls of a limit.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Keys in one poll; if requests wait for slots of more keys, they take turns.
const KEYS_MAX: usize = 64;

/// Lets another task poll if this one is dropped.
struct PollGuard {
    queue: Arc<SharedSlotQueue>,
    is_over: bool,
}

impl Session {
    /// Starts to poll the store for the waiters of a limit, on the runtime of this worker, as long as there are any.
    pub fn start_polls(self: &Rc<Session>, queue: &Arc<SharedSlotQueue>) {
        let guard = PollGuard { queue: queue.clone(), is_over: false };
        let session = self.clone();
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let Some(lines) = guard.queue.take_polled(KEYS_MAX) else {
                    // Another task may poll already.
                    return guard.end_polls();
                };
                session.poll_lines(&guard.queue, &lines).await;
            }
        });
    }

    async fn poll_lines(&self, queue: &SharedSlotQueue, lines: &[PolledLine]) {
        let items: SmallVec<[CallItem<'_>; 4]> = lines.iter().map(|line| self.poll_item(line)).collect();
        let answers = self.ask_items(ScriptOp::Peek, &items, &LateReplies::default()).await;
        for (line, answer) in lines.iter().zip(answers) {
            match answer {
                StoreAnswer::Answered { answer, .. } if answer.decision.outcome == LimitOutcome::Reject => {}
                // Without an answer, its `on_failure` decides about each waiter.
                _ => queue.note_freed(&line.slot_key),
            }
        }
    }

    fn poll_item<'a>(&self, line: &'a PolledLine) -> CallItem<'a> {
        let slots = self.outbox.slots.held_for(&line.slot_key).saturating_add(line.cost);
        CallItem {
            rule: &line.rule,
            key: line.slot_key.key,
            cost: line.cost,
            limit_index: 0,
            dry_run: false,
            slot_count: SlotCount { slots, sequence: 0 },
            mark: 0,
            owed: 0,
        }
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
