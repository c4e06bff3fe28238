//! Settles the charges of a request that depend on its response: the reservation of each limit is corrected to the
//! used units.

pub(super) mod extend;

use smallvec::SmallVec;

use super::claims::holds::StoreHolds;
use super::claims::{Claim, ClaimKind, ClaimSet};
use super::permit::ChainPermit;
use crate::settlement::{ChargeSource, Extensions, FinalCharge, ResponseReading, compute_charge};
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::ChargeConfig;
use sluicegate_store::StoreSettlement;

/// One for each limit of the chain that charges by the response, in chain order.
pub type FinalCharges = SmallVec<[FinalCharge; 1]>;

/// The final units of a charge and their source; true if the key forgets its used units.
type FinalUnits = (u64, ChargeSource, bool);

// === impl ChainPermit ===

impl ChainPermit {
    /// Counts the units that the request reserved as such, until they are settled.
    pub fn count_reservations(&self) {
        for (claim, limit) in self.reservations() {
            limit.add_reserved(claim.rate.into(), claim.cost);
        }
    }

    /// The limits with charges that are still reserved, in chain order.
    pub fn reserving_limits(&self) -> impl Iterator<Item = &Limit> {
        self.reservations().map(|(_, limit)| limit)
    }

    fn reservations(&self) -> impl Iterator<Item = (&Claim, &Limit)> {
        let ClaimSet { limits, claims, store_holds, .. } = &self.held;
        claims.iter().filter_map(move |claim| {
            let limit: &Limit = &limits[usize::from(claim.limit_index)];
            limit.config.charge.as_ref()?;
            is_charge(claim, store_holds.as_deref()).then_some((claim, limit))
        })
    }

    /// Settles the charges that the head of the response decides, before the client can know it: its next request
    /// must find the room.
    pub fn settle_by_head(&mut self, reading: &ResponseReading, now: Now) -> FinalCharges {
        self.settle_by_reading(|charge| reading.head_decides(charge), reading, 0, now)
    }

    /// Settles all other charges that depend on the response, of which `bytes` of the body were delivered.
    pub fn settle_charges(&mut self, reading: &ResponseReading, bytes: u64, now: Now) -> FinalCharges {
        self.settle_by_reading(|_| true, reading, bytes, now)
    }

    /// Settles charges that a caller reserved, by the units that it says of each limit; those of which it says none are
    /// still held.
    pub fn settle_units(&mut self, units: impl Fn(&Limit) -> Option<u64>, now: Now) -> FinalCharges {
        let said = |charged| (charged, ChargeSource::Usage, false);
        self.settle_by(|limit, _, _| units(limit).map(said), &mut Extensions::default(), now)
    }

    /// Settles the charges that are still reserved as their reservations.
    pub fn settle_reserved(&mut self, now: Now) -> FinalCharges {
        let reserved = |_: &Limit, _: &ChargeConfig, units| Some((units, ChargeSource::Reserve, false));
        self.settle_by(reserved, &mut Extensions::default(), now)
    }

    fn settle_by_reading(
        &mut self,
        is_decided: impl Fn(&ChargeConfig) -> bool,
        reading: &ResponseReading,
        bytes: u64,
        now: Now,
    ) -> FinalCharges {
        let find_units = |limit: &Limit, charge: &ChargeConfig, reserved| {
            is_decided(charge).then(|| {
                let (charged, source) = compute_charge(&limit.config, charge, reserved, reading, bytes);
                (charged, source, clears_key(charge, reading))
            })
        };
        let mut extensions = reading.take_extensions();
        let settlements = self.settle_by(find_units, &mut extensions, now);
        reading.keep_extensions(extensions);
        settlements
    }

    /// Corrects the charges for which `find_units` knows the units, each once: a settled claim is not held any longer.
    /// It gets the units that were reserved.
    fn settle_by(
        &mut self,
        find_units: impl Fn(&Limit, &ChargeConfig, u64) -> Option<FinalUnits>,
        extensions: &mut Extensions,
        now: Now,
    ) -> FinalCharges {
        let mut settlements = FinalCharges::new();
        let mut in_store: SmallVec<[StoreSettlement; 1]> = SmallVec::new();
        let ClaimSet { limits, claims, store_holds, .. } = &mut self.held;
        claims.retain(|claim| {
            let chained = &limits[usize::from(claim.limit_index)];
            let limit: &Limit = chained;
            let charge = limit.config.charge.as_ref().filter(|_| is_charge(claim, store_holds.as_deref()));
            let found = charge.and_then(|charge| find_units(limit, charge, claim.cost));
            let Some((charged, source, clears)) = found else { return true };
            let (rate, key) = (usize::from(claim.rate), claim.table_key());
            let (mut overrun, mut own, mut reserved) = (0, charged, claim.cost);
            if let Some(extension) = extensions.find(claim.limit_index) {
                own = extension.settle_parts(&key, claim.cost, charged, now);
                overrun = extension.forgiven;
                reserved = reserved.saturating_add(extension.held);
            }
            match (claim.kind, store_holds.as_mut()) {
                (ClaimKind::Charge(record), store) => {
                    // The share never counts less than the debt, which is otherwise forgotten as units that left.
                    let settle_debt = || store.iter().for_each(|store| store.settle_debt(claim, own));
                    if own <= claim.cost {
                        settle_debt();
                    }
                    overrun += limit.settle_charge(rate, &key, (claim.cost, own), &record, now);
                    if own > claim.cost {
                        settle_debt();
                    }
                    if clears {
                        limit.clear_key(rate, &key, now);
                    }
                }
                // The store tells later how many units it forgave.
                (ClaimKind::InStore(index), Some(store)) => {
                    store.settle_hold(claim, index, (own, clears), &mut in_store);
                }
                (ClaimKind::Leased(mark), _) => {
                    if let Some(shared) = &chained.in_store {
                        shared.settle_leased(rate, claim.key_in_store(), mark, (claim.cost, own));
                    }
                }
                _ => {}
            }
            limit.subtract_reserved(rate, reserved);
            match settlements.last_mut().filter(|last| last.limit == limit.id) {
                // Of several rates, the one that forgives most.
                Some(last) => last.overrun = last.overrun.max(overrun),
                None => {
                    let (limit, limit_index) = (limit.id, claim.limit_index);
                    settlements.push(FinalCharge { limit, limit_index, reserved, charged, source, overrun });
                }
            }
            false
        });
        if let Some(store) = store_holds {
            in_store.into_iter().for_each(|one| store.outbox.settlements.queue_settlement(one));
        }
        settlements
    }
}

/// True if the response may settle the claim.
fn is_charge(claim: &Claim, store: Option<&StoreHolds>) -> bool {
    let is_stored = |store: &StoreHolds| store.charged_hold(claim).is_some();
    matches!(claim.kind, ClaimKind::Charge(_) | ClaimKind::Leased(_)) || store.is_some_and(is_stored)
}

/// True if the response clears the used units of its key.
fn clears_key(charge: &ChargeConfig, reading: &ResponseReading) -> bool {
    let status = reading.status().filter(|_| reading.reached_server());
    status.is_some_and(|status| charge.clear.contains(status.as_u16(), reading.grpc_code()))
}
