//! Settles the claims of a request on limits that charge by the response.

pub(super) mod extend;

use smallvec::SmallVec;

use super::claims::holds::StoreHolds;
use super::claims::{Claim, ClaimKind, ClaimSet};
use crate::settlement::{ChargeSource, Extensions, ResponseReading, Settlement, compute_charge};
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::ChargeConfig;
use sluicegate_store::StoreSettlement;

/// One for each limit of the chain that charges by the response, in chain order.
pub type Settlements = SmallVec<[Settlement; 1]>;

// === impl ClaimSet ===

impl ClaimSet {
    pub(crate) fn count_reservations(&self) {
        for (claim, limit) in self.settled_claims() {
            limit.add_reserved(claim.rate.into(), claim.cost);
        }
    }

    /// The charges that depend on the response, with their limits.
    pub(crate) fn settled_claims(&self) -> impl Iterator<Item = (&Claim, &Limit)> {
        self.claims.iter().filter_map(|claim| {
            let limit: &Limit = &self.limits[usize::from(claim.limit_index)];
            limit.config.charge.as_ref()?;
            is_charge(claim, self.store_holds.as_deref()).then_some((claim, limit))
        })
    }

    /// Corrects the charges that are decided, each once: a settled claim is not held any longer.
    pub(crate) fn settle_charges(
        &mut self,
        is_decided: impl Fn(&ChargeConfig) -> bool,
        reading: &ResponseReading,
        bytes: u64,
        now: Now,
    ) -> Settlements {
        let find_units = |limit: &Limit, charge: &ChargeConfig, reserved| {
            let (charged, source) = compute_charge(&limit.config, charge, reserved, reading, bytes);
            FinalUnits { charged, source, clears: clears_key(charge, reading) }
        };
        let mut extensions = reading.take_extensions();
        let settlements = self.settle_by(
            |limit, charge, reserved| is_decided(charge).then(|| find_units(limit, charge, reserved)),
            &mut extensions,
            now,
        );
        reading.keep_extensions(extensions);
        settlements
    }

    /// Corrects the charges for which `find_units` knows the units, each once; it gets the units that were reserved.
    pub(crate) fn settle_by(
        &mut self,
        find_units: impl Fn(&Limit, &ChargeConfig, u64) -> Option<FinalUnits>,
        extensions: &mut Extensions,
        now: Now,
    ) -> Settlements {
        let mut settlements = Settlements::new();
        let mut in_store: SmallVec<[StoreSettlement; 1]> = SmallVec::new();
        let ClaimSet { limits, claims, store_holds, .. } = self;
        claims.retain(|claim| {
            let limit: &Limit = &limits[usize::from(claim.limit_index)];
            let Some(charge) = limit.config.charge.as_ref() else { return true };
            if !is_charge(claim, store_holds.as_deref()) {
                return true;
            }
            let Some(FinalUnits { charged, source, clears }) = find_units(limit, charge, claim.cost) else {
                return true;
            };
            let (rate, key) = (usize::from(claim.rate), claim.table_key());
            let (mut overrun, mut own, mut reserved) = (0, charged, claim.cost);
            if let Some(extension) = extensions.find(claim.limit_index) {
                own = extension.settle_parts(&key, claim.cost, charged, now);
                overrun = extension.forgiven;
                reserved = reserved.saturating_add(extension.held);
            }
            match (claim.kind, store_holds.as_mut()) {
                (ClaimKind::Charge(record), hold) => {
                    // The share never counts less than the debt, which is otherwise forgotten as units that left.
                    let settle_debt = || hold.iter().for_each(|hold| hold.settle_debt(claim, own));
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
                (ClaimKind::Shared(index), Some(hold)) => {
                    hold.settle_hold(claim, index, (own, clears), &mut in_store);
                }
                _ => {}
            }
            limit.subtract_reserved(rate, reserved);
            match settlements.last_mut().filter(|last| last.limit == limit.id) {
                // Of several rates, the one that forgives most.
                Some(last) => last.overrun = last.overrun.max(overrun),
                None => {
                    let (limit, limit_index) = (limit.id, claim.limit_index);
                    settlements.push(Settlement { limit, limit_index, reserved, charged, source, overrun });
                }
            }
            false
        });
        if let Some(hold) = store_holds {
            hold.queue_settlements(in_store);
        }
        settlements
    }
}

/// The final units of a charge.
pub(crate) struct FinalUnits {
    pub charged: u64,
    pub source: ChargeSource,
    /// The key forgets its used units.
    pub clears: bool,
}

/// True if the response may settle the claim.
fn is_charge(claim: &Claim, hold: Option<&StoreHolds>) -> bool {
    match claim.kind {
        ClaimKind::Charge(_) => true,
        ClaimKind::Shared(index) => hold.is_some_and(|hold| hold.is_charge(index)),
        _ => false,
    }
}

/// True if the response clears the used units of its key.
fn clears_key(charge: &ChargeConfig, reading: &ResponseReading) -> bool {
    let status = reading.status().filter(|_| reading.reached_server());
    status.is_some_and(|status| charge.clear.contains(status.as_u16(), reading.grpc_code()))
}
