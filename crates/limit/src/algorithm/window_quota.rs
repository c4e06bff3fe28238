//! The numbers of all window algorithms, and what follows from them: decisions, debts, and conversions.

use std::task::Waker;

use super::meter::{Charged, Locked, MeterParams, MeterSpec, RateParams, SettleTerms};
use super::open_charges::ShardCharges;
use super::queue::NO_NODE;
use super::rate::ChargeMark;
use crate::table::{TableEntry, TableParams};
use crate::{ChargeRecord, Decision, Epoch, LimitOutcome, Units};
use sluicegate_base::calendar::Anchor;
use sluicegate_base::clock::Now;
use sluicegate_model::Rate;

/// Units per period, and as many again as debt where responses settle charges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowQuota {
    pub max: u64,
    /// The length of a window, ns.
    pub period: u64,
    pub epoch: Epoch,
    pub settle_terms: SettleTerms,
}

/// The carrying of a debt when the oldest units of a key leave. As many units of the debt count from then on; the
/// others are still the newest ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    /// The debt until then, all of it as new as that moment from now on.
    pub debt: u64,
    /// The part of it that did not leave: the newest units of those that stay.
    pub newest: u64,
    /// Units by which the usage falls.
    pub left: u64,
}

/// Parameters of a window, which has no queue.
pub(crate) trait WindowParams: TableParams<Self::Entry> + Sized {
    type Entry: TableEntry<Extra: AsMut<ShardCharges>>;
    /// Several rates with numbers of their own may count in one counter.
    const SHARES_COUNTERS: bool = false;

    fn quota(&self) -> &WindowQuota;

    /// Carries the debt of a counter.
    fn carry_debt(&self, counter: Locked<'_, Self>, now: Now);

    /// Counts by another date of its account from now on.
    fn follow_anchor(&self, _: &mut Self::Entry, _: Anchor, _: Now) {}

    /// Takes units if they fit; returns the mark by which their charge is known.
    fn take_units(
        &self,
        counter: Locked<'_, Self>,
        cost: u64,
        now: Now,
        overflow: bool,
    ) -> Option<ChargeMark>;

    /// The decision on `cost` more units.
    fn build_decision(&self, counter: &Locked<'_, Self>, cost: u64, now: Now) -> Decision;

    /// Forgets all units.
    fn forget_units(&self, (entry, extra): Locked<'_, Self>) {
        std::mem::take(entry).release_extra(extra);
    }
}

/// No window lasts longer than this (146 years), so that two of them fit 64 bits.
const PERIOD_MAX_NS: u128 = 1 << 62;

// === impl WindowQuota ===

impl WindowQuota {
    /// The quota of `rate`, capped at `max` units; `quota_of` finds that of parameters before a reload.
    pub(crate) fn new<N: RateParams>(
        rate: Rate,
        max: u64,
        spec: &MeterSpec<'_, N>,
        quota_of: impl FnOnce(&N) -> &WindowQuota,
    ) -> WindowQuota {
        let period = rate.period.as_nanos().clamp(1, PERIOD_MAX_NS) as u64;
        let epoch = spec.next_epoch(|before| quota_of(before).period == period);
        WindowQuota { max: rate.units.get().min(max), period, epoch, settle_terms: spec.settle_terms }
    }

    /// The units beyond the limit, which the next window carries.
    #[inline]
    pub(crate) fn debt(&self, used: u64) -> u64 {
        if self.settle_terms.settles { used.saturating_sub(self.max) } else { 0 }
    }

    /// The most units of a key, with its debt.
    pub(crate) fn units_max(&self) -> u64 {
        self.max.saturating_add(if self.settle_terms.settles { self.max } else { 0 })
    }

    /// The units of a key after its limit has changed from `before` to this: its debt stays, up to a whole limit, and
    /// a lower limit makes no debt of the units used within the earlier one. Where units are cut, those of a single
    /// charge are no longer known.
    pub(crate) fn convert_used(&self, used: u64, before: &WindowQuota, charges: &mut ShardCharges) -> u64 {
        if !self.settle_terms.settles {
            return used;
        }
        let debt = before.debt(used);
        let kept = (used - debt).min(self.max).saturating_add(debt.min(self.max));
        if kept < used {
            charges.forget_charges();
        }
        kept
    }

    /// The decision on `cost` units where `used` ones count; `wait_ns`: how long until so many units fit.
    #[inline]
    pub(crate) fn decide(
        &self,
        used: u64,
        cost: u64,
        full_ns: u64,
        wait_ns: impl Fn(u64) -> u64,
    ) -> Decision {
        let remaining = self.max.saturating_sub(used);
        let (outcome, retry_after_ns) = match cost <= remaining {
            true => (LimitOutcome::Admit, 0),
            false => (LimitOutcome::Reject, wait_ns(cost)),
        };
        let reset_ns = if remaining == 0 { wait_ns(1) } else { 0 };
        Decision { remaining, reset_ns, retry_after_ns, full_ns, ..Decision::without_numbers(outcome) }
    }

    /// The same where the units leave one after the other; `leaves_ns`: how long until so many have left, `carry_ns`:
    /// how long those count that are carried as debt.
    #[inline]
    pub(crate) fn decide_sliding(
        &self,
        used: u64,
        cost: u64,
        full_ns: u64,
        leaves_ns: impl Fn(u64) -> u64,
        carry_ns: impl Fn() -> u64,
    ) -> Decision {
        self.decide(used, cost, full_ns, |cost| {
            let missing = used.saturating_add(cost) - self.max;
            match missing.checked_sub(self.max).filter(|again| *again > 0 && self.settle_terms.settles) {
                // More than ever fits: those that leave first count once more as debt.
                Some(again) => leaves_ns(again).saturating_add(carry_ns()),
                None => leaves_ns(missing),
            }
        })
    }
}

impl<W: WindowParams> MeterParams for W {
    type Entry = W::Entry;

    fn max_units(&self, _: u8) -> u64 {
        self.quota().max
    }
}

impl<W: WindowParams> RateParams for W {
    type Wakers = [Waker; 0];
    const HAS_VIEWS: bool = W::SHARES_COUNTERS;

    fn epoch(&self) -> Epoch {
        self.quota().epoch
    }

    #[inline]
    fn follow_anchor(&self, entry: &mut W::Entry, anchor: Anchor, now: Now) {
        WindowParams::follow_anchor(self, entry, anchor, now);
    }

    #[inline]
    fn advance_entry(&self, counter: Locked<'_, Self>, now: Now, _: &mut [Waker; 0]) {
        self.carry_debt(counter, now);
    }

    #[inline]
    fn charge_entry(
        &self,
        (entry, extra): Locked<'_, Self>,
        units: &Units,
        now: Now,
        overflow: bool,
    ) -> Charged {
        let Some(since) = self.take_units((entry, extra), units.cost, now, overflow) else {
            return (self.build_decision(&(entry, extra), units.cost, now), None);
        };
        let (quota, charges) = (self.quota(), extra.as_mut());
        let epoch = charges.charge_epoch(quota.epoch);
        let charge = ChargeRecord { since, node: NO_NODE, overflow, displaces: false, epoch };
        if quota.settle_terms.clears && !overflow {
            charges.open_charge(&units.key, units.cost, &charge);
        }
        (self.build_decision(&(entry, extra), 0, now), Some(charge))
    }

    fn peek_entry(&self, counter: Locked<'_, Self>, units: &Units, now: Now) -> Decision {
        self.build_decision(&counter, units.cost, now)
    }

    fn reset_entry(&self, counter: Locked<'_, Self>, _: Now, _: &mut [Waker; 0]) -> u64 {
        self.forget_units(counter);
        0
    }
}

// === impl Carried ===

impl Carried {
    /// `units` of the `used` ones leave, of which `max` are no debt.
    pub(crate) fn of(units: u64, used: u64, max: u64) -> Carried {
        let debt = used.saturating_sub(max);
        let leaving_debt = debt.saturating_sub(used - units);
        Carried { debt, newest: debt - leaving_debt, left: units - leaving_debt }
    }
}
