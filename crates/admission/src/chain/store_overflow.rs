//! New keys beyond those that this gateway may put into the store count by network there.

use smallvec::SmallVec;

use super::claim_set::ClaimSet;
use super::mode::ChainMode;
use super::store_lease::{LeaseState, RateLease};
use super::store_query::StoreQuery;
use sluicegate_store::{ScriptOp, Session, SharedKey, SlotCount, StoreAnswer, StoreQuestion};

// === impl StoreQuery ===

impl StoreQuery {
    /// Lets the keys that this gateway may not put into the store count by network there, except those that the store
    /// counts already.
    pub(super) async fn share_counters<M: ChainMode>(&mut self, held: &ClaimSet, session: &Session) {
        let mut beyond: SmallVec<[(usize, RateLease); 2]> = SmallVec::new();
        for (index, demand) in self.shared_demands.iter().enumerate() {
            let rates = held.limits[usize::from(demand.limit_index)].rate_range(demand.units.variant);
            let (key, now) = (&demand.units.key, held.judged_at);
            if let Some(rate) = demand.limit.full_rate(rates, key, now, M::CHARGES) {
                beyond.push((index, RateLease::new(demand, rate, LeaseState::Charged(None))));
            }
        }
        let questions: SmallVec<[StoreQuestion<'_>; 2]> =
            beyond.iter().map(|(_, lease)| lease.to_question(SlotCount::default())).collect();
        let answers = session.ask_store(ScriptOp::Peek, &questions).await;
        for ((index, _), answer) in beyond.iter().zip(&answers) {
            if matches!(answer, StoreAnswer::Answered { answer, .. } if answer.decision.full_ns == 0) {
                let demand = &mut self.shared_demands[*index];
                demand.key = SharedKey::of_network(demand.units.key.prefix);
                demand.units.key.id = u128::from_le_bytes(demand.key.0);
                if M::CHARGES {
                    demand.limit.count_overflow();
                }
            }
        }
    }
}
