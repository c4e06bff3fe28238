//! What a process holds of a leased limit, for the requests that it judges.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::SharedLimit;
use crate::lease::{LeaseLeft, LeaseName, LeaseOutcome};
use crate::script::rule_shape::RuleShape;
use crate::{RateAnswer, SharedKey};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, LimitOutcome, Units};

// === impl SharedLimit ===

impl SharedLimit {
    /// Has the local share begin with what a lease and the store's last answer left of a key, once for each answer.
    pub fn seed_from_lease(&self, rate: usize, key: SharedKey, units: &Units) {
        let Some(name) = LeaseName::of_rule(&self.rules[rate], key) else { return };
        let Some((left, answered)) = self.leases.find_left(&name) else { return };
        if self.find_last_answer(rate, &units.key).is_some_and(|last| { last.at } >= answered.0) {
            return;
        }
        let answer = self.leased_answer(rate, &LeaseOutcome::Taken(0, left));
        self.record_answer(rate, units, answered, &answer);
    }

    /// The units of a leased rate in hand, and those that the store has if nobody took some since its last answer;
    /// `None` if nothing is known.
    pub fn leased_units_of(&self, rate: usize, key: SharedKey) -> Option<LeaseLeft> {
        self.leases.estimate_left(&LeaseName::of_rule(&self.rules[rate], key)?)
    }

    /// Forgets all leases, because another store counts from now on.
    pub fn forget_leases(&mut self) {
        self.leases = Arc::default();
    }

    /// True if gateways take the units of these rates in advance.
    pub fn is_leased(&self, rates: Range<usize>) -> bool {
        self.rules.get(rates).is_some_and(|rules| rules.iter().all(|rule| rule.leases.is_some()))
    }

    /// Takes units of a leased rate, if no call of the store is needed: see [`LeaseOutcome`].
    pub fn take_leased(&self, rate: usize, key: SharedKey, cost: u64) -> Option<LeaseOutcome> {
        let name = LeaseName::of_rule(&self.rules[rate], key)?;
        self.leases.take_at_once(&name, cost)
    }

    /// The number of calls about leases.
    pub fn lease_calls(&self) -> u64 {
        self.leases.calls.load(Relaxed)
    }

    /// The units of leases and the departures in hand.
    pub fn leased_units(&self) -> u64 {
        self.leases.units_held()
            + self.departures.iter().map(|own| own.kept_count(Now::read_clock())).sum::<u64>()
    }

    /// Corrects a charge of [`SharedLimit::take_leased`] from the units that were reserved to those that were used: an
    /// excess goes with the next call. `used` is 0 for a refund. False if the rate is not leased.
    pub fn settle_leased(
        &self,
        rate: usize,
        key: SharedKey,
        mark: u64,
        (reserved, used): (u64, u64),
    ) -> bool {
        let Some(name) = LeaseName::of_rule(&self.rules[rate], key) else { return false };
        let is_known = match used.checked_sub(reserved) {
            Some(excess) => self.leases.owe(&name, excess),
            None => self.leases.put_back(&name, mark, reserved - used),
        };
        if !is_known {
            self.count_lost();
        }
        true
    }

    /// The decision on a request, with what is left after it.
    pub fn leased_decision(&self, rate: usize, outcome: &LeaseOutcome) -> Decision {
        let capacity = self.rules[rate].capacity();
        let (outcome, left, wait_us) = match *outcome {
            LeaseOutcome::Taken(_, left) => (LimitOutcome::Admit, left, 0),
            LeaseOutcome::Refused(wait_us, left) => (LimitOutcome::Reject, left, wait_us),
            LeaseOutcome::Failed(_) => return Decision::without_numbers(LimitOutcome::Reject),
        };
        Decision {
            remaining: left.units().min(capacity),
            reset_ns: left.next_us.saturating_mul(1_000),
            retry_after_ns: wait_us.saturating_mul(1_000),
            full_ns: left.full_us.saturating_mul(1_000),
            ..Decision::without_numbers(outcome)
        }
    }

    /// The answer that a lease gives.
    pub(crate) fn leased_answer(&self, rate: usize, outcome: &LeaseOutcome) -> RateAnswer {
        let mark = if let LeaseOutcome::Taken(mark, _) = outcome { *mark } else { 0 };
        let decision = self.leased_decision(rate, outcome);
        let is_fixed = matches!(self.rules[rate].shape, RuleShape::FixedWindow { .. });
        let window_ns = Some(decision.full_ns).filter(|_| is_fixed);
        RateAnswer { window_ns, ..RateAnswer::of_units(decision, mark) }
    }
}
