//! Shadows: other numbers of a limit, which judge each request beside it as if they were in force.
//!
//! A shadow is a dry run right behind its limit, with one difference: a rejection by that limit alone does not keep it
//! from being charged, because the limit would not have rejected with the numbers of the shadow. A rejection by any
//! other limit undoes its charge, as that of a dry run.

use std::ops::Range;

use super::ChainPass;
use crate::chain::claims::{Claim, ClaimKind, ClaimSet};
use crate::chain::store::StoreRound;
use crate::chain::{ChainCause, ChainMode, ChainedLimit};
use sluicegate_limit::{Limit, LimitOutcome, Units};
use sluicegate_store::{ScriptOp, Session, StoreAnswer, StoreQuestion};

/// True if a limit is a shadow that is charged although its own limit rejects. With `charge`, the response settles the
/// cost of a request, and a rejected one has none.
fn counts_rejected(limit: &Limit) -> bool {
    limit.config.shadow_of.is_some() && limit.config.charge.is_none()
}

// === impl ChainPass ===

impl<M: ChainMode> ChainPass<'_, M> {
    /// True if the request is rejected already, as the limit at `limit_index` sees it.
    #[inline]
    pub(crate) fn is_rejected_for(&self, limit_index: usize, limit: &Limit) -> bool {
        self.findings.rejection.is_some() && !self.overrules_rejection(limit_index, limit)
    }

    /// True if the limit is the shadow of the only one that rejects, and that for its numbers.
    #[cold]
    pub(crate) fn overrules_rejection(&self, limit_index: usize, limit: &Limit) -> bool {
        let rejecting = self.findings.rejection.filter(|_| !self.findings.several_reject);
        counts_rejected(limit)
            && rejecting.is_some_and(|rejection| {
                usize::from(rejection.limit_index) + 1 == limit_index
                    && rejection.cause != ChainCause::MissingKey
            })
    }

    /// Undoes the charges of a rejected request, except those of the shadow of the limit that rejects it.
    #[cold]
    pub(crate) fn undo_rejected_charges(&mut self) {
        let limits = self.limits;
        let claims = std::mem::take(&mut self.held.claims);
        let (kept, undone) = claims.into_iter().partition(|claim: &Claim| {
            let limit_index = usize::from(claim.limit_index);
            matches!(claim.kind, ClaimKind::Charge(_))
                && self.overrules_rejection(limit_index, &limits[limit_index])
        });
        self.held.claims = undone;
        self.held.undo_claims(0, self.decisions);
        self.held.claims = kept;
    }

    /// Adds the decision of the shadow of a concurrency limit that rejects a request for lack of slots. A rejected
    /// request is never in flight, so the shadow counts none.
    #[cold]
    pub(crate) fn look_at_shadow_slots(&mut self, limit_index: u16, units: &Units) {
        let shadow = usize::from(limit_index) + 1;
        let Some(limit) = self.limits.get(shadow).filter(|limit| limit.config.shadow_of.is_some()) else {
            return;
        };
        let outlook = limit.peek_slots(0, units, self.held.judged_at);
        self.push_slots((shadow, 0), limit, false, outlook);
    }
}

// === impl StoreRound ===

impl StoreRound<'_> {
    /// Charges the shadow of the only limit that rejects, if that counts in the store. The call before has charged
    /// nothing.
    #[cold]
    pub(crate) async fn charge_shadow(&mut self, held: &ClaimSet, session: &Session) {
        let Some(range) = self.find_shadow(&held.limits) else { return };
        let answers = session.ask_store(ScriptOp::Take, &self.questions[range.clone()]).await;
        if answers.iter().all(|answer| matches!(answer, StoreAnswer::Answered { charged: true, .. })) {
            self.answers[range].copy_from_slice(&answers);
        }
    }

    /// The questions about the shadow of the only limit that rejects.
    fn find_shadow(&self, limits: &[ChainedLimit]) -> Option<Range<usize>> {
        if !self.locally_admitted.is_empty() {
            return None;
        }
        let mut rejecting = None;
        for (question, answer) in self.questions.iter().zip(&self.answers) {
            let StoreAnswer::Answered { answer, .. } = answer else { return None };
            if question.dry_run || answer.skipped || answer.decision.outcome != LimitOutcome::Reject {
                continue;
            }
            if rejecting.is_some_and(|known| known != question.limit_index) {
                return None;
            }
            rejecting = Some(question.limit_index);
        }
        let shadow = rejecting? + 1;
        limits.get(usize::from(shadow)).filter(|limit| counts_rejected(limit))?;
        let own =
            |question: &StoreQuestion<'_>| question.limit_index == shadow && question.slot_count.slots == 0;
        let first = self.questions.iter().position(own)?;
        let count = self.questions[first..].iter().take_while(|question| own(question)).count();
        Some(first..first + count)
    }
}
