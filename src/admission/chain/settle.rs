//! Settles the claims of a request whose limits charge by the response.

use smallvec::SmallVec;

use super::claim::{Claim, ClaimKind};
use super::claim_set::ClaimSet;
use super::store_lease::StoreLease;
use crate::admission::settlement::{ResponseReading, Settlement, compute_charge};
use crate::base::clock::Now;
use crate::config::{ChargeConfig, LimitId, OverrunAction};
use crate::limit::{Limit, Units};
use crate::shared::StoreSettlement;

/// One for each limit of the chain that charges by the response, in chain order.
pub type Settlements = SmallVec<[Settlement; 1]>;

// === impl ClaimSet ===

impl ClaimSet {
    pub(super) fn count_reservations(&self) {
        for (claim, limit) in self.settled_claims() {
            limit.add_reserved(claim.rate.into(), claim.cost);
        }
    }

    /// The charges that depend on the response, with their limits.
    fn settled_claims(&self) -> impl Iterator<Item = (&Claim, &Limit)> {
        self.claims.iter().filter_map(|claim| {
            let limit: &Limit = &self.limits[usize::from(claim.limit_index)];
            limit.config.charge.as_ref()?;
            is_charge(claim, self.store_lease.as_deref()).then_some((claim, limit))
        })
    }

    pub(super) fn charge_overrun(
        &mut self,
        reading: &ResponseReading,
        bytes: u64,
        now: Now,
    ) -> Option<LimitId> {
        let mut used_up = None;
        let limits = &self.limits;
        for claim in &mut self.claims {
            let limit = &limits[usize::from(claim.limit_index)];
            let (Some(charge), ClaimKind::Charge(record)) = (&limit.config.charge, claim.kind) else {
                continue;
            };
            if charge.over != OverrunAction::Cut {
                continue;
            }
            let (used, _) = compute_charge(&limit.config, charge, claim.cost, reading, bytes);
            if used <= claim.cost {
                continue;
            }
            let (rate, key) = (usize::from(claim.rate), claim.table_key());
            limit.settle_charge(rate, &key, (claim.cost, used), &record, now);
            limit.subtract_reserved(rate, claim.cost);
            limit.add_reserved(rate, used);
            claim.cost = used;
            let one = Units { cost: 1, ..claim.to_units() };
            if limit.peek_units(rate, &one, now).remaining == 0 && !limit.is_dry_run(claim.unenforced) {
                used_up = Some(limit.id);
            }
        }
        used_up
    }

    /// Corrects the charges that are decided, each once: a settled claim is not held any longer.
    pub(super) fn settle_charges(
        &mut self,
        is_decided: impl Fn(&ChargeConfig) -> bool,
        reading: &ResponseReading,
        bytes: u64,
        now: Now,
    ) -> Settlements {
        let mut settlements = Settlements::new();
        let mut in_store: SmallVec<[StoreSettlement; 1]> = SmallVec::new();
        let ClaimSet { limits, claims, store_lease, .. } = self;
        claims.retain(|claim| {
            let limit = &limits[usize::from(claim.limit_index)];
            let Some(charge) = limit.config.charge.as_ref().filter(|charge| is_decided(charge)) else {
                return true;
            };
            if !is_charge(claim, store_lease.as_deref()) {
                return true;
            }
            let (charged, source) = compute_charge(&limit.config, charge, claim.cost, reading, bytes);
            let (rate, key) = (usize::from(claim.rate), claim.table_key());
            let clears = clears_key(charge, reading);
            let mut overrun = 0;
            match (claim.kind, store_lease.as_mut()) {
                (ClaimKind::Charge(record), lease) => {
                    overrun = limit.settle_charge(rate, &key, (claim.cost, charged), &record, now);
                    if clears {
                        limit.clear_key(rate, &key, now);
                    }
                    if let Some(lease) = lease {
                        lease.settle_debt(claim, charged);
                    }
                }
                // The store tells later how many units it forgave.
                (ClaimKind::Shared(index), Some(lease)) => {
                    lease.settle_lease(claim, index, (charged, clears), &mut in_store);
                }
                _ => {}
            }
            limit.subtract_reserved(rate, claim.cost);
            match settlements.last_mut().filter(|last| last.limit == limit.id) {
                // Of several rates, the one that forgives most.
                Some(last) => last.overrun = last.overrun.max(overrun),
                None => settlements.push(Settlement {
                    limit: limit.id,
                    reserved: claim.cost,
                    charged,
                    source,
                    overrun,
                }),
            }
            false
        });
        if let Some(lease) = store_lease {
            lease.queue_settlements(in_store);
        }
        settlements
    }
}

/// Whether the response may settle the claim.
fn is_charge(claim: &Claim, lease: Option<&StoreLease>) -> bool {
    match claim.kind {
        ClaimKind::Charge(_) => true,
        ClaimKind::Shared(index) => lease.is_some_and(|lease| lease.is_charge(index)),
        _ => false,
    }
}

/// Whether the response forgets what its key has used.
fn clears_key(charge: &ChargeConfig, reading: &ResponseReading) -> bool {
    let status = reading.status().filter(|_| reading.reached_server());
    status.is_some_and(|status| charge.clear.contains(status.as_u16(), reading.grpc_code()))
}
