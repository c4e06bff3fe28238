//! Everything that a request has taken from the limits of a chain, in every state; dropping it gives everything back.

pub(super) mod holds;

use std::sync::Arc;

use smallvec::SmallVec;

use super::{ChainRejection, ChainVerdict, ChainedLimit, Decisions, RateDecision};
use sluicegate_base::calendar::Anchor;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{ChargeRecord, Limit, SlotGrant, Units};
use sluicegate_store::{SharedKey, StoreOutbox};

use holds::{StoreHolds, uncharge_decision};

/// The claims of one request, in every phase of it.
pub(crate) struct ClaimSet {
    /// The limits of the chain; the local share replaces each one that is judged here in place of the store.
    pub limits: Arc<[ChainedLimit]>,
    pub claims: SmallVec<[Claim; 4]>,
    pub judged_at: Now,
    /// The charges, departures and slots that it holds in the store.
    pub store_holds: Option<Box<StoreHolds>>,
    /// The charges stay, however the request ends.
    keeps_charges: bool,
}

/// Units or slots that a request takes from one rate of a limit; packed, because it travels with the response.
#[repr(C, packed(8))]
pub(crate) struct Claim {
    id: u128,
    prefix: u64,
    pub cost: u64,
    pub kind: ClaimKind,
    pub limit_index: u16,
    pub rate: u16,
    /// The limit does not act on its key.
    pub unenforced: bool,
    anchor: Option<Anchor>,
    /// The request's class in the shares of the limit.
    pub class: u8,
}

#[derive(Clone, Copy)]
pub(crate) enum ClaimKind {
    Charge(ChargeRecord),
    /// Concurrency slots that are still to be taken, after the wait.
    WantedSlots {
        /// The hash of the request's `fair_by` value.
        fair_hash: u64,
    },
    /// Concurrency slots.
    Slots {
        grant: SlotGrant,
        fair_hash: u64,
    },
    /// Concurrency slots that a dry run lacks.
    LackedSlots,
    /// Held in the store: the index in [`StoreHolds::holds`].
    InStore(u32),
    /// Units of a lease, of which a refund names this mark.
    Leased(u64),
}

// === impl ClaimSet ===

impl ClaimSet {
    #[inline]
    pub(crate) fn new(limits: &Arc<[ChainedLimit]>, judged_at: Now) -> ClaimSet {
        ClaimSet {
            limits: limits.clone(),
            claims: SmallVec::new(),
            judged_at,
            store_holds: None,
            keeps_charges: false,
        }
    }

    /// The class of the request in the shares of a limit that it claims something of.
    #[cold]
    pub(crate) fn class_in(&self, limit_index: u16) -> u8 {
        let own = self.claims.iter().find(|claim| claim.limit_index == limit_index);
        own.map_or(u8::MAX, |claim| claim.class)
    }

    pub(crate) fn store_holds_mut(&mut self, outbox: &Arc<StoreOutbox>) -> &mut StoreHolds {
        self.store_holds.get_or_insert_with(|| Box::new(StoreHolds::new(outbox)))
    }

    /// Gives back every claim from index `from` on, and restores the numbers as if nothing had been taken.
    #[cold]
    pub(crate) fn undo_claims(&mut self, from: usize, decisions: &mut Decisions) {
        let ClaimSet { limits, claims, judged_at, store_holds, .. } = self;
        for claim in claims.drain(from..) {
            let (limit_index, rate) = (claim.limit_index, usize::from(claim.rate));
            let limit = &limits[usize::from(limit_index)];
            if let (ClaimKind::InStore(index), Some(store)) = (claim.kind, &*store_holds) {
                store.restore_numbers(index, decisions);
            }
            claim.give_back(limit, store_holds, false, *judged_at, || *judged_at);
            let is_own = |judged: &&mut RateDecision| {
                judged.limit_index == limit_index && usize::from(judged.rate) == rate
            };
            for RateDecision { decision, .. } in decisions.iter_mut().filter(is_own) {
                match claim.kind {
                    ClaimKind::Charge(_) => {
                        let peeked = limit.peek_units(rate, &claim.to_units(), *judged_at);
                        (decision.remaining, decision.reset_ns) = (peeked.remaining, peeked.reset_ns);
                    }
                    ClaimKind::Leased(_) => {
                        uncharge_decision(decision, claim.cost, limit.max_units(rate, claim.class));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Gives everything back to a request that is rejected.
    #[cold]
    pub(crate) fn reject<P>(
        mut self,
        rejection: ChainRejection,
        decisions: &mut Decisions,
    ) -> ChainVerdict<P> {
        self.undo_claims(0, decisions);
        ChainVerdict::Reject(rejection)
    }

    /// Displaces waiters, once all limits have accepted: a request that is rejected itself displaces no other.
    #[cold]
    pub(crate) fn displace_waiters(&self) {
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
    pub(crate) fn take_local_slots(&mut self, now: Now) -> Result<(), usize> {
        (0..self.claims.len()).try_for_each(|index| self.take_slots_of(index, now))
    }

    /// Takes the slots of one claim, if it wants any.
    ///
    /// # Errors
    /// Its index, if too few are free.
    pub(crate) fn take_slots_of(&mut self, index: usize, now: Now) -> Result<(), usize> {
        let claim = &mut self.claims[index];
        let ClaimKind::WantedSlots { fair_hash } = claim.kind else { return Ok(()) };
        let limit: &Arc<Limit> = &self.limits[usize::from(claim.limit_index)];
        let unenforced = claim.unenforced;
        let grant = limit.acquire_slots(claim.rate.into(), &claim.table_key(), claim.cost, unenforced, now);
        claim.kind = match grant {
            Some(grant) => ClaimKind::Slots { grant, fair_hash },
            None if limit.is_dry_run(unenforced) => ClaimKind::LackedSlots,
            None => return Err(index),
        };
        Ok(())
    }

    /// Marks that the charges stay from here on.
    #[inline]
    pub(crate) fn keep_charges(&mut self) {
        if std::mem::replace(&mut self.keeps_charges, true) {
            return;
        }
        if let Some(store) = &mut self.store_holds {
            store.keep_charges(&self.claims, self.judged_at);
        }
    }
}

impl Drop for ClaimSet {
    fn drop(&mut self) {
        let ClaimSet { limits, claims, judged_at, store_holds, keeps_charges } = self;
        for claim in claims.drain(..) {
            let limit = &limits[usize::from(claim.limit_index)];
            claim.give_back(limit, store_holds, *keeps_charges, *judged_at, Now::read_clock);
        }
    }
}

// === impl Claim ===

impl Claim {
    #[inline]
    pub(crate) fn new(units: &Units, limit_index: usize, rate: usize, kind: ClaimKind) -> Claim {
        let Units { key, cost, unenforced, anchor, .. } = *units;
        Claim {
            id: key.id,
            prefix: key.prefix,
            cost,
            kind,
            limit_index: limit_index as u16,
            rate: rate as u16,
            unenforced,
            anchor,
            class: key.class,
        }
    }

    /// The units for its own rate. A claim does not keep the variant, which its rate tells, nor the fair hash.
    pub(crate) fn to_units(&self) -> Units {
        Units {
            key: self.table_key(),
            cost: self.cost,
            variant: 0,
            fair_hash: 0,
            unenforced: self.unenforced,
            anchor: self.anchor,
        }
    }

    #[inline]
    pub(crate) fn table_key(&self) -> CounterKey {
        CounterKey { class: self.class, ..CounterKey::new(self.id, self.prefix) }
    }

    /// The key of a claim on a lease.
    pub(crate) fn key_in_store(&self) -> SharedKey {
        SharedKey(self.id.to_le_bytes())
    }

    /// Gives the claim back, at `now` or, for a charge, at the moment of its judgement if that is later. A charge that
    /// is kept stays.
    #[inline]
    fn give_back(
        &self,
        limit: &ChainedLimit,
        store_holds: &mut Option<Box<StoreHolds>>,
        keeps_charges: bool,
        judged_at: Now,
        now: impl FnOnce() -> Now,
    ) {
        let (rate, key) = (self.rate.into(), self.table_key());
        match self.kind {
            ClaimKind::WantedSlots { .. } | ClaimKind::LackedSlots => {}
            ClaimKind::InStore(index) => {
                if let Some(store) = store_holds {
                    store.release_hold(index, keeps_charges);
                }
            }
            ClaimKind::Slots { grant, .. } => limit.release_slots(rate, &key, self.cost, grant.overflow, now),
            ClaimKind::Charge(_) | ClaimKind::Leased(_) if keeps_charges => {}
            ClaimKind::Leased(mark) => {
                if let Some(shared) = &limit.in_store {
                    shared.settle_leased(rate, self.key_in_store(), mark, (self.cost, 0));
                }
            }
            ClaimKind::Charge(charge) => {
                limit.refund_charge(rate, &key, self.cost, &charge, || now().max(judged_at));
            }
        }
    }
}
