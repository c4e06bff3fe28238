//! Spare departures of a queue: those that a waiter has left behind and the store cannot take back are kept for the
//! next requests of their key.

use super::SharedLimit;
use crate::script::bucket_remainder;
use crate::script::call::KeyClass;
use crate::script::rule_shape::RuleShape;
use crate::settlements::StoreUnits;
use crate::{Departure, RateAnswer, SharedKey};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, LimitOutcome};

// === impl SharedLimit ===

impl SharedLimit {
    /// Keeps spare departures by the numbers in force, where one rate alone decides in order of arrival; those by other
    /// numbers lapse, and all of them in a pause.
    pub(super) fn renew_spares(&self) {
        let config = &self.config;
        let is_plain = !self.is_dry_run()
            && config.fair_by.is_empty()
            && config.shadow.is_none()
            && config.algorithm_variants().all(|numbers| numbers.rate_count() == 1);
        for (rate, own) in self.departures.iter().enumerate() {
            let rule = &self.rules[rate];
            let is_queue = matches!(rule.shape, RuleShape::LeakyBucket { .. })
                && rule.class() == KeyClass::Entry
                && self.places_of(rate).count() == 1;
            own.set_spare_shape((is_plain && is_queue).then_some(rule.shape));
        }
    }

    /// Takes a spare departure for a request, as the store would have handed it out.
    pub(crate) fn take_spare(&self, rate: usize, key: SharedKey, cost: u64, now: Now) -> Option<RateAnswer> {
        let shape = self.rules[rate].shape;
        let RuleShape::LeakyBucket { num, unit, queue } = shape else { return None };
        let (departure, empty_at) = self.departures[rate].take_spare(shape, key, cost, now)?;
        let level = (empty_at.ns_since(now) / 1_000).saturating_mul(num);
        let rest = bucket_remainder(num, unit, queue.depth, level);
        let decision = Decision {
            wait_ns: departure.due.ns_since(now),
            remaining: rest.remaining,
            reset_ns: rest.reset_us.saturating_mul(1_000),
            full_ns: rest.full_us.saturating_mul(1_000),
            ..Decision::without_numbers(LimitOutcome::Wait)
        };
        Some(RateAnswer::of_units(decision, departure.mark))
    }

    /// True if a spare departure waits for such a request, so that an earlier rejection says nothing.
    pub fn has_spare(&self, rate: usize, key: SharedKey, cost: u64, now: Now) -> bool {
        self.departures[rate].has_spare(self.rules[rate].shape, key, cost, now)
    }
}

// === impl StoreUnits ===

impl StoreUnits {
    /// Keeps the departure that the store was offered at the time `store_us` of its clock, and did not take back,
    /// because the bucket had `level` ticks: later departures.
    pub(crate) fn keep_spare(&self, (store_us, level): (u64, u64), now: Now) {
        let shape = self.limit.rules[self.rate].shape;
        let RuleShape::LeakyBucket { num, queue, .. } = shape else { return };
        let (mark, empty_us) = (self.mark, store_us.saturating_add(level / num));
        // The mark is the moment, rounded down, at which the bucket was empty behind this departure.
        let ahead_us = shape.scale_units(self.cost).saturating_add(queue.ahead) / num;
        let due_us = mark.saturating_add(1).saturating_sub(ahead_us);
        if empty_us > mark {
            let local =
                |us: u64| Now(now.0.saturating_add(us.saturating_sub(store_us).saturating_mul(1_000)));
            let departure = Departure { due: local(due_us), cost: self.cost, mark };
            let times = (local(empty_us), now);
            self.limit.departures[self.rate].keep_spare(shape, self.key, departure, times);
        }
    }
}
