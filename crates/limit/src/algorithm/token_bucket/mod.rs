//! token_bucket: a bucket of `burst` tokens, refilled evenly. In any span Δ at most burst + rate·Δ units pass.
//!
//! The decision is governor's GCRA. It is translation invariant, so governor's clock always shows 0 and governor sees
//! the backlog (TAT − now) in exact ticks; the TAT itself stays in the table. With `warm_up` the units of a cold
//! bucket take longer than 1/rate; the largest backlog stays the same.
//!
//! Units that a response used beyond its reservation take the backlog up to one depth further: a debt.
//!
//! A view compares the same backlog with a burst of its own. An entry is idle once its TAT has passed, whatever the
//! burst, so it is kept as long as any place needs it.

mod settle;

use std::num::NonZeroU32;
use std::task::Waker;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};

use super::meter::{Charged, Locked, MeterParams, MeterSpec, RateParams, SettleTerms};
use super::open_charges::{ChargedSpan, ShardCharges};
use super::queue::NO_NODE;
use super::schedule::{BucketUsage, Schedule};
use crate::table::{TableEntry, TableParams};
use crate::{ChargeRecord, Decision, Epoch, LimitOutcome, Units};
use sluicegate_base::clock::Now;

/// The most ticks that governor is given to add up; the backlog beyond them is handled here.
const GOVERNOR_TICKS_MAX: u64 = 1 << 61;

pub(crate) struct TokenBucketParams<S> {
    schedule: S,
    /// The configured burst of the place, and the greatest of all places.
    bursts: (u64, u64),
    burst: u64,
    /// Ticks that `burst` units take.
    depth: u128,
    /// The depth of the place with the greatest burst: it bounds the units in an entry.
    deepest: u128,
    governor: Governor,
    /// Ticks of the bucket beyond the reach of governor's 32-bit burst; 0 for all but huge buckets.
    beyond: u128,
    epoch: Epoch,
    settle_terms: SettleTerms,
}

type Governor = RateLimiter<u64, BacklogStore, ZeroClock, NoOpMiddleware<Nanos>>;

/// A store without state: it returns the backlog in ticks that governor passed as the key.
#[derive(Debug)]
struct BacklogStore;

/// A clock that always shows 0, because the backlog is relative to now.
#[derive(Debug)]
struct ZeroClock;

// === impl TokenBucketParams ===

impl<S: Schedule> TokenBucketParams<S> {
    /// `bursts`: that of the place, and the greatest of all places.
    pub(crate) fn new(bursts: (u64, u64), schedule: S, spec: &MeterSpec<'_, Self>) -> TokenBucketParams<S> {
        let epoch = spec.next_epoch(|before| before.schedule == schedule && before.bursts == bursts);
        TokenBucketParams { epoch, ..TokenBucketParams::with_terms(bursts, schedule, spec.settle_terms) }
    }

    /// Parameters of the first epoch.
    fn with_terms(bursts: (u64, u64), schedule: S, settle_terms: SettleTerms) -> TokenBucketParams<S> {
        let tick_rate = *schedule.tick_rate();
        let within_reach =
            |units: u64| tick_rate.units_within_reach(units.saturating_mul(S::SLOWEST)).div_ceil(S::SLOWEST);
        let (burst, burst_max) = (within_reach(bursts.0), within_reach(bursts.1));
        let burst_governor =
            burst.min(u32::MAX.into()).min(GOVERNOR_TICKS_MAX / tick_rate.unit_ticks()).max(1) as u32;
        let quota = Quota::with_period(Duration::from_nanos(tick_rate.unit_ticks()))
            // Cannot fail: a unit lasts at least one tick.
            .expect("a unit lasts at least one tick")
            // Cannot fail: `max(1)` above.
            .allow_burst(NonZeroU32::new(burst_governor).expect("a burst is at least one unit"));
        TokenBucketParams {
            schedule,
            bursts,
            burst,
            depth: tick_rate.units_to_ticks(burst),
            deepest: tick_rate.units_to_ticks(burst_max),
            governor: RateLimiter::new(quota, BacklogStore, ZeroClock),
            beyond: tick_rate.units_to_ticks(burst - u64::from(burst_governor)),
            epoch: 0,
            settle_terms,
        }
    }

    /// The pure step, in ticks: how long until `cost` units fit, if they do not.
    #[inline]
    fn ticks_until_fit(&self, used: &S::Used, now: Now, backlog: u128, cost: u64) -> Result<(), u128> {
        // `cost` units fit exactly when one unit fits behind `cost` − 1 others.
        let mut others = self.schedule.next_ticks(used, now, cost - 1);
        if S::SLOWEST > 1 {
            // Cold units may take longer than the bucket is deep: then it has to be empty.
            others = others.min(self.schedule.tick_rate().units_to_ticks(self.burst - 1));
        }
        let ahead = (backlog + others).saturating_sub(self.beyond);
        let judged = ahead.min(GOVERNOR_TICKS_MAX.into());
        match self.governor.check_key(&(judged as u64)) {
            Ok(()) => Ok(()),
            Err(until) => Err(u128::from(until.earliest_possible().as_u64()) + (ahead - judged)),
        }
    }

    /// The greatest backlog without debt.
    fn backlog_max(&self) -> u128 {
        u128::from(S::SLOWEST) * self.deepest
    }

    /// Remembers a charge that the response settles.
    #[cold]
    fn open_charge(
        &self,
        charges: &mut ShardCharges,
        units: &Units,
        present: Now,
        span: u128,
        charge: &ChargeRecord,
    ) {
        charges.add_to_span(&units.key, present.0, self.charged_span(present, span));
        charges.open_charge(&units.key, units.cost, charge);
    }

    /// A charge at `at` that takes `ticks`.
    fn charged_span(&self, at: Now, ticks: u128) -> ChargedSpan {
        ChargedSpan { tat: self.schedule.tick_rate().ns_to_ticks(at.0) + ticks, ticks }
    }

    /// `behind_ns` is how far the caller's clock is behind the bucket's.
    #[inline]
    fn build_decision(
        &self,
        step: Result<(), u128>,
        used: &S::Used,
        now: Now,
        backlog: u128,
        behind_ns: u64,
    ) -> Decision {
        let room = self.schedule.remaining_units(used, now, self.depth, backlog);
        let (outcome, retry_after_ns) = match step {
            Ok(()) => (LimitOutcome::Admit, 0),
            Err(ticks) => {
                (LimitOutcome::Reject, self.schedule.tick_rate().ticks_to_ns(ticks).saturating_add(behind_ns))
            }
        };
        Decision { outcome, retry_after_ns, ..room }
    }
}

impl<S: Schedule> MeterParams for TokenBucketParams<S> {
    type Entry = S::Used;

    fn max_units(&self, _: u8) -> u64 {
        self.burst
    }
}

impl<S: Schedule> RateParams for TokenBucketParams<S> {
    type Wakers = [Waker; 0];
    const HAS_VIEWS: bool = true;

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn at_pace_of(&self, in_force: &Self) -> Option<Self> {
        let bursts = (self.bursts.0, self.bursts.0.max(in_force.bursts.1));
        let own = TokenBucketParams::with_terms(bursts, in_force.schedule.clone(), in_force.settle_terms);
        Some(TokenBucketParams { epoch: in_force.epoch, ..own })
    }

    /// Time alone pays a debt back.
    #[inline]
    fn advance_entry(&self, _: Locked<'_, Self>, _: Now, _: &mut [Waker; 0]) {}

    #[inline]
    fn charge_entry(
        &self,
        (used, charges): Locked<'_, Self>,
        units: &Units,
        now: Now,
        overflow: bool,
    ) -> Charged {
        let present = used.level().clamp_now(now);
        let backlog = self.schedule.tick_rate().backlog_ticks(used.level(), present);
        match self.ticks_until_fit(used, present, backlog, units.cost) {
            Ok(()) => {
                let (since, span) = self.schedule.charge_usage(used, present, units.cost);
                let decision = self.build_decision(Ok(()), used, present, backlog + span, 0);
                let epoch = charges.charge_epoch(self.epoch);
                let charge = ChargeRecord { since, node: NO_NODE, overflow, displaces: false, epoch };
                if self.settle_terms.settles && !overflow {
                    self.open_charge(charges, units, present, span, &charge);
                }
                (decision, Some(charge))
            }
            Err(ticks) => {
                (self.build_decision(Err(ticks), used, present, backlog, present.ns_since(now)), None)
            }
        }
    }

    fn peek_entry(&self, (used, _): Locked<'_, Self>, units: &Units, now: Now) -> Decision {
        let present = used.level().clamp_now(now);
        let backlog = self.schedule.tick_rate().backlog_ticks(used.level(), present);
        let step = self.ticks_until_fit(used, present, backlog, units.cost);
        self.build_decision(step, used, present, backlog, present.ns_since(now))
    }

    fn reset_entry(&self, (used, _): Locked<'_, Self>, now: Now, _: &mut [Waker; 0]) -> u64 {
        let present = used.level().clamp_now(now);
        self.schedule.reset_usage(used, present);
        0
    }
}

impl<S: Schedule> TableParams<S::Used> for TokenBucketParams<S> {
    /// Keeps the number of used units, up to the depth of the bucket where it is greatest, and the debt beyond it, as
    /// much again; each unit now lasts as long as the new rate says.
    fn convert_entry(&self, (used, _): Locked<'_, Self>, before: &Self, now: Now, _: &mut Vec<Waker>) {
        if self.epoch == before.epoch {
            return;
        }
        if used.is_idle(now) {
            *used = S::Used::default();
            return;
        }
        let (tick_rate, present) = (self.schedule.tick_rate(), used.level().clamp_now(now));
        let backlog = before.schedule.tick_rate().backlog_ticks(used.level(), present);
        let within = backlog.min(before.backlog_max());
        let convert = |ticks: u128| tick_rate.convert_ticks(ticks, before.schedule.tick_rate());
        let (within, debt) = (convert(within), convert(backlog - within));
        self.schedule.convert_usage(used, &before.schedule, present);
        let backlog = within.min(self.backlog_max()) + debt.min(self.deepest);
        tick_rate.set_backlog(used.level_mut(), present, backlog);
    }
}

// === impl BacklogStore ===

impl StateStore for BacklogStore {
    type Key = u64;

    #[inline]
    fn measure_and_replace<T, F, E>(&self, key: &u64, step: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        step(Some(Nanos::from(*key))).map(|(answer, _)| answer)
    }
}

// === impl ZeroClock ===

impl Clock for ZeroClock {
    type Instant = Nanos;

    #[inline]
    fn now(&self) -> Nanos {
        Nanos::from(0)
    }
}
