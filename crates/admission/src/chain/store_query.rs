//! The shared limits that a request asks the store about, and the answers of one round of questions.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;

use smallvec::SmallVec;

use super::claim_set::ClaimSet;
use super::findings::{LackingSlots, PassFindings};
use super::mode::ChainMode;
use super::shared_demand::SharedDemand;
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::OnFailure;
use sluicegate_store::{StoreAnswer, StoreQuestion};

/// A request that the local limits have accepted and the store has not judged yet. Dropping it gives everything back.
pub struct PendingStore<M: ChainMode> {
    pub(super) held: ClaimSet,
    /// Boxed, because the usual verdict must stay small.
    pub(super) query: Box<StoreQuery>,
    pub(super) mode: PhantomData<M>,
}

impl<M: ChainMode> From<Infallible> for PendingStore<M> {
    /// Once the store has answered, no verdict asks it again.
    fn from(never: Infallible) -> PendingStore<M> {
        match never {}
    }
}

/// A shared limit that the store did not decide about.
pub struct UndecidedLimit {
    /// Index of the limit in [`super::Chain::limits`].
    pub limit_index: usize,
    /// The fallback that decided in the store's place, because it did not answer.
    pub fallback: Option<OnFailure>,
    /// The local share behind the decisions. Without a fallback, the share overruled the store's rejection; with
    /// neither, the store was not asked.
    pub share: Option<Arc<Limit>>,
}

/// The questions that are left before a request may pass.
pub(super) struct StoreQuery {
    pub shared_demands: Vec<SharedDemand>,
    /// The findings of the local limits.
    pub findings: PassFindings,
}

/// One round of questions to the store, with its answers.
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
    pub(super) fn asks_about(&self, demand: &SharedDemand) -> bool {
        self.question_demands.iter().any(|other| other.limit_index == demand.limit_index)
    }

    /// True if the store gave no answer about the limit.
    pub(super) fn has_failed(&self, demand: &SharedDemand) -> bool {
        let mut answers = self.question_demands.iter().zip(&self.answers);
        answers.any(|(other, answer)| {
            other.limit_index == demand.limit_index && matches!(answer, StoreAnswer::Failed(_))
        })
    }

    /// True if this gateway's own share decides although the store rejects.
    pub(super) fn is_overruled(&self, demand: &SharedDemand) -> bool {
        self.locally_admitted.contains(&demand.limit_index)
    }
}

// === impl UndecidedLimit ===

impl std::fmt::Debug for UndecidedLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UndecidedLimit")
            .field("limit_index", &self.limit_index)
            .field("fallback", &self.fallback)
            .finish()
    }
}
