//! `CL.THROTTLE`: a rate limit with numbers in each call, as in the module redis-cell for Redis.
//!
//! The algorithm is GCRA (virtual scheduling: ITU-T I.371). A key has one moment, its theoretical arrival time (TAT),
//! at which it will have used nothing. A unit moves it by the emission interval, which is the period divided by the
//! count; a call is admitted if the TAT is then at most as far ahead as `max_burst` + 1 units take. Since only the TAT
//! is kept, calls with other numbers go on from the same one. The token bucket of limits
//! ([`crate::algorithm::token_bucket`]) cannot serve such calls: its counters are expressed in the numbers of
//! one configured rate.
//!
//! The numbers are those of redis-cell (github.com/brandur/redis-cell, `cell/mod.rs`), computed in integers. It divides
//! in floating point, which may make the emission interval of a period beyond 104 days one nanosecond longer.

use std::sync::Arc;

use crate::table::persistent::{PersistentEntry, SnapshotTable, take_bytes};
use crate::table::{CounterKey, Table, TableEntry};
use sluicegate_base::clock::{ClockShift, Now};

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1_000;
/// The longest time that a burst may take to come back, 292 years: redis-cell counts nanoseconds in 64 bits with a
/// sign.
const SPAN_MAX_NS: u64 = i64::MAX as u64;
/// Tells the table from those of limits in a snapshot.
const FINGERPRINT: u64 = 0x434c_2e54_4852_4f54;

/// The numbers of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThrottleTerms {
    /// `max_burst` + 1.
    limit: u64,
    /// The emission interval, in nanoseconds; at least 1.
    interval_ns: u64,
    /// The time that `limit` units take, in nanoseconds; at most [`SPAN_MAX_NS`].
    tolerance_ns: u64,
    /// The units to take; 0 = only look.
    quantity: u64,
}

/// Why numbers make no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThrottleFault {
    /// The argument of this name is out of its range.
    OutOfRange(&'static str),
    /// A unit would take less than a nanosecond.
    TooFast,
    /// The burst would take more than 292 years to come back.
    TooSlow,
}

/// The answer to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThrottleAnswer {
    /// The call is rejected, and nothing was charged.
    pub is_limited: bool,
    /// The units that fit at once: `max_burst` and one more.
    pub limit: u64,
    /// The units that are left now.
    pub remaining: u64,
    /// `None` = the call is admitted, or asks for more than the limit ever admits.
    pub retry_after_ns: Option<u64>,
    /// The time until the key has used nothing.
    pub reset_after_ns: u64,
}

/// The table has no room for another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFull;

/// The counters of all keys.
pub struct ThrottleTable(Table<TatEntry>);

/// The TAT of one key, in nanoseconds of the clock.
#[derive(Debug, Clone, Copy, Default)]
struct TatEntry(u64);

// === impl ThrottleTerms ===

impl ThrottleTerms {
    /// `count` units in `period` seconds, with `max_burst` units beyond the first at once.
    ///
    /// # Errors
    /// The numbers make no limit.
    pub fn new(
        max_burst: i64,
        count: i64,
        period: i64,
        quantity: i64,
    ) -> Result<ThrottleTerms, ThrottleFault> {
        let at_least = |name, number: i64, min: i64| match u64::try_from(number) {
            Ok(number_read) if number >= min => Ok(number_read),
            _ => Err(ThrottleFault::OutOfRange(name)),
        };
        // The largest has no successor in 64 bits with a sign.
        let max_burst = at_least("max_burst", if max_burst == i64::MAX { -1 } else { max_burst }, 0)?;
        let count = at_least("count_per_period", count, 1)?;
        let period = at_least("period", period, 1)?;
        let quantity = at_least("quantity", quantity, 0)?;
        let period_ns = period.checked_mul(NS_PER_SECOND).filter(|ns| *ns <= SPAN_MAX_NS);
        let interval_ns = period_ns.ok_or(ThrottleFault::TooSlow)? / count;
        if interval_ns == 0 {
            return Err(ThrottleFault::TooFast);
        }
        let limit = max_burst + 1;
        let tolerance_ns = interval_ns.checked_mul(limit).filter(|ns| *ns <= SPAN_MAX_NS);
        let tolerance_ns = tolerance_ns.ok_or(ThrottleFault::TooSlow)?;
        Ok(ThrottleTerms { limit, interval_ns, tolerance_ns, quantity })
    }

    /// The pure step: the answer at `now`, and the next TAT if the call is admitted.
    fn judge(&self, tat: u64, now: Now) -> (ThrottleAnswer, Option<u64>) {
        let backlog = tat.saturating_sub(now.0);
        let increment =
            if self.quantity <= self.limit { Some(self.interval_ns * self.quantity) } else { None };
        let needed = increment.map(|increment| backlog.saturating_add(increment));
        let (reset_after_ns, retry_after_ns, next) = match needed {
            Some(needed) if needed <= self.tolerance_ns => (needed, None, Some(now.0 + needed)),
            Some(needed) => (backlog, Some(needed - self.tolerance_ns), None),
            None => (backlog, None, None),
        };
        let answer = ThrottleAnswer {
            is_limited: next.is_none(),
            limit: self.limit,
            remaining: self.remaining_units(reset_after_ns),
            retry_after_ns,
            reset_after_ns,
        };
        (answer, next)
    }

    /// The remaining units as in redis-cell: by whole microseconds, where an interval has any; at most the limit.
    fn remaining_units(&self, backlog_ns: u64) -> u64 {
        let room_ns = self.tolerance_ns.saturating_sub(backlog_ns);
        let units = match self.interval_ns / NS_PER_US {
            0 => room_ns / self.interval_ns,
            interval_us => room_ns / NS_PER_US / interval_us,
        };
        units.min(self.limit)
    }
}

// === impl ThrottleAnswer ===

impl ThrottleAnswer {
    /// The five integers of the reply: limited, limit, remaining, and the seconds until a retry and until the reset.
    pub fn reply_numbers(&self) -> [i64; 5] {
        [
            i64::from(self.is_limited),
            self.limit as i64,
            self.remaining as i64,
            self.retry_after_ns.map_or(-1, whole_seconds),
            whole_seconds(self.reset_after_ns),
        ]
    }
}

/// Seconds, rounded up, once parts of a millisecond are cut.
fn whole_seconds(ns: u64) -> i64 {
    (ns / 1_000_000).div_ceil(1_000) as i64
}

// === impl ThrottleTable ===

impl ThrottleTable {
    /// `keys_max` bounds the keys that have used something.
    pub fn new(keys_max: usize) -> ThrottleTable {
        ThrottleTable(Table::with_params((), keys_max, Arc::from("CL.THROTTLE")))
    }

    /// Caps the stored keys at `keys_max`; keys beyond that stay until they have used nothing.
    pub fn apply_cap(&self, keys_max: usize, clock: &dyn Fn() -> Now) {
        self.0.replace_params(&Arc::new(()), keys_max, clock);
    }

    /// Judges one call, and takes its units if it is admitted.
    ///
    /// # Errors
    /// The key is new, and as many keys as the table may hold have used something.
    pub fn judge_call(
        &self,
        key: &CounterKey,
        terms: &ThrottleTerms,
        now: Now,
    ) -> Result<ThrottleAnswer, TableFull> {
        self.0.update_entry(key, now, |entry, (), (), overflow| {
            // Keys that share a counter would be judged by each other's numbers.
            if overflow {
                return Err(TableFull);
            }
            let (answer, next) = terms.judge(entry.0, now);
            if let Some(next) = next {
                entry.0 = next;
            }
            Ok(answer)
        })
    }

    /// The keys that have used something, and some that no longer do.
    pub fn key_count(&self) -> usize {
        self.0.key_count()
    }

    /// The table that a snapshot saves.
    pub fn saved_table(&self) -> SnapshotTable<'_> {
        SnapshotTable { name: "CL.THROTTLE", fingerprint: FINGERPRINT, table: &self.0 }
    }
}

// === impl TatEntry ===

impl TableEntry for TatEntry {
    type Extra = ();

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.0 <= now.0
    }

    /// No key ever uses an overflow counter.
    fn inherit_overflow(&self) -> Option<TatEntry> {
        Some(TatEntry::default())
    }
}

impl PersistentEntry for TatEntry {
    fn encode_entry(&self, (): &(), out: &mut Vec<u8>) {
        out.extend(self.0.to_le_bytes());
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, (): &mut ()) -> Option<TatEntry> {
        Some(TatEntry(shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?))))
    }
}
