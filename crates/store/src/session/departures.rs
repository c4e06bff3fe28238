//! Questions about a departure of a queue, and at a leased queue about those of requests to come, too.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::{Session, StoreAnswer, StoreQuestion};
use crate::script::rule_shape::RuleShape;
use crate::{CallItem, LuaScript, PackedCall, ScriptOp, ScriptReply, StoreFault};
use sluicegate_base::clock::Now;

// === impl Session ===

impl Session {
    /// Finds a departure for a request that asks the store about nothing else: a spare one, or one of the store.
    pub(super) async fn ask_for_departure(&self, question: &StoreQuestion<'_>) -> SmallVec<[StoreAnswer; 4]> {
        let StoreQuestion { limit, rate, item: CallItem { key, cost, .. }, .. } = *question;
        let (of, now) = ((key, cost), Now::read_clock());
        if let Some(answer) = limit.take_spare(rate, of, now) {
            return SmallVec::from_iter([StoreAnswer::Answered { answer, charged: true }]);
        }
        let count = limit.departures_to_ask(rate, of, now);
        if count > 1 {
            return SmallVec::from_iter([Box::pin(self.ask_for_departures(question, count)).await]);
        }
        let answers = self.ask_exactly(ScriptOp::Take, std::slice::from_ref(question)).await;
        if let Some(StoreAnswer::Answered { answer, .. }) = answers.first() {
            limit.note_departures(rate, of, 1, answer, Now::read_clock());
        }
        answers
    }

    /// Asks for `count` departures, of which the request gets the first.
    async fn ask_for_departures(&self, question: &StoreQuestion<'_>, count: u64) -> StoreAnswer {
        let StoreQuestion { limit, rate, item: CallItem { key, cost, .. }, .. } = *question;
        limit.leases.calls.fetch_add(1, Relaxed);
        let (limit, link, node) = (limit.clone(), self.link.clone(), self.worker_node);
        // The departures of others are not lost with this request.
        let call = tokio::task::spawn_local(async move {
            let store = link.store();
            let items = [CallItem::new(&limit.rules[rate], key, cost.saturating_mul(count))];
            let at = store.unix_seconds();
            let packed = PackedCall::new(ScriptOp::Take, store.prefix(), node, at, &items);
            let bytes = link.call_script(store.group_of(&key), LuaScript::counter_script(), &packed).await?;
            let reply = ScriptReply::parse_reply(ScriptOp::Take, &items, &bytes);
            let mut reply = reply.ok_or(StoreFault::Garbled)?;
            let answer = reply.answers.first_mut().ok_or(StoreFault::Garbled)?;
            limit.share_out(rate, (key, cost), count, (&mut *answer, reply.now_us), Now::read_clock());
            Ok(StoreAnswer::Answered { answer: *answer, charged: reply.admitted })
        });
        call.await.unwrap_or(Err(StoreFault::Garbled)).unwrap_or_else(StoreAnswer::Failed)
    }
}

// === impl StoreQuestion ===

impl StoreQuestion<'_> {
    /// True at a queue that may have departures here. A dry run waits for none, and debts count before them.
    pub(super) fn asks_for_departure(&self) -> bool {
        let is_queue = matches!(self.item.rule.shape, RuleShape::LeakyBucket { .. });
        is_queue && !self.item.dry_run && self.item.owed == 0
    }
}
