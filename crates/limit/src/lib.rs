//! One limit: an algorithm with its parameters and its live counters.
//!
//! - An algorithm is a pure step in integers: state, time and cost in, decision and state out. It has no clock and no
//!   I/O, and runs under the lock of the key's shard. So does the controller of an adaptive concurrency limit
//!   ([`algorithm::gradient`]): workers count into atomics ([`algorithm::adaptive`]), and the worker that finds the
//!   window over applies the step.
//! - The parameters stand beside the entries expressed in them, under the same lock, so a reload never judges one key
//!   by two rates.
//! - A wait is computed on arrival, not polled. Only with `fair_by` may others come in between, so such a wait has a
//!   deadline. A waiter that leaves gives its position back. When a concurrency slot is freed nobody knows, so it is
//!   handed to the next waiter by the request that frees it ([`algorithm::concurrency`]).
//! - Everything is bounded: keys, waiters, runs of a log. A full table shares counters by network, and a cell
//!   is reused only when its counter says no more than a fresh one. A log that may not grow becomes coarser, which
//!   can only reject more.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

pub mod algorithm;
pub mod bandwidth;
mod counters;
pub mod heavy_hitters;
mod operator_changes;
pub mod pushback;
mod reload;
mod settle;
mod slots;
pub mod snapshot;
mod snapshot_tables;
pub mod steps;
pub mod table;
pub mod throttle;
mod turns;
mod windows;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Waker;

use crate::table::CounterKey;
pub use algorithm::adaptive::SlotOutcome;
pub use algorithm::concurrency::{SlotGrant, SlotOutlook, SlotStep, SlotTurn, SlotWaiter};
pub use algorithm::leaky_bucket::Turn;
use algorithm::meter::MeterParams;
use algorithm::queue;
pub(crate) use algorithm::rate::ChargeMark;
pub use counters::keys_max;
use counters::{Meters, each, each_queued, each_rated, queued, rated};
use operator_changes::GrantedKey;
pub use operator_changes::{KeyReset, ResetFault};
use sluicegate_base::calendar::Anchor;
use sluicegate_base::clock::Now;
use sluicegate_base::ip_set::IpSets;
use sluicegate_model::{self as model, LimitId};
use steps::StepNotes;
pub use steps::WindowUsage;
pub use turns::TurnRequest;
use turns::TurnTable;

/// The outcome of one limit for one request; a stricter outcome is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitOutcome {
    /// The request may pass now.
    Admit,
    /// The request has to wait in the queue of the limit first.
    Wait,
    /// The request does not fit, and is not queued.
    Reject,
}

/// The decision of one rate, with all numbers that headers, logs and metrics show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The outcome by this rate alone.
    pub outcome: LimitOutcome,
    /// The steps of a quota that its key has reached, a bit for each.
    pub reached: u8,
    /// Units that still fit now.
    pub remaining: u64,
    /// Nanoseconds until one more unit fits; 0 = now.
    pub reset_ns: u64,
    /// Nanoseconds until the same rejected request is accepted if no other came; `u64::MAX` = never.
    /// Else 0.
    pub retry_after_ns: u64,
    /// Nanoseconds the request waits in the queue.
    pub wait_ns: u64,
    /// Nanoseconds until the counter is as if nothing had been used: the end of the window, or the time until the
    /// bucket is full. At most, where a charge was undone.
    pub full_ns: u64,
    /// [`Units::anchor`], for windows that begin by it.
    pub anchor: Option<Anchor>,
}

/// A limit with its counters, shared by every chain that names it.
pub struct Limit {
    /// The name in logs, metrics and headers.
    pub name: Arc<str>,
    /// Index in [`model::Config::limits`].
    pub id: LimitId,
    /// The configuration with the numbers of every variant.
    pub config: model::LimitConfig,
    /// The networks of `config.bypass`, which are not limited.
    pub bypass: IpSets,
    /// The rates of each variant.
    spans: Box<[Range<usize>]>,
    meters: Meters,
    granted: Box<[GrantedKey]>,
    max_keys: usize,
    /// The rates of all variants in a row; none of concurrency.
    rates: Box<[model::Rate]>,
    turns: TurnTable,
    /// Units that requests in flight have reserved, if it charges by the response.
    reserved: Arc<AtomicU64>,
    /// The steps that keys have reached, until they are told. Parts of a limit share those of the whole.
    pub step_notes: Arc<StepNotes>,
}

/// The units a request takes from one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    /// The key that the units are counted under.
    pub key: CounterKey,
    /// Units, at least 1; 0 counts as 1.
    pub cost: u64,
    /// The variant that judges it: [`model::LimitConfig::variant_at`].
    pub variant: usize,
    /// Hash of its `fair_by` value, which takes turns with others in a queue; else unused.
    pub fair_hash: u64,
    /// The limit does not act on this key: it judges as a dry run.
    pub unenforced: bool,
    /// The date by which windows of its account begin; `None` = as the counter has it.
    pub anchor: Option<Anchor>,
}

/// A record of taken units: everything a refund needs.
#[derive(Debug, Clone, Copy)]
pub struct ChargeRecord {
    since: ChargeMark,
    /// Node among the waiters; [`queue::NO_NODE`] for one that never waited or has noticed its turn.
    node: u32,
    /// Taken from an overflow counter.
    overflow: bool,
    /// The queue was full, and another waiter has to make room.
    displaces: bool,
    /// The epoch of the parameters by which it was taken.
    epoch: Epoch,
}

/// Counts changes of the parameters. A charge of an earlier epoch cannot be refunded, because its share of the
/// converted counter is unknown; only a charge that still waits can be taken out exactly.
pub(crate) type Epoch = u16;

// === impl Decision ===

impl Decision {
    /// The decision of a limit that has no numbers to show.
    pub fn without_numbers(outcome: LimitOutcome) -> Decision {
        let retry_after_ns = if outcome == LimitOutcome::Reject { u64::MAX } else { 0 };
        Decision {
            outcome,
            reached: 0,
            remaining: 0,
            reset_ns: 0,
            retry_after_ns,
            wait_ns: 0,
            full_ns: 0,
            anchor: None,
        }
    }

    /// The effective window that clients are told: until its end at most the remaining units may be used. Of a rejected
    /// request it is the wait; `None` = the request would never be accepted.
    #[inline]
    pub fn window_ns(&self) -> Option<u64> {
        match (self.outcome, self.remaining) {
            (LimitOutcome::Reject, _) => Some(self.retry_after_ns).filter(|ns| *ns < u64::MAX),
            (_, 0) => Some(self.reset_ns),
            _ => Some(self.full_ns),
        }
    }

    /// The time until one more unit fits; of a rejected request, which may cost more than is left, its wait.
    #[inline]
    pub fn shown_reset_ns(&self) -> u64 {
        let wait_ns = if self.retry_after_ns == u64::MAX { 0 } else { self.retry_after_ns };
        self.reset_ns.max(wait_ns)
    }

    /// The rejection of a request that would never be accepted.
    pub fn reject_forever(self) -> Decision {
        Decision { outcome: LimitOutcome::Reject, retry_after_ns: u64::MAX, wait_ns: 0, ..self }
    }
}

// === impl Limit ===

impl std::fmt::Debug for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Limit({})", self.name)
    }
}

impl Limit {
    /// True if it judges without acting: always, or for this key.
    #[inline]
    pub fn is_dry_run(&self, unenforced: bool) -> bool {
        self.config.dry_run || unenforced
    }

    /// Keys that hold counters now, of the rate with most.
    pub fn key_count(&self) -> usize {
        each!(&self.meters, meters => meters.iter().map(|meter| meter.table.key_count()).max().unwrap_or(0))
    }

    /// Requests judged on an overflow counter; of rates that judge together, by the one with most.
    pub fn overflow_count(&self) -> u64 {
        each!(&self.meters, meters => {
            let updates = |rate: usize| meters[rate].table.overflow_updates();
            let counted = self.spans.iter().filter(|span| !self.is_view_rate(span.start));
            counted.filter_map(|span| span.clone().map(updates).max()).sum()
        })
    }

    /// True if a rate counts in the counters of another one, because it belongs to a view.
    pub(crate) fn is_view_rate(&self, rate: usize) -> bool {
        self.config.counter_rate(rate) != rate
    }

    /// Requests that wait in the queues of this limit, of the rate with most.
    pub fn waiter_count(&self) -> usize {
        match &self.meters {
            Meters::Concurrency(variants) => variants.iter().map(|slots| slots.waiter_count()).sum(),
            meters => each_queued!(meters, rates => {
                rates.iter().map(|rate| rate.waiter_count()).max().unwrap_or(0)
            }, else 0),
        }
    }

    /// Units of a key that wait in the queue of a rate.
    pub fn waiting_units(&self, rate: usize, key: &CounterKey) -> u64 {
        match &self.meters {
            Meters::Concurrency(variants) => variants[rate].waiting_units(key),
            meters => queued!(meters, rate, bucket => bucket.waiting_units(key), else 0),
        }
    }

    /// Units that requests in flight have reserved; each counts once, however many rates judge it.
    pub fn reserved_units(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// Counts units as reserved on a rate.
    pub fn add_reserved(&self, rate: usize, units: u64) {
        if self.is_first_rate(rate) {
            self.reserved.fetch_add(units, Relaxed);
        }
    }

    /// Counts units as no longer reserved on a rate.
    pub fn subtract_reserved(&self, rate: usize, units: u64) {
        if self.is_first_rate(rate) {
            self.reserved.fetch_sub(units, Relaxed);
        }
    }

    fn is_first_rate(&self, rate: usize) -> bool {
        self.spans.iter().any(|span| span.start == rate)
    }

    /// True if it counts requests in flight instead of judging rates.
    #[inline]
    pub fn is_concurrency(&self) -> bool {
        matches!(self.meters, Meters::Concurrency(_))
    }

    /// True if it has a queue, which its rejected requests found full.
    pub fn has_queue(&self) -> bool {
        each_queued!(&self.meters, _rates => true, else false)
    }

    /// True if units can be given back to a key that took them long ago: its counters are here, and nothing departs.
    pub fn takes_back(&self) -> bool {
        self.config.shared.is_none() && !self.has_queue() && !self.is_concurrency()
    }

    /// The rates that judge requests of a variant; of concurrency, the single index of its slots.
    #[inline]
    pub fn rate_range(&self, variant: usize) -> Range<usize> {
        self.spans.get(variant).cloned().unwrap_or_default()
    }

    /// The greatest cost of a class that can ever be accepted.
    #[inline]
    pub fn max_units(&self, rate: usize, class: u8) -> u64 {
        each!(&self.meters, meters => meters[rate].params.max_units(class))
    }

    /// Units that fit when nothing is used.
    pub fn idle_capacity(&self, rate: usize, class: u8) -> u64 {
        match &self.meters {
            Meters::CalendarWindow(meters) => meters[rate].params.idle_capacity(),
            meters => {
                queued!(meters, rate, bucket => bucket.idle_capacity(), else self.max_units(rate, class))
            }
        }
    }

    /// The units, capped at the most the limit can ever accept at once.
    pub fn cap_units(&self, units: Units) -> Units {
        let capacity = self
            .rate_range(units.variant)
            .map(|rate| self.max_units(rate, units.key.class))
            .min()
            .unwrap_or(1);
        Units { cost: units.cost.min(capacity), ..units }
    }

    /// Judges units (at least 1, at most the capacity) and takes them unless it rejects.
    #[inline]
    pub fn charge_units(&self, rate: usize, units: &Units, now: Now) -> (Decision, Option<ChargeRecord>) {
        rated!(&self.meters, rate, meter => meter.charge_units(units, now))
    }

    /// Takes units that were used elsewhere, at most as many as remain, without a waiter here.
    pub fn spend_units(&self, rate: usize, units: &Units, now: Now) {
        queued!(&self.meters, rate, bucket => bucket.spend_units(units, now), else {
            if let (_, Some(charge)) = self.charge_units(rate, units, now) {
                self.settle_charge(rate, &units.key, (units.cost, units.cost), &charge, now);
            }
        });
    }

    /// Judges units and takes none; waiters that are due depart.
    pub fn peek_units(&self, rate: usize, units: &Units, now: Now) -> Decision {
        rated!(&self.meters, rate, meter => meter.peek_units(units, now))
    }

    /// The units that a key has left of the own part of its class, without the common part; `None` if that is not
    /// known or the limit has no shares.
    pub fn own_units(&self, rate: usize, key: &CounterKey, now: Now) -> Option<u64> {
        each_rated!(&self.meters, rates => rates[rate].own_units(key, now), else None)
    }

    /// Gives a charge back; requests that wait behind it move up.
    pub fn refund_charge(
        &self,
        rate: usize,
        key: &CounterKey,
        cost: u64,
        charge: &ChargeRecord,
        now: impl FnOnce() -> Now,
    ) {
        queued!(&self.meters, rate, bucket => bucket.refund_charge(key, cost, charge, now), else {
            self.settle_charge(rate, key, (cost, 0), charge, now());
            self.return_pace(rate, key, charge);
        });
    }

    /// The chain accepted the charge: the waiter that has to make room for it is displaced now.
    pub fn displace_waiter(&self, rate: usize, key: &CounterKey, charge: &ChargeRecord, now: Now) {
        queued!(&self.meters, rate, bucket => bucket.displace_waiter(key, charge, now), else {});
    }

    /// Checks whether a waiter may go.
    pub fn check_turn(
        &self,
        rate: usize,
        key: &CounterKey,
        charge: &mut ChargeRecord,
        now: Now,
        waker: &Waker,
    ) -> Turn {
        queued!(&self.meters, rate, bucket => bucket.check_turn(key, charge, now, waker), else Turn::Go)
    }
}

// === impl Units ===

impl Units {
    /// Units by the limit's own numbers.
    #[inline]
    pub fn new(key: CounterKey, cost: u64) -> Units {
        Units { key, cost, variant: 0, fair_hash: 0, unenforced: false, anchor: None }
    }
}

// === impl ChargeRecord ===

impl ChargeRecord {
    /// True if both were taken at one moment of a counter, so that they are settled as one.
    pub fn is_settled_with(&self, other: &ChargeRecord) -> bool {
        let id = |charge: &ChargeRecord| (charge.since.at_ns(), charge.overflow, charge.epoch);
        id(self) == id(other)
    }

    /// True if it found the queue full, so that [`Limit::displace_waiter`] must follow.
    #[inline]
    pub fn displaces(&self) -> bool {
        self.displaces
    }

    /// True if the request waits in a queue, or has not yet noticed that it may go.
    pub(crate) fn is_waiting(&self) -> bool {
        self.node != queue::NO_NODE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_charges_stay_small() {
        assert_eq!(size_of::<algorithm::rate::Level>(), 24);
        assert_eq!(size_of::<algorithm::leaky_bucket::LeakyBucketEntry<algorithm::rate::Level>>(), 28);
        assert_eq!(size_of::<ChargeRecord>(), 24);
        assert_eq!((size_of::<Units>(), size_of::<Decision>()), (64, 48));
    }
}
