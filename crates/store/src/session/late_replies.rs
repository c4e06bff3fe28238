//! Charges with a reply after the deadline. The request was decided without the store, by a share that charges its
//! units as debts, or was rejected: the store gives them back.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tokio::time::{sleep, timeout};

use super::{Session, StoreQuestion};
use crate::link::LateReply;
use crate::settlements::StoreUnits;
use crate::{CallItem, KeyGroup, ScriptOp, ScriptReply, SlotCount};
use sluicegate_model::OnFailure;

/// Maximum number of replies that a worker waits for; other charges stay.
const LATE_MAX: usize = 1024;
/// The longest wait for one reply.
const LATE_TIMEOUT: Duration = Duration::from_secs(10);
const DEGRADED_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The replies that had not come when the calls about some questions ended.
#[derive(Default)]
pub(crate) struct LateReplies(pub RefCell<SmallVec<[(KeyGroup, LateReply); 1]>>);

/// A question that outlives its request, with the refund of its charge.
struct OwnedQuestion {
    refund: StoreUnits,
    limit_index: u16,
    dry_run: bool,
    slot_count: SlotCount,
    owed: (u64, u64),
}

// === impl Session ===

impl Session {
    /// Refunds the charges that the late replies to `questions` report.
    #[cold]
    pub(super) fn refund_late(&self, late: LateReplies, questions: &[StoreQuestion<'_>]) {
        for (group, reply) in late.0.into_inner() {
            if Rc::strong_count(&self.late_waits) > LATE_MAX {
                return;
            }
            let (store, outbox, waits) = (self.store.clone(), self.outbox.clone(), self.late_waits.clone());
            let own = questions.iter().filter(|question| self.store.group_of(&question.item.key) == group);
            let asked: Vec<OwnedQuestion> = own.map(OwnedQuestion::from_question).collect();
            tokio::task::spawn_local(async move {
                let reply = timeout(LATE_TIMEOUT, async {
                    let reply = reply.await;
                    // A refund is sent once, so it waits until calls are made again.
                    while store.is_degraded() {
                        sleep(DEGRADED_POLL_INTERVAL).await;
                    }
                    reply
                });
                let reply = reply.await;
                drop(waits);
                let Ok(Ok(Value::BulkString(bytes))) = reply else { return };
                let items: Vec<CallItem<'_>> = asked.iter().map(OwnedQuestion::to_item).collect();
                let Some(reply) = ScriptReply::parse_reply(ScriptOp::Take, &items, &bytes) else { return };
                for (OwnedQuestion { refund, .. }, answer) in asked.into_iter().zip(&reply.answers) {
                    // A request that was admitted without a debt stays charged, unless its response will be.
                    let stays = refund.limit.on_failure == OnFailure::Allow && !refund.limit.settles();
                    if answer.mark != 0 && !stays {
                        outbox.queue_refund(StoreUnits { mark: answer.mark, ..refund });
                    }
                }
            });
        }
    }
}

// === impl OwnedQuestion ===

impl OwnedQuestion {
    fn from_question(question: &StoreQuestion<'_>) -> OwnedQuestion {
        let CallItem { limit_index, dry_run, slot_count, owed, owed_by_others, .. } = question.item;
        let owed = (owed, owed_by_others);
        OwnedQuestion { refund: question.to_refund(0), limit_index, dry_run, slot_count, owed }
    }

    fn to_item(&self) -> CallItem<'_> {
        let OwnedQuestion { ref refund, limit_index, dry_run, slot_count, owed: (owed, owed_by_others) } =
            *self;
        CallItem { limit_index, dry_run, slot_count, owed, owed_by_others, ..refund.to_item() }
    }
}
