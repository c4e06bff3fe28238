//! Extends the reservation of a request while its response streams, for limits that cut responses when nothing is left.
//!
//! A limit that is counted here is asked when the reservation is used up. The store is asked in the background before
//! that, so that the response does not wait: the units that stream meanwhile may exceed the limit.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use crate::chain::ChainPermit;
use crate::chain::claims::holds::{RateHold, StoreHolds};
use crate::chain::claims::{Claim, ClaimKind};
use crate::settlement::{
    ExtensionPart, LimitExtension, OwedPart, PartCharges, PartSource, ResponseReading, compute_charge,
    part_size,
};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{LimitId, OnFailure, OverrunAction};
use sluicegate_store::{Session, StoreSettlement, TakeOutcome, WantedUnits};

/// The time after a refusal for which the store is not asked again, ns.
const REFUSAL_TRUST_NS: u64 = 100_000_000;

/// The rest that a response has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// The response may go on.
    None,
    /// The response may go on until the store has answered, which wakes its task.
    Asked,
    /// Nothing is left of this limit.
    UsedUp(LimitId),
}

/// The facts of the request that an extension needs.
pub struct Extender<'a> {
    /// The facts of the response so far.
    pub reading: &'a ResponseReading,
    /// Bytes of the body that were delivered.
    pub bytes: u64,
    /// `None`: nothing is counted in the store.
    pub session: Option<&'a Rc<Session>>,
    /// The waker of the response's task, which an answer of the store wakes.
    pub waker: &'a Waker,
    /// The moment of the extension.
    pub now: Now,
}

/// The charges of one limit, which its response extends.
struct ExtendedClaims<'a> {
    limit: &'a Arc<Limit>,
    /// One for each rate; not empty.
    claims: &'a [Claim],
    extension: &'a mut LimitExtension,
    /// Units that the response has used.
    used: u64,
    /// Units that the request reserved, and those taken since.
    held: u64,
    now: Now,
}

// === impl ChainPermit ===

impl ChainPermit {
    /// Takes the units of the response beyond the reservation, of each limit that cuts responses.
    pub fn extend_reservations(&self, extender: &Extender<'_>) -> Overrun {
        let Extender { reading, bytes, now, .. } = *extender;
        let mut extensions = reading.take_extensions();
        let mut found = Overrun::None;
        for claims in self.held.claims.chunk_by(|one, next| one.limit_index == next.limit_index) {
            let (first, store) = (&claims[0], self.held.store_holds.as_deref());
            let limit = &self.held.limits[usize::from(first.limit_index)];
            let charge = limit.config.charge.as_ref().filter(|charge| charge.over == OverrunAction::Cut);
            let Some(charge) = charge else { continue };
            let extension = extensions.find_or_add(first.limit_index);
            let (used, _) = compute_charge(&limit.config, charge, first.cost, reading, bytes);
            let held = first.cost.saturating_add(extension.held);
            let own = ExtendedClaims { limit, claims, extension, used, held, now };
            let overrun = match (first.kind, store) {
                (ClaimKind::Charge(_), store) => own.extend_here(store),
                (ClaimKind::InStore(_), Some(store)) if !limit.is_dry_run(first.unenforced) => {
                    own.extend_in_store(store, extender)
                }
                _ => Overrun::None,
            };
            match (found, overrun) {
                (Overrun::UsedUp(_), _) | (_, Overrun::None) => {}
                (_, overrun) => found = overrun,
            }
        }
        reading.keep_extensions(extensions);
        found
    }
}

// === impl ExtendedClaims ===

impl ExtendedClaims<'_> {
    /// Units beyond those that are held.
    fn over(&self) -> u64 {
        self.used.saturating_sub(self.held)
    }

    /// Units of the variant that judged the request.
    fn units(&self, cost: u64) -> Units {
        let located = self.limit.config.locate_rate(self.claims[0].rate.into());
        let variant = located.map_or(0, |(variant, ..)| variant);
        Units { cost, variant, ..self.claims[0].to_units() }
    }

    fn hold_part(&mut self, units: u64, source: PartSource) {
        for claim in self.claims {
            self.limit.add_reserved(claim.rate.into(), units);
        }
        self.extension.add_part(ExtensionPart { units, source }, &self.claims[0].table_key(), self.now);
        self.held = self.held.saturating_add(units);
    }

    /// Holds units that are counted here, and owed to the store if there is a `debt`.
    fn hold_counted(&mut self, limit: &Arc<Limit>, units: u64, charges: PartCharges, debt: Option<OwedPart>) {
        if let Some(debt) = &debt {
            rates_of(self.claims).for_each(|rate| debt.add_units(rate, units));
        }
        self.hold_part(units, PartSource::Counted { limit: limit.clone(), charges, debt });
    }

    /// Takes a part of a limit that is counted here, or the rest: used units are charged in any case.
    fn extend_here(mut self, store: Option<&StoreHolds>) -> Overrun {
        let (limit, over) = (self.limit, self.over());
        if over == 0 {
            return Overrun::None;
        }
        let debt = store.and_then(|store| store.owed_part(self.claims[0].limit_index));
        let capacity = rates_of(self.claims)
            .map(|rate| limit.max_units(rate, self.claims[0].table_key().class))
            .min()
            .unwrap_or(1);
        let wanted = over.saturating_add(part_size(self.used, capacity));
        let granted = if wanted <= capacity { self.charge_rates(limit, wanted) } else { None };
        let is_granted = granted.is_some();
        let (units, charges) = match granted {
            Some(charges) => (wanted, charges),
            None => (over, self.force_units(over)),
        };
        self.hold_counted(limit, units, charges, debt);
        let one = self.units(1);
        let has_left = |rate| limit.peek_units(rate, &one, self.now).remaining > 0;
        match is_granted || limit.is_dry_run(one.unenforced) || rates_of(self.claims).all(has_left) {
            true => Overrun::None,
            false => Overrun::UsedUp(limit.id),
        }
    }

    /// Charges units to all rates, or to none.
    fn charge_rates(&self, limit: &Limit, cost: u64) -> Option<PartCharges> {
        let units = Units { unenforced: false, ..self.units(cost) };
        let mut charges = PartCharges::new();
        for rate in rates_of(self.claims) {
            let Some(charge) = limit.charge_units(rate, &units, self.now).1 else {
                for (rate, charge) in &charges {
                    limit.refund_charge(*rate, &units.key, cost, charge, || self.now);
                }
                return None;
            };
            charges.push((rate, charge));
        }
        Some(charges)
    }

    /// Adds units to the reservation whatever is left.
    fn force_units(&mut self, units: u64) -> PartCharges {
        let mut charges = PartCharges::new();
        let mut forgiven = 0;
        for claim in self.claims {
            let ClaimKind::Charge(record) = claim.kind else { continue };
            let (rate, key) = (usize::from(claim.rate), self.claims[0].table_key());
            forgiven = forgiven.max(self.limit.extend_charge(rate, &key, units, &record, self.now));
            charges.push((rate, record));
        }
        self.extension.forgiven = self.extension.forgiven.saturating_add(forgiven);
        charges
    }

    /// Asks the store for a part before the reservation is used up.
    fn extend_in_store(mut self, store: &StoreHolds, extender: &Extender<'_>) -> Overrun {
        let Some(first) = store.charged_hold(&self.claims[0]) else { return Overrun::None };
        let holds: SmallVec<[&RateHold; 2]> =
            self.claims.iter().filter_map(|claim| store.charged_hold(claim)).collect();
        let capacity_of =
            |own: &&RateHold| own.demand.limit.rules[own.rate].capacity_of(own.demand.units.key.class);
        let capacity = holds.iter().map(capacity_of).min().unwrap_or(1);
        let part = part_size(self.used, capacity);
        let wanted = |own: &Self| own.used.saturating_add(part).saturating_sub(own.held).min(capacity);
        if let Some(mut take) = self.extension.asked.take() {
            match take.poll_outcome(extender.waker) {
                None => self.extension.asked = Some(take),
                Some(TakeOutcome::Taken(marks)) => self.hold_stored((store, first), take.cost, marks),
                Some(TakeOutcome::Refused(left)) => {
                    if let Some(share) = first.demand.limit.admitting_share(&self.units(take.cost), self.now)
                    {
                        self.extend_by_share((store, first), &share, wanted(&self));
                    } else if left > 0 && !self.extension.takes_rest && self.over() <= left {
                        self.extension.takes_rest = true;
                        self.ask(&holds, left, extender);
                    } else {
                        self.refuse();
                    }
                }
                Some(TakeOutcome::Failed) => {
                    first.demand.limit.count_fallback();
                    match first.demand.limit.on_failure {
                        OnFailure::Allow => self.extension.free_until = self.used.saturating_add(part),
                        OnFailure::Reject => self.refuse(),
                        OnFailure::Local => {
                            let share = first.demand.limit.local_share();
                            for claim in self.claims {
                                first.demand.limit.seed_share(&share, claim.rate.into(), &claim.to_units());
                            }
                            self.extend_by_share((store, first), &share, wanted(&self));
                        }
                    }
                }
            }
        }
        let is_refused = self.extension.refused_until.is_some_and(|until| self.now < until);
        let reach = self.held.max(self.extension.free_until);
        let needs_part = reach < self.used.saturating_add(part.div_ceil(2));
        if self.extension.asked.is_none() && !is_refused && needs_part {
            self.extension.takes_rest = false;
            self.ask(&holds, wanted(&self), extender);
        }
        match (self.used > reach, self.extension.asked.is_some()) {
            (false, _) => Overrun::None,
            (true, true) => Overrun::Asked,
            (true, false) => Overrun::UsedUp(self.limit.id),
        }
    }

    fn ask(&mut self, holds: &[&RateHold], cost: u64, extender: &Extender<'_>) {
        let rates = holds.iter().map(|own| own.rate).collect();
        let (limit, key, units) = (holds[0].demand.limit.clone(), holds[0].demand.key, self.units(cost));
        let wanted = WantedUnits { limit, key, rates, units };
        self.extension.asked = extender.session.map(|session| session.start_take(wanted, extender.waker));
    }

    fn refuse(&mut self) {
        self.extension.refused_until = Some(Now(self.now.0.saturating_add(REFUSAL_TRUST_NS)));
    }

    /// The store has charged units.
    fn hold_stored(
        &mut self,
        (store, first): (&StoreHolds, &RateHold),
        units: u64,
        marks: SmallVec<[(usize, u64); 2]>,
    ) {
        let counted = self.units(units);
        marks.iter().for_each(|(rate, _)| first.demand.limit.count_in_share(*rate, &counted, self.now));
        let (limit, key, forgets) = (first.demand.limit.clone(), first.demand.key, false);
        let (anchor, class, reserved, used) = (counted.anchor, counted.key.class, units, 0);
        let settlement = StoreSettlement { limit, key, marks, reserved, used, forgets, anchor, class };
        self.hold_part(units, PartSource::Stored(settlement, store.outbox.clone()));
        if self.extension.takes_rest {
            self.refuse();
        }
    }

    /// Takes units of this gateway's own share, or as many as are left, which it owes to the store.
    fn extend_by_share(&mut self, (store, first): (&StoreHolds, &RateHold), share: &Arc<Limit>, wanted: u64) {
        let one = self.units(1);
        let left = rates_of(self.claims).map(|rate| share.peek_units(rate, &one, self.now).remaining);
        let units = wanted.min(left.min().unwrap_or(0));
        let charges = if units > 0 { self.charge_rates(share, units) } else { None };
        if units < wanted || charges.is_none() {
            self.refuse();
        }
        let Some(charges) = charges else { return };
        let (limit, outbox) = (first.demand.limit.clone(), store.outbox.clone());
        let debt = OwedPart { limit, key: first.demand.key, units: one, outbox };
        self.hold_counted(share, units, charges, Some(debt));
    }
}

fn rates_of(claims: &[Claim]) -> impl Iterator<Item = usize> {
    claims.iter().map(|claim| usize::from(claim.rate))
}
