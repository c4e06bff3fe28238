//! Departures that a gateway keeps for the next requests of their key: those that a waiter has left behind and the
//! store cannot take back, and those of a leased queue that were taken in advance.

use std::sync::atomic::Ordering::Relaxed;

use super::SharedLimit;
use crate::script::bucket_remainder;
use crate::script::call::KeyClass;
use crate::script::rule_shape::{QueueTicks, RuleShape};
use crate::settlements::StoreUnits;
use crate::{Departure, RateAnswer, SharedKey};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, LimitOutcome};

/// Departures of one call at most.
const ASKED_MAX: u64 = 1_024;
/// The longest time for which a gateway asks in advance.
const TERM_MAX_NS: u64 = 250_000_000;

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
    pub(crate) fn take_spare(&self, rate: usize, of: (SharedKey, u64), now: Now) -> Option<RateAnswer> {
        let shape = self.rules[rate].shape;
        let RuleShape::LeakyBucket { num, unit, queue } = shape else { return None };
        if self.config.leased {
            self.departures[rate].count_request(of, term_ns(num, queue), now);
        }
        let (departure, empty_at) = self.departures[rate].take_spare(shape, of, now)?;
        self.counts.leased.fetch_add(1, Relaxed);
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
    pub fn has_spare(&self, rate: usize, of: (SharedKey, u64), now: Now) -> bool {
        self.departures[rate].has_spare(self.rules[rate].shape, of, now)
    }

    /// The number of departures to ask the store for, that of the request included: 1 unless the queue is leased. They
    /// take a quarter of the longest wait at most.
    pub(crate) fn departures_to_ask(&self, rate: usize, of: (SharedKey, u64), now: Now) -> u64 {
        match self.rules[rate].shape {
            RuleShape::LeakyBucket { num, unit, queue } if self.config.leased => {
                let most = (queue.wait_max / 4 / unit.saturating_mul(of.1).max(1)).min(ASKED_MAX);
                self.departures[rate].departures_to_ask(of, term_ns(num, queue), most, now)
            }
            _ => 1,
        }
    }

    /// Notes the answer to a question about `count` departures.
    pub(crate) fn note_departures(
        &self,
        rate: usize,
        of: (SharedKey, u64),
        count: u64,
        answer: &RateAnswer,
        now: Now,
    ) {
        if let (RuleShape::LeakyBucket { num, queue, .. }, true) =
            (self.rules[rate].shape, self.config.leased)
        {
            let next_ns = answer.decision.full_ns.saturating_sub((queue.ahead / num).saturating_mul(1_000));
            self.departures[rate].note_next(of, count, Now(now.0.saturating_add(next_ns)));
        }
    }

    /// Keeps all but the first of `count` departures that the store handed out together, at the time `store_us` of its
    /// clock; the answer becomes that of the first.
    pub(crate) fn share_out(
        &self,
        rate: usize,
        of: (SharedKey, u64),
        count: u64,
        (answer, store_us): (&mut RateAnswer, u64),
        now: Now,
    ) {
        self.note_departures(rate, of, count, answer, now);
        let RuleShape::LeakyBucket { num, unit, .. } = self.rules[rate].shape else { return };
        if answer.mark == 0 {
            return;
        }
        let times = (store_us, store_us.saturating_add(answer.decision.full_ns / 1_000));
        let last = answer.mark;
        for index in (1..=count).rev() {
            let behind = of.1.saturating_mul(count - index).saturating_mul(unit);
            answer.mark = last.saturating_sub(behind.div_ceil(num));
            if index > 1 {
                self.keep_departure(rate, of, answer.mark, times, now);
            }
        }
    }

    /// Keeps a departure with this mark for a request to come. `store_us` is the time of the store's clock, and
    /// `empty_us` that at which its bucket is empty.
    fn keep_departure(
        &self,
        rate: usize,
        (key, cost): (SharedKey, u64),
        mark: u64,
        (store_us, empty_us): (u64, u64),
        now: Now,
    ) {
        let shape = self.rules[rate].shape;
        let RuleShape::LeakyBucket { num, queue, .. } = shape else { return };
        // The mark is the moment at which the bucket was empty behind this departure, up to two microseconds later.
        let ahead_us = shape.scale_units(cost).saturating_add(queue.ahead) / num;
        let due_us = mark.saturating_add(2).saturating_sub(ahead_us);
        let local = |us: u64| Now(now.0.saturating_add(us.saturating_sub(store_us).saturating_mul(1_000)));
        let departure = Departure { due: local(due_us), cost, mark };
        self.departures[rate].keep_spare(shape, key, departure, (local(empty_us), now));
    }
}

/// The time for which departures are asked for in advance.
fn term_ns(num: u64, queue: QueueTicks) -> u64 {
    (queue.wait_max / num / 4).saturating_mul(1_000).clamp(1, TERM_MAX_NS)
}

// === impl StoreUnits ===

impl StoreUnits {
    /// Keeps the departure that the store was offered at the time `store_us` of its clock, and did not take back,
    /// because the bucket had `level` ticks: later departures.
    pub(crate) fn keep_spare(&self, (store_us, level): (u64, u64), now: Now) {
        let (limit, rate) = (&self.limit, self.rate);
        let RuleShape::LeakyBucket { num, .. } = limit.rules[rate].shape else { return };
        let empty_us = store_us.saturating_add(level / num);
        if empty_us > self.mark {
            limit.keep_departure(rate, (self.key, self.cost), self.mark, (store_us, empty_us), now);
        }
    }
}
