//! Charges with a reply after the deadline. The request was decided without the store, by a share that charges its
//! units as debts, or was rejected: the store gives them back.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tokio::time::{sleep, timeout};

use super::{Session, StoreQuestion};
use crate::link::{LATE_TIMEOUT, LateReply};
use crate::settlements::StoreUnits;
use crate::{CallItem, KeyGroup, ScriptOp, ScriptReply, SlotCount};
use sluicegate_model::OnFailure;

/// Maximum number of replies that a worker waits for; other charges stay.
const LATE_MAX: usize = 1024;
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
    turns_us: u64,
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
        let CallItem { limit_index, dry_run, slot_count, owed, owed_by_others, turns_us, .. } = question.item;
        let (refund, owed) = (question.to_refund(0), (owed, owed_by_others));
        OwnedQuestion { refund, limit_index, dry_run, slot_count, owed, turns_us }
    }

    fn to_item(&self) -> CallItem<'_> {
        let OwnedQuestion { ref refund, limit_index, dry_run, slot_count, owed, turns_us } = *self;
        let (owed, owed_by_others) = owed;
        CallItem { limit_index, dry_run, slot_count, owed, owed_by_others, turns_us, ..refund.to_item() }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;

    use super::*;
    use crate::tests::test_limit;
    use crate::{SharedKey, SharedLimit};
    use sluicegate_limit::Units;
    use sluicegate_limit::table::CounterKey;
    use sluicegate_model::{Algorithm, LimitId, Rate, WindowAlign};

    /// The reply of a call cannot be read by other items than those that were sent.
    #[test]
    fn a_question_outlives_its_request_as_it_was_asked() {
        let rates = vec![Rate::new(NonZeroU64::MIN, Duration::from_secs(1))];
        let config = test_limit("a", Algorithm::FixedWindow { rates, align: WindowAlign::Clock });
        let limit = Arc::new(SharedLimit::adopt_from(None, LimitId(0), &config, OnFailure::Local, 10));
        let units = Units::new(CounterKey::new(7, 7), 3);
        let mut question = StoreQuestion::new(&limit, 0, SharedKey([7; 16]), &units);
        (question.item.turns_us, question.item.owed, question.item.owed_by_others) = (5, 6, 7);
        (question.item.class, question.item.limit_index, question.item.dry_run) = (1, 2, true);
        let owned = OwnedQuestion::from_question(&question);
        let (asked, kept) = (&question.item, owned.to_item());
        assert_eq!(
            (kept.turns_us, kept.owed, kept.owed_by_others, kept.class, kept.limit_index, kept.dry_run),
            (asked.turns_us, asked.owed, asked.owed_by_others, asked.class, asked.limit_index, asked.dry_run)
        );
        assert_eq!((kept.cost, kept.key), (asked.cost, asked.key));
    }
}
