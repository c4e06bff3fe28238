//! Extends the reservation of a request while its response streams, for limits that cut responses when nothing is left.
//!
//! A limit that is counted here is asked when the reservation is used up. The store is asked in the background before
//! that, so that the response does not wait: the units that stream meanwhile may exceed the limit.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use crate::chain::claims::holds::{RateHold, StoreHolds};
use crate::chain::claims::{Claim, ClaimKind, ClaimSet};
use crate::settlement::{
    ExtensionPart, LimitExtension, OwedPart, PartSource, ResponseReading, compute_charge, extension_step,
};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{ChargeRecord, Limit, Units};
use sluicegate_model::{LimitId, OnFailure, OverrunAction};
use sluicegate_store::{Session, TakeOutcome, WantedUnits};

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
    pub reading: &'a ResponseReading,
    /// Bytes of the body that were delivered.
    pub bytes: u64,
    /// `None`: nothing is counted in the store.
    pub session: Option<&'a Rc<Session>>,
    pub waker: &'a Waker,
    pub now: Now,
}

/// The charges of one limit, which its response extends.
struct ExtendedClaims<'a> {
    limit: &'a Arc<Limit>,
    claims: &'a [Claim],
    key: CounterKey,
    /// Units that the response has used.
    used: u64,
    /// Units that the request reserved, and those taken since.
    held: u64,
    now: Now,
}

// === impl ClaimSet ===

impl ClaimSet {
    /// Takes the units of the response beyond the reservation, of each limit that cuts responses.
    pub(crate) fn extend_reservations(&self, extender: &Extender<'_>) -> Overrun {
        let mut extensions = extender.reading.take_extensions();
        let (mut found, mut from) = (Overrun::None, 0);
        while let Some(first) = self.claims.get(from) {
            let limit_index = first.limit_index;
            let own = self.claims[from..].iter().take_while(|claim| claim.limit_index == limit_index).count();
            let claims = from..from + own;
            from = claims.end;
            let charge = self.limits[usize::from(limit_index)].config.charge.as_ref();
            if charge.is_none_or(|charge| charge.over != OverrunAction::Cut) {
                continue;
            }
            match (found, self.extend_limit(claims, extensions.find_or_add(limit_index), extender)) {
                (Overrun::UsedUp(_), _) | (_, Overrun::None) => {}
                (_, overrun) => found = overrun,
            }
        }
        extender.reading.keep_extensions(extensions);
        found
    }

    fn extend_limit(
        &self,
        claims: Range<usize>,
        extension: &mut LimitExtension,
        extender: &Extender<'_>,
    ) -> Overrun {
        let claims = &self.claims[claims];
        let (Some(first), Extender { reading, bytes, now, .. }) = (claims.first(), extender) else {
            return Overrun::None;
        };
        let limit: &Arc<Limit> = &self.limits[usize::from(first.limit_index)];
        let Some(charge) = &limit.config.charge else { return Overrun::None };
        let reserved = first.cost;
        let (used, _) = compute_charge(&limit.config, charge, reserved, reading, *bytes);
        let held = reserved.saturating_add(extension.held);
        let own = ExtendedClaims { limit, claims, key: first.table_key(), used, held, now: *now };
        match (first.kind, self.store_holds.as_deref()) {
            (ClaimKind::Charge(_), hold) => own.extend_here(extension, hold),
            (ClaimKind::Shared(index), Some(hold))
                if hold.is_charge(index) && !limit.is_dry_run(first.unenforced) =>
            {
                own.extend_in_store(extension, hold, extender)
            }
            _ => Overrun::None,
        }
    }
}

// === impl ExtendedClaims ===

impl ExtendedClaims<'_> {
    /// Units beyond those that are held.
    fn over(&self) -> u64 {
        self.used.saturating_sub(self.held)
    }

    fn hold_part(&self, extension: &mut LimitExtension, units: u64, source: PartSource) {
        for claim in self.claims {
            self.limit.add_reserved(claim.rate.into(), units);
        }
        extension.add_part(ExtensionPart { units, source }, &self.key, self.now);
    }

    /// Takes a step of a limit that is counted here, or the rest: used units are charged in any case.
    fn extend_here(&self, extension: &mut LimitExtension, hold: Option<&StoreHolds>) -> Overrun {
        let over = self.over();
        if over == 0 {
            return Overrun::None;
        }
        let rates = || self.claims.iter().map(|claim| usize::from(claim.rate));
        let debt = hold.and_then(|hold| hold.owed_part(self.claims[0].limit_index));
        let capacity = rates().map(|rate| self.limit.max_units(rate)).min().unwrap_or(1);
        let wanted = over.saturating_add(extension_step(self.used, capacity));
        let granted = match wanted <= capacity {
            true => charge_rates(self.limit, rates(), self.key, wanted, self.now),
            false => None,
        };
        let is_granted = granted.is_some();
        let (units, charges) = match granted {
            Some(charges) => (wanted, charges),
            None => (over, self.force_units(extension, over)),
        };
        if let Some(debt) = &debt {
            rates().for_each(|rate| debt.add_units(rate, units));
        }
        self.hold_part(extension, units, PartSource::Counted { limit: self.limit.clone(), charges, debt });
        let one = Units { cost: 1, ..self.claims[0].to_units() };
        let has_left = |rate| self.limit.peek_units(rate, &one, self.now).remaining > 0;
        match is_granted || self.limit.is_dry_run(self.claims[0].unenforced) || rates().all(has_left) {
            true => Overrun::None,
            false => Overrun::UsedUp(self.limit.id),
        }
    }

    /// Adds units to the reservation whatever is left.
    fn force_units(
        &self,
        extension: &mut LimitExtension,
        units: u64,
    ) -> SmallVec<[(usize, ChargeRecord); 1]> {
        let mut charges = SmallVec::new();
        let mut forgiven = 0;
        for claim in self.claims {
            let ClaimKind::Charge(record) = claim.kind else { continue };
            let rate = usize::from(claim.rate);
            forgiven = forgiven.max(self.limit.extend_charge(rate, &self.key, units, &record, self.now));
            charges.push((rate, record));
        }
        extension.forgiven = extension.forgiven.saturating_add(forgiven);
        charges
    }

    /// Asks the store for a step before the reservation is used up.
    fn extend_in_store(
        mut self,
        extension: &mut LimitExtension,
        hold: &StoreHolds,
        extender: &Extender<'_>,
    ) -> Overrun {
        let holds: SmallVec<[&RateHold; 2]> =
            self.claims.iter().filter_map(|claim| hold.charged_hold(claim)).collect();
        let Some(first) = holds.first() else { return Overrun::None };
        let capacity = holds.iter().map(|own| own.limit.rules[own.rate].capacity()).min().unwrap_or(1);
        let step = extension_step(self.used, capacity);
        let wanted = |own: &Self| own.used.saturating_add(step).saturating_sub(own.held).min(capacity);
        let ask = |cost: u64, extension: &mut LimitExtension| {
            let rates = holds.iter().map(|own| own.rate).collect();
            let units = Units { cost, ..self.claims[0].to_units() };
            let wanted = WantedUnits { limit: first.limit.clone(), key: first.key, rates, units };
            extension.asked = extender.session.map(|session| session.start_take(wanted, extender.waker));
        };
        if let Some(take) = extension.asked.take() {
            match take.poll_outcome(extender.waker) {
                None => extension.asked = Some(take),
                Some(TakeOutcome::Taken(marks)) => {
                    self.hold_stored(extension, (hold, first), take.cost, marks)
                }
                Some(TakeOutcome::Refused(left)) => {
                    let units = Units { cost: take.cost, ..self.claims[0].to_units() };
                    if let Some(share) = first.limit.admitting_share(&units, self.now) {
                        self.extend_by_share(extension, (hold, first), &share, wanted(&self));
                    } else if left > 0 && !extension.takes_rest && self.over() <= left {
                        extension.takes_rest = true;
                        ask(left, extension);
                    } else {
                        self.refuse(extension);
                    }
                }
                Some(TakeOutcome::Failed) => {
                    first.limit.count_fallback();
                    match first.limit.on_failure {
                        OnFailure::Allow => extension.free_until = self.used.saturating_add(step),
                        OnFailure::Reject => self.refuse(extension),
                        OnFailure::Local => {
                            let share = first.limit.local_share();
                            self.seed_share(first, &share);
                            self.extend_by_share(extension, (hold, first), &share, wanted(&self));
                        }
                    }
                }
            }
        }
        let is_refused = extension.refused_until.is_some_and(|until| self.now < until);
        let reach = self.held.max(extension.free_until);
        if extension.asked.is_none() && !is_refused && reach < self.used.saturating_add(step.div_ceil(2)) {
            extension.takes_rest = false;
            ask(wanted(&self), extension);
        }
        match (self.used > reach, extension.asked.is_some()) {
            (false, _) => Overrun::None,
            (true, true) => Overrun::Asked,
            (true, false) => Overrun::UsedUp(self.limit.id),
        }
    }

    fn refuse(&self, extension: &mut LimitExtension) {
        extension.refused_until = Some(Now(self.now.0.saturating_add(REFUSAL_TRUST_NS)));
    }

    /// The store has charged units.
    fn hold_stored(
        &mut self,
        extension: &mut LimitExtension,
        (hold, first): (&StoreHolds, &RateHold),
        units: u64,
        marks: SmallVec<[(usize, u64); 2]>,
    ) {
        let counted = Units { cost: units, ..self.claims[0].to_units() };
        marks.iter().for_each(|(rate, _)| first.limit.count_in_share(*rate, &counted, self.now));
        let (limit, key, outbox) = (first.limit.clone(), first.key, hold.outbox().clone());
        self.hold_part(extension, units, PartSource::Stored { limit, key, marks, outbox });
        self.held = self.held.saturating_add(units);
        if extension.takes_rest {
            self.refuse(extension);
        }
    }

    fn seed_share(&self, first: &RateHold, share: &Limit) {
        for claim in self.claims {
            first.limit.seed_share(share, claim.rate.into(), &claim.to_units());
        }
    }

    /// Takes units of this gateway's own share, or as many as are left, which it owes to the store.
    fn extend_by_share(
        &mut self,
        extension: &mut LimitExtension,
        (hold, first): (&StoreHolds, &RateHold),
        share: &Arc<Limit>,
        wanted: u64,
    ) {
        let rates = || self.claims.iter().map(|claim| usize::from(claim.rate));
        let one = Units { cost: 1, ..self.claims[0].to_units() };
        let left = rates().map(|rate| share.peek_units(rate, &one, self.now).remaining).min().unwrap_or(0);
        let units = wanted.min(left);
        let charges = if units > 0 { charge_rates(share, rates(), self.key, units, self.now) } else { None };
        if units < wanted || charges.is_none() {
            self.refuse(extension);
        }
        let Some(charges) = charges else { return };
        let (limit, outbox) = (first.limit.clone(), hold.outbox().clone());
        let debt = OwedPart { limit, key: first.key, units: one, outbox };
        rates().for_each(|rate| debt.add_units(rate, units));
        let source = PartSource::Counted { limit: share.clone(), charges, debt: Some(debt) };
        self.hold_part(extension, units, source);
        self.held = self.held.saturating_add(units);
    }
}

/// Charges units to all rates, or to none.
fn charge_rates(
    limit: &Limit,
    rates: impl Iterator<Item = usize>,
    key: CounterKey,
    cost: u64,
    now: Now,
) -> Option<SmallVec<[(usize, ChargeRecord); 1]>> {
    let units = Units { key, cost, variant: 0, fair_hash: 0, unenforced: false };
    let mut charges: SmallVec<[(usize, ChargeRecord); 1]> = SmallVec::new();
    for rate in rates {
        let Some(charge) = limit.charge_units(rate, &units, now).1 else {
            charges.iter().for_each(|(rate, charge)| limit.refund_charge(*rate, &key, cost, charge, || now));
            return None;
        };
        charges.push((rate, charge));
    }
    Some(charges)
}
