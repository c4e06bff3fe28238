//! Everything that a request has taken from the limits of a chain; dropping it gives everything back.

use std::sync::Arc;

use smallvec::SmallVec;

use super::claim::{Claim, ClaimKind};
use super::store_lease::StoreLease;
use super::{ChainedLimit, Decisions};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, Limit};
use sluicegate_store::StoreOutbox;

/// The claims of one request, in every phase of it.
pub(super) struct ClaimSet {
    /// The limits of the chain; the local share replaces each one that is judged here in place of the store.
    pub limits: Arc<[ChainedLimit]>,
    pub claims: SmallVec<[Claim; 4]>,
    pub judged_at: Now,
    /// The charges, departures and slots that it holds in the store.
    pub store_lease: Option<Box<StoreLease>>,
    /// The charges stay, however the request ends.
    keeps_charges: bool,
}

// === impl ClaimSet ===

impl ClaimSet {
    #[inline]
    pub(super) fn new(limits: &Arc<[ChainedLimit]>, judged_at: Now) -> ClaimSet {
        ClaimSet {
            limits: limits.clone(),
            claims: SmallVec::new(),
            judged_at,
            store_lease: None,
            keeps_charges: false,
        }
    }

    pub(super) fn lease_mut(&mut self, outbox: &Arc<StoreOutbox>) -> &mut StoreLease {
        self.store_lease.get_or_insert_with(|| Box::new(StoreLease::new(outbox)))
    }

    /// Gives back every claim from index `from` on, and restores the numbers as if nothing had been taken.
    #[cold]
    pub(super) fn undo_claims(&mut self, from: usize, decisions: &mut Decisions) {
        let ClaimSet { limits, claims, judged_at, store_lease, .. } = self;
        for claim in claims.drain(from..) {
            match (claim.kind, store_lease.as_mut()) {
                (ClaimKind::Charge(charge), _) => {
                    let (limit_index, rate) = (claim.limit_index, usize::from(claim.rate));
                    let limit = &limits[usize::from(limit_index)];
                    limit.refund_charge(rate, &claim.table_key(), claim.cost, &charge, || *judged_at);
                    let Decision { remaining, reset_ns, .. } =
                        limit.peek_units(rate, &claim.to_units(), *judged_at);
                    for judged in decisions.iter_mut() {
                        if judged.limit_index == limit_index && usize::from(judged.rate) == rate {
                            judged.decision = Decision { remaining, reset_ns, ..judged.decision };
                        }
                    }
                }
                (ClaimKind::Shared(lease_index), Some(lease)) => {
                    lease.restore_numbers(lease_index, decisions);
                    lease.release_lease(lease_index, false);
                }
                (ClaimKind::Slots { grant, .. }, _) => {
                    let limit = &limits[usize::from(claim.limit_index)];
                    let (rate, key) = (claim.rate.into(), claim.table_key());
                    limit.release_slots(rate, &key, claim.cost, grant.shared, || *judged_at);
                }
                _ => {}
            }
        }
    }

    /// Displaces waiters, once all limits have accepted: a request that is rejected itself displaces no other.
    #[cold]
    pub(super) fn displace_waiters(&self) {
        for claim in &self.claims {
            let ClaimKind::Charge(charge) = claim.kind else { continue };
            if charge.displaces() {
                let limit = &self.limits[usize::from(claim.limit_index)];
                limit.displace_waiter(claim.rate.into(), &claim.table_key(), &charge, self.judged_at);
            }
        }
    }

    /// Takes the concurrency slots that are counted here.
    ///
    /// # Errors
    /// The index of the first claim on a limit with too few; those before it are taken.
    #[inline]
    pub(super) fn take_local_slots(&mut self, now: Now) -> Result<(), usize> {
        (0..self.claims.len()).try_for_each(|index| self.take_slots_of(index, now))
    }

    /// Takes the slots of one claim, if it wants any.
    ///
    /// # Errors
    /// Its index, if too few are free.
    #[inline]
    pub(super) fn take_slots_of(&mut self, index: usize, now: Now) -> Result<(), usize> {
        let claim = &mut self.claims[index];
        let ClaimKind::WantedSlots { fair } = claim.kind else { return Ok(()) };
        let limit: &Arc<Limit> = &self.limits[usize::from(claim.limit_index)];
        let unenforced = claim.unenforced;
        let grant = limit.acquire_slots(claim.rate.into(), &claim.table_key(), claim.cost, unenforced, now);
        claim.kind = match grant {
            Some(grant) => ClaimKind::Slots { grant, fair },
            None if limit.is_dry_run(unenforced) => ClaimKind::LackedSlots,
            None => return Err(index),
        };
        Ok(())
    }

    /// Marks that the charges stay from here on.
    #[inline]
    pub(super) fn keep_charges(&mut self) {
        if std::mem::replace(&mut self.keeps_charges, true) {
            return;
        }
        if let Some(lease) = &mut self.store_lease {
            lease.keep_charges(&self.claims, self.judged_at);
        }
    }

    fn release_claims(&mut self) {
        for claim in self.claims.drain(..) {
            let limit = &self.limits[usize::from(claim.limit_index)];
            match claim.kind {
                ClaimKind::WantedSlots { .. } | ClaimKind::LackedSlots => {}
                ClaimKind::Shared(lease_index) => {
                    if let Some(lease) = &mut self.store_lease {
                        lease.release_lease(lease_index, self.keeps_charges);
                    }
                }
                ClaimKind::Slots { grant, .. } => {
                    let (rate, key) = (claim.rate.into(), claim.table_key());
                    limit.release_slots(rate, &key, claim.cost, grant.shared, Now::read_clock);
                }
                ClaimKind::Charge(_) if self.keeps_charges => {}
                ClaimKind::Charge(charge) => {
                    let now = || Now::read_clock().max(self.judged_at);
                    limit.refund_charge(claim.rate.into(), &claim.table_key(), claim.cost, &charge, now);
                }
            }
        }
    }
}

impl Drop for ClaimSet {
    fn drop(&mut self) {
        self.release_claims();
    }
}
