//! Settles the charges of a token bucket by the used units of responses.

use super::TokenBucketParams;
use crate::algorithm::meter::Locked;
use crate::algorithm::open_charges::{ChargedSpan, OpenUnits};
use crate::algorithm::schedule::{BucketUsage, Schedule, greatest_where};
use crate::algorithm::settle::{ForcedUnits, GivenBack, SettleParams};
use crate::table::CounterKey;
use sluicegate_base::clock::Now;

// === impl TokenBucketParams ===

impl<S: Schedule> SettleParams for TokenBucketParams<S> {
    fn give_back(&self, (used, charges): Locked<'_, Self>, given: &GivenBack<'_>, _: Now) {
        let GivenBack { key, charge, units } = *given;
        match charges.charged_since(key, charge).filter(|_| !charge.overflow) {
            Some(later) => {
                self.schedule.refund_to_tat(used, units, later.tat);
                charges.shorten_charge(key, charge, self.schedule.tick_rate().units_to_ticks(units));
            }
            // An overflow counter, with open charges that are not known.
            None => self.schedule.refund_usage(used, units, charge.since),
        }
    }

    fn credit_units(&self, (used, _): Locked<'_, Self>, _: &CounterKey, units: u64, now: Now) {
        let (rate, level) = (self.schedule.tick_rate(), used.level());
        let present = level.clamp_now(now);
        let full_at = rate.tat_ticks(level).saturating_sub(rate.backlog_ticks(level, present));
        self.schedule.refund_to_tat(used, units, full_at);
    }

    /// The units follow all others, as every charge does.
    fn force_units(&self, (used, charges): Locked<'_, Self>, forced: &ForcedUnits<'_>, now: Now) -> u64 {
        let present = used.level().clamp_now(now);
        let backlog = self.schedule.tick_rate().backlog_ticks(used.level(), present);
        let debt_max = if self.settle_terms.settles { self.deepest } else { 0 };
        let room = (self.backlog_max() + debt_max).saturating_sub(backlog);
        let fits = |units: u64| self.schedule.next_ticks(used, present, units) <= room;
        let taken = if fits(forced.units) { forced.units } else { greatest_where(0, forced.units, fits) };
        if taken > 0 {
            let (_, span) = self.schedule.charge_usage(used, present, taken);
            if self.settle_terms.settles && !forced.overflow {
                charges.add_to_span(forced.key, present.0, self.charged_span(present, span));
            }
        }
        forced.units - taken
    }

    /// Keeps the open units as if nothing else had been charged; never more than the charged ones.
    fn keep_open_units(
        &self,
        (used, charges): Locked<'_, Self>,
        key: &CounterKey,
        open: &[OpenUnits],
        now: Now,
    ) {
        let present = used.level().clamp_now(now);
        let span = |units: u64| self.schedule.last_ticks(used, units);
        let kept = open.iter().fold(ChargedSpan::default(), |kept, open| {
            let at = open.at_ns.map_or(present, Now);
            kept.followed_by(self.charged_span(at, span(open.units)))
        });
        charges.forget_closed(key, |at_ns, units| self.charged_span(Now(at_ns), span(units)));
        self.schedule.tick_rate().forget_usage(used.level_mut(), kept.tat);
    }
}
