//! One round of questions to the store, and the conclusions from its answers.

use std::ops::Range;

use smallvec::SmallVec;

use crate::chain::claims::ClaimSet;
use crate::chain::claims::holds::none_rejects;
use crate::chain::pass::counts_rejected;
use crate::chain::slots::LackingSlots;
use crate::chain::{ChainedLimit, SharedDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::LimitOutcome;
use sluicegate_store::{RateAnswer, ScriptOp, Session, StoreAnswer, StoreQuestion};

/// One round of questions to the store, with its answers.
#[derive(Default)]
pub(super) struct StoreRound<'a> {
    /// The demand of each question.
    pub question_demands: SmallVec<[&'a SharedDemand; 4]>,
    pub questions: SmallVec<[StoreQuestion<'a>; 4]>,
    pub answers: SmallVec<[StoreAnswer; 4]>,
    pub sent: Now,
    pub received: Now,
    /// Indices of limits that the store rejects and this gateway's own share admits.
    pub locally_admitted: SmallVec<[u16; 2]>,
    /// The slots for which the request has to wait: it asks for none now.
    pub lacking: Option<LackingSlots>,
}

// === impl StoreRound ===

impl StoreRound<'_> {
    /// True if this gateway's own share decides although the store rejects.
    pub(super) fn is_overruled(&self, demand: &SharedDemand) -> bool {
        self.locally_admitted.contains(&demand.limit_index)
    }

    /// True if the store does not decide about the limit.
    pub(super) fn is_judged_locally(&self, demand: &SharedDemand) -> bool {
        let mut answers = self.question_demands.iter().zip(&self.answers);
        self.is_overruled(demand)
            || answers.any(|(other, answer)| {
                other.limit_index == demand.limit_index && matches!(answer, StoreAnswer::Failed(_))
            })
    }

    /// The enforced rejections of the store, with the demand and the question of each.
    fn rejections(&self) -> impl Iterator<Item = (&SharedDemand, &StoreQuestion<'_>, &RateAnswer)> {
        let questions = self.question_demands.iter().zip(&self.questions);
        questions.zip(&self.answers).filter_map(|((demand, question), answer)| {
            let StoreAnswer::Answered { answer, .. } = answer else { return None };
            let rejects = !question.item.dry_run && answer.decision.outcome == LimitOutcome::Reject;
            rejects.then_some((*demand, question, answer))
        })
    }

    /// True if no answer is a rejection. A look leaves slots out, which it may lack as long as it has to wait.
    pub(super) fn all_accept(&self, charges: bool) -> bool {
        match charges {
            true => none_rejects(self.answers.iter()),
            false => self.rejections().all(|(_, question, _)| question.item.slot_count.slots > 0),
        }
    }

    /// Limits that the store rejects and this gateway's own share admits; none if any other limit rejects too.
    pub(super) fn find_locally_admitted(&self, charges: bool, now: Now) -> SmallVec<[u16; 2]> {
        let mut admitted = SmallVec::new();
        for (demand, question, _) in self.rejections() {
            // A look asks about slots even if a rate rejects; for a charge the store skips them then.
            if !charges && question.item.slot_count.slots > 0 {
                continue;
            }
            if question.limit.admitting_share(&demand.units, now).is_none() {
                return SmallVec::new();
            }
            if !admitted.contains(&demand.limit_index) {
                admitted.push(demand.limit_index);
            }
        }
        admitted
    }

    /// The slots that the store has too few of, if that alone rejects the request.
    pub(super) fn find_lacking_slots(&self) -> Option<LackingSlots> {
        let mut lacking = None;
        for (_, question, _) in self.rejections().filter(|(.., answer)| !answer.skipped) {
            let refused = refused_slots(question)?;
            lacking.get_or_insert(refused);
        }
        lacking
    }

    /// Refunds the charges of some servers of a Cluster after another one rejected.
    pub(super) fn refund_partial(&self, session: &Session) {
        let demands = self.question_demands.iter().zip(&self.questions);
        for ((demand, question), reply) in demands.zip(&self.answers) {
            if let StoreAnswer::Answered { answer, charged: true } = reply
                && answer.mark != 0
            {
                // A step stays reached, and is told once.
                demand.note_steps(question.rate, answer);
                session.outbox.queue_refund(question.to_refund(answer.mark));
            }
        }
    }

    /// Charges the shadow of the only limit that rejects, if that counts in the store. The call before has charged
    /// nothing.
    #[cold]
    pub(super) async fn charge_shadow(&mut self, held: &ClaimSet, session: &Session) {
        let Some(range) = self.find_shadow(&held.limits) else { return };
        let answers = session.ask_store(ScriptOp::Take, &self.questions[range.clone()]).await;
        if answers.iter().all(|answer| matches!(answer, StoreAnswer::Answered { charged: true, .. })) {
            self.answers[range].copy_from_slice(&answers);
        }
    }

    /// The questions about the shadow of the only limit that rejects.
    fn find_shadow(&self, limits: &[ChainedLimit]) -> Option<Range<usize>> {
        let is_answered = |answer: &StoreAnswer| matches!(answer, StoreAnswer::Answered { .. });
        if !self.locally_admitted.is_empty() || !self.answers.iter().all(is_answered) {
            return None;
        }
        let mut rejecting = self.rejections().filter(|(.., answer)| !answer.skipped);
        let (_, first, _) = rejecting.next()?;
        if rejecting.any(|(_, question, _)| question.item.limit_index != first.item.limit_index) {
            return None;
        }
        let shadow = first.item.limit_index + 1;
        limits.get(usize::from(shadow)).filter(|limit| counts_rejected(limit))?;
        let own = |question: &StoreQuestion<'_>| {
            question.item.limit_index == shadow && question.item.slot_count.slots == 0
        };
        let first = self.questions.iter().position(own)?;
        let count = self.questions[first..].iter().take_while(|question| own(question)).count();
        Some(first..first + count)
    }
}

/// The slots of a question, if requests may wait for them.
pub(super) fn refused_slots(question: &StoreQuestion<'_>) -> Option<LackingSlots> {
    question.limit.slot_terms(question.rate)?;
    Some(LackingSlots { limit_index: question.item.limit_index, is_refused: true })
}
