//! The shared limits that a request asks the store about, and the answers of one round of questions.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::clock::Now;
use crate::limit::Units;
use crate::shared::{SharedKey, SharedLimit, StoreAnswer, StoreQuestion};

/// The questions that are left before a request may pass.
pub(super) struct StoreQuery {
    pub shared_demands: Vec<SharedDemand>,
    pub shared_limits: SharedLimits,
    pub max_wait_ns: u64,
    pub displaces: bool,
}

/// The shared counterpart of each limit of a chain; `None` for local limits.
pub(super) type SharedLimits = Arc<[Option<Arc<SharedLimit>>]>;

/// The demand of a request on one shared limit.
#[derive(Clone, Copy)]
pub(super) struct SharedDemand {
    pub limit_index: u16,
    pub units: Units,
    pub key: SharedKey,
}

/// One round of questions to the store, with its answers.
pub(super) struct StoreRound<'a> {
    /// For each question, the demand that it belongs to.
    pub question_demands: SmallVec<[SharedDemand; 4]>,
    pub questions: SmallVec<[StoreQuestion<'a>; 4]>,
    pub answers: SmallVec<[StoreAnswer; 4]>,
    pub sent: Now,
    pub received: Now,
    /// Indices of limits that the store rejects and this gateway's own share admits.
    pub locally_admitted: SmallVec<[u16; 2]>,
}

// === impl StoreQuery ===

impl StoreQuery {
    pub(super) fn shared_limit(&self, demand: &SharedDemand) -> Option<&Arc<SharedLimit>> {
        self.shared_limits.get(usize::from(demand.limit_index))?.as_ref()
    }
}

// === impl StoreRound ===

impl StoreRound<'_> {
    pub(super) fn asks_about(&self, demand: &SharedDemand) -> bool {
        self.question_demands.iter().any(|other| other.limit_index == demand.limit_index)
    }

    /// True if the store gave no answer about the limit.
    pub(super) fn has_failed(&self, demand: &SharedDemand) -> bool {
        let own = self
            .question_demands
            .iter()
            .zip(&self.answers)
            .filter(|(other, _)| other.limit_index == demand.limit_index);
        own.into_iter().any(|(_, answer)| matches!(answer, StoreAnswer::Failed(_)))
    }
}
