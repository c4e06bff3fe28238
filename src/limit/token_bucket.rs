//! token_bucket: a bucket of `burst` tokens, refilled evenly. In any span Δ at most burst + rate·Δ pass.
//!
//! The decision is governor's GCRA. It is translation invariant, so governor's clock always answers 0 and it is
//! shown the backlog (TAT − now) in exact ticks; the moment itself stays in our table.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};

use super::pace::{Level, Pace};
use super::queue::NONE;
use super::{Charge, Decision, Outcome, Units};
use crate::clock::Now;
use crate::config::TokenBucketRate;
use crate::table::{Entry, Key, Table};

/// Ticks that governor is asked to add up; more backlog than this is told apart by us.
const GOVERNOR_TICKS_MAX: u64 = 1 << 61;

/// One rate of a token bucket with its counters.
pub(super) struct TokenBucket {
    pace: Pace,
    burst: u64,
    /// Ticks that `burst` units take.
    depth: u128,
    governor: Governor,
    /// Ticks of the bucket beyond the reach of governor's 32-bit burst; 0 for all but huge buckets.
    beyond: u128,
    pub(super) table: Table<Level>,
}

type Governor = RateLimiter<Backlog, Shown, Zero, NoOpMiddleware<Nanos>>;

/// The backlog governor is to judge, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Backlog(u64);

/// A store that holds nothing: it shows governor the backlog it was asked about.
#[derive(Debug)]
struct Shown;

/// A clock that stands still, because the backlog is relative to now.
#[derive(Debug)]
struct Zero;

// === impl TokenBucket ===

impl TokenBucket {
    pub(super) fn new(rate: &TokenBucketRate, keys_max: usize) -> TokenBucket {
        let pace = Pace::new(rate.rate);
        let burst = pace.units_within_reach(rate.burst);
        let burst_governor = burst.min(u32::MAX.into()).min(GOVERNOR_TICKS_MAX / pace.unit()).max(1) as u32;
        let quota = Quota::with_period(Duration::from_nanos(pace.unit()))
            // Cannot fail: a pace's unit lasts at least one tick.
            .expect("a unit lasts at least one tick")
            // Cannot fail: `max(1)` above.
            .allow_burst(NonZeroU32::new(burst_governor).expect("a burst is at least one unit"));
        TokenBucket {
            pace,
            burst,
            depth: pace.span(burst),
            governor: RateLimiter::new(quota, Shown, Zero),
            beyond: pace.span(burst - u64::from(burst_governor)),
            table: Table::new(keys_max),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.burst
    }

    /// Judges units and takes them if they fit.
    #[inline]
    pub(super) fn charge(&self, units: &Units, now: Now) -> (Decision, Option<Charge>) {
        let cost = units.cost;
        self.table.update(&units.key, now, |level, (), shared| {
            let present = level.present(now);
            let backlog = self.pace.backlog(level, present);
            match self.step(backlog, cost) {
                Ok(backlog_new) => {
                    let since = self.pace.charge(level, present, cost);
                    (self.decision(Ok(()), backlog_new, 0), Some(Charge { since, node: NONE, shared }))
                }
                Err(ticks) => (self.decision(Err(ticks), backlog, present.since(now)), None),
            }
        })
    }

    /// Judges units and takes nothing.
    pub(super) fn peek(&self, units: &Units, now: Now) -> Decision {
        let level = self.table.peek(&units.key, |level, ()| *level);
        let present = level.present(now);
        let backlog = self.pace.backlog(&level, present);
        self.decision(self.step(backlog, units.cost).map(drop), backlog, present.since(now))
    }

    /// Gives a charge back.
    pub(super) fn refund(&self, key: &Key, cost: u64, charge: &Charge, _: impl FnOnce() -> Now) {
        self.table.revisit(key, charge.shared, |level, ()| self.pace.refund(level, cost, charge.since));
    }

    /// The pure step, in ticks: the new backlog, or how long until `cost` units fit.
    #[inline]
    fn step(&self, backlog: u128, cost: u64) -> Result<u128, u128> {
        // `cost` units fit exactly when one unit fits behind `cost` − 1 others.
        let ahead = (backlog + self.pace.span(cost - 1)).saturating_sub(self.beyond);
        let shown = ahead.min(GOVERNOR_TICKS_MAX.into());
        match self.governor.check_key(&Backlog(shown as u64)) {
            Ok(()) => Ok(backlog + self.pace.span(cost)),
            Err(until) => Err(u128::from(until.earliest_possible().as_u64()) + (ahead - shown)),
        }
    }

    /// `behind_ns` is how far the caller's clock is behind the bucket's.
    #[inline]
    fn decision(&self, step: Result<(), u128>, backlog: u128, behind_ns: u64) -> Decision {
        let room = self.pace.room(self.depth, backlog);
        let (outcome, retry_after_ns) = match step {
            Ok(()) => (Outcome::Admit, 0),
            Err(ticks) => (Outcome::Reject, self.pace.ns_up(ticks).saturating_add(behind_ns)),
        };
        Decision { outcome, remaining: room.remaining, reset_ns: room.reset_ns, retry_after_ns, wait_ns: 0 }
    }
}

// === impl Level ===

impl Entry for Level {
    type Extra = ();

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        Level::is_idle(self, now)
    }

    fn inherit(&self) -> Option<Level> {
        Some(*self)
    }
}

// === impl Shown ===

impl StateStore for Shown {
    type Key = Backlog;

    #[inline]
    fn measure_and_replace<T, F, E>(&self, key: &Backlog, step: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        step(Some(Nanos::from(key.0))).map(|(answer, _)| answer)
    }
}

// === impl Zero ===

impl Clock for Zero {
    type Instant = Nanos;

    #[inline]
    fn now(&self) -> Nanos {
        Nanos::from(0)
    }
}
