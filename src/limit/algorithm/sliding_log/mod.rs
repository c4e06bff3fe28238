//! sliding_log: exactly N in any window: what is charged at ts counts while now < ts + period.
//!
//! A key charged at one moment is its entry alone; more moments are a ring of runs beside the table. The rings hold
//! about 8 × keys + N runs of 12 bytes at most, each shard an equal share. A ring that may not grow gets coarser:
//! runs are merged into the last of their sub-window, so a unit leaves late by at most two periods ÷ the ring's runs
//! (half a period at worst), and never early.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::queue::NONE;
use super::rate::Since;
use super::slab::Slab;
use crate::base::clock::{Now, Shift};
use crate::config::Rate;
use crate::limit::algorithm::table_spec::Make;
use crate::limit::table::saved::{Saved, take};
use crate::limit::table::{Entry, Key, Numbers, Room, Table};
use crate::limit::{Charge, Decision, Epoch, Outcome, Units, period_ns};

/// One rate of a sliding log with its counters.
pub(crate) struct SlidingLog {
    numbers: Arc<Span>,
    pub(crate) table: Arc<Table<Log, Span>>,
}

/// The numbers beside the logs.
pub(crate) struct Span {
    max: u64,
    period: u64,
    /// Runs that the rings of one shard may grow by beyond their first.
    growth_max: usize,
    epoch: Epoch,
}

/// What one key was charged: 16 bytes, packed so that a slot of the table is 28.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub(crate) struct Log {
    /// A period after the newest charge, ns.
    until: u64,
    /// Units in all runs.
    used: u32,
    /// Place of the ring; `NONE`: all units were charged at one moment.
    ring: u32,
}

/// All rings of one shard of a table, under its lock.
#[derive(Default)]
pub(crate) struct Rings {
    slab: Slab<VecDeque<Run>>,
    /// Runs for which there is room beyond each ring's first.
    growth: usize,
}

/// Units that were charged at the same moment; oldest first in a ring.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Run {
    at: u64,
    units: u32,
}

/// A ring's first room, in runs; the least for which merging is sure to free a run.
const FIRST: usize = 4;
/// Per key, as growth beyond [`FIRST`] is reckoned.
const GROWTH_PER_KEY: usize = 4;

// === impl SlidingLog ===

impl SlidingLog {
    pub(crate) fn new(rate: Rate, make: &Make<'_, SlidingLog>) -> SlidingLog {
        let (max, period) = (rate.units.get().min(u32::MAX.into()), period_ns(rate));
        let growth = make.keys_max.saturating_mul(GROWTH_PER_KEY).saturating_add(max as usize);
        let shards = make.before.map_or(Room::shards(make.keys_max), |before| before.table.shards());
        let epoch = make.epoch(|before| (before.numbers.epoch, before.numbers.period == period));
        let numbers = Arc::new(Span { max, period, growth_max: growth.div_ceil(shards), epoch });
        let table = make.table(&numbers, |before| &before.table);
        SlidingLog { numbers, table }
    }

    pub(crate) fn apply(&self, keys_max: usize, clock: &dyn Fn() -> Now) {
        self.table.convert(&self.numbers, keys_max, clock);
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.numbers.max
    }

    /// Judges units and takes them if they fit.
    #[inline]
    pub(crate) fn charge(&self, units: &Units, now: Now) -> (Decision, Option<Charge>) {
        let cost = units.cost;
        self.table.update(&units.key, now, |log, rings, span, shared| {
            let present = span.present(log, now);
            let (runs, left) = span.gone(log, rings, present);
            let used = u64::from(log.used - left);
            if used.saturating_add(cost) > span.max {
                return (span.decision(log, rings, cost, now), None);
            }
            rings.forget_oldest(log, runs, left);
            // Shared counters are many too many already: they stay small.
            let growth_max = if shared { 0 } else { span.growth_max };
            span.note(log, rings, Run { at: present, units: cost as u32 }, growth_max);
            let (since, epoch) = (Since::at(present), span.epoch);
            let charge = Charge { since, node: NONE, shared, displaces: false, epoch };
            (span.decision(log, rings, 0, now), Some(charge))
        })
    }

    /// Judges units and takes nothing.
    pub(crate) fn peek(&self, units: &Units, now: Now) -> Decision {
        self.table.peek(&units.key, |log, rings, span| span.decision(log, rings, units.cost, now))
    }

    /// Gives a charge back; one that no longer counts changes nothing any more.
    pub(crate) fn refund(&self, key: &Key, cost: u64, charge: &Charge, _: impl FnOnce() -> Now) {
        let at = charge.since.at_ns();
        self.table.revisit(key, charge.shared, |log, rings, span| {
            let newest = span.newest(log);
            if charge.epoch == span.epoch && at <= newest && newest - at < span.period {
                rings.give_back(log, at, cost.min(u32::MAX.into()) as u32);
            }
        });
    }
}

// === impl Span ===

impl Span {
    /// The moment of the newest charge.
    #[inline]
    fn newest(&self, log: &Log) -> u64 {
        { log.until }.saturating_sub(self.period)
    }

    /// `now`, unless a newer charge came first; far enough from the end of time for a period.
    #[inline]
    fn present(&self, log: &Log, now: Now) -> u64 {
        now.0.max(self.newest(log)).min(u64::MAX - self.period)
    }

    /// How many of the oldest runs no longer count at `present`, and their units.
    #[inline]
    fn gone(&self, log: &Log, rings: &Rings, present: u64) -> (usize, u32) {
        if log.until <= present {
            return (usize::MAX, log.used);
        }
        let mut gone = (0, 0);
        for run in rings.of(log) {
            if { run.at }.saturating_add(self.period) > present {
                break;
            }
            gone = (gone.0 + 1, gone.1 + run.units);
        }
        gone
    }

    /// Adds a run at the newer end.
    #[inline]
    fn note(&self, log: &mut Log, rings: &mut Rings, run: Run, growth_max: usize) {
        let before = *log;
        log.used += run.units;
        log.until = run.at + self.period;
        if before.used == 0 || before.ring == NONE && before.until == log.until {
            return;
        }
        if before.ring == NONE {
            let mut ring = VecDeque::with_capacity(FIRST);
            ring.push_back(Run { at: self.newest(&before), units: before.used });
            log.ring = rings.slab.insert(ring);
        }
        let Some(ring) = rings.slab.get_mut(log.ring) else { return };
        if let Some(last) = ring.back_mut().filter(|last| last.at == run.at) {
            last.units += run.units;
            return;
        }
        if ring.len() == ring.capacity() {
            let room = ring.capacity();
            // No ring needs more runs than the units it may hold.
            let useful = (self.max as usize).saturating_sub(room).min(room);
            let step = useful.min(growth_max.saturating_sub(rings.growth));
            if step == useful || step >= room / 4 {
                ring.reserve_exact(step);
                rings.growth += ring.capacity() - room;
            } else {
                coarsen(ring, self.period.saturating_mul(2).div_ceil(room as u64));
            }
        }
        ring.push_back(run);
    }

    #[inline]
    fn decision(&self, log: &Log, rings: &Rings, cost: u64, now: Now) -> Decision {
        let (runs, left) = self.gone(log, rings, self.present(log, now));
        let remaining = self.max.saturating_sub(u64::from(log.used - left));
        let (outcome, retry_after_ns) = match cost.checked_sub(remaining) {
            None | Some(0) => (Outcome::Admit, 0),
            Some(missing) => (Outcome::Reject, self.wait(log, rings, runs, missing, now)),
        };
        let reset_ns = if remaining == 0 { self.wait(log, rings, runs, 1, now) } else { 0 };
        Decision { outcome, remaining, reset_ns, retry_after_ns, wait_ns: 0 }
    }

    /// Nanoseconds until `missing` more units have left than the oldest `runs`.
    fn wait(&self, log: &Log, rings: &Rings, runs: usize, missing: u64, now: Now) -> u64 {
        let mut left = 0;
        let until = rings.of(log).skip(runs).find_map(|run| {
            left += u64::from(run.units);
            (left >= missing).then(|| { run.at }.saturating_add(self.period))
        });
        until.unwrap_or(log.until).saturating_sub(now.0)
    }
}

impl Numbers<Log> for Span {
    /// Of another period: what counts now counts as charged now.
    fn convert(&self, log: &mut Log, rings: &mut Rings, before: &Span, now: Now, _: &mut Vec<Waker>) {
        if self.period == before.period {
            return;
        }
        let present = before.present(log, now).min(u64::MAX - self.period);
        let (_, left) = before.gone(log, rings, present);
        let used = log.used - left;
        rings.close(log);
        *log = Log::default();
        if used > 0 {
            (log.until, log.used) = (present + self.period, used);
        }
    }
}

/// Merges the runs of each sub-window of `width` ns into its last.
#[cold]
fn coarsen(ring: &mut VecDeque<Run>, width: u64) {
    let mut kept: usize = 0;
    for place in 0..ring.len() {
        let mut run = ring[place];
        match kept.checked_sub(1).map(|last| ring[last]) {
            Some(last) if last.at / width == run.at / width => run.units += last.units,
            _ => kept += 1,
        }
        ring[kept - 1] = run;
    }
    ring.truncate(kept);
}

// === impl Rings ===

impl Rings {
    /// The runs of a key that has a ring.
    #[inline]
    fn of(&self, log: &Log) -> impl Iterator<Item = &Run> {
        self.slab.get(log.ring).into_iter().flatten()
    }

    /// Forgets the oldest `runs`, which hold `left` units.
    #[inline]
    fn forget_oldest(&mut self, log: &mut Log, runs: usize, left: u32) {
        if runs == 0 {
            return;
        }
        log.used -= left;
        let Some(ring) = self.slab.get_mut(log.ring) else { return };
        if log.used == 0 {
            return self.close(log);
        }
        ring.drain(..runs);
        let room = ring.capacity();
        if room > FIRST && ring.len() < room / 4 {
            ring.shrink_to((room / 2).max(FIRST));
            self.growth -= room - ring.capacity();
        }
    }

    /// Takes `units` out of the run that holds what was charged at `at`.
    fn give_back(&mut self, log: &mut Log, at: u64, units: u32) {
        let Some(ring) = self.slab.get_mut(log.ring) else {
            log.used = log.used.saturating_sub(units);
            if log.used == 0 {
                *log = Log::default();
            }
            return;
        };
        // Runs are merged into later ones only.
        let place = ring.partition_point(|run| run.at < at);
        let Some(run) = ring.get_mut(place) else { return };
        let units = units.min(run.units);
        run.units -= units;
        log.used -= units;
        if run.units == 0 {
            ring.remove(place);
        }
        if log.used == 0 {
            self.close(log);
            *log = Log::default();
        }
    }

    fn close(&mut self, log: &mut Log) {
        if let Some(ring) = self.slab.remove(log.ring) {
            self.growth -= ring.capacity().saturating_sub(FIRST);
        }
        log.ring = NONE;
    }
}

// === impl Log ===

impl Default for Log {
    fn default() -> Log {
        Log { until: 0, used: 0, ring: NONE }
    }
}

impl Entry for Log {
    type Extra = Rings;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.until <= now.0
    }

    /// The newcomer starts from all units of the shared counter, as if they had been charged at its newest moment.
    fn inherit(&self) -> Option<Log> {
        Some(Log { ring: NONE, ..*self })
    }

    fn forget(mut self, rings: &mut Rings) {
        rings.close(&mut self);
    }
}

impl Saved for Log {
    fn encode(&self, rings: &Rings, out: &mut Vec<u8>) {
        out.extend({ self.until }.to_le_bytes());
        out.extend({ self.used }.to_le_bytes());
        for run in rings.of(self) {
            out.extend({ run.at }.to_le_bytes());
            out.extend({ run.units }.to_le_bytes());
        }
    }

    fn decode(mut bytes: &[u8], shift: Shift, rings: &mut Rings) -> Option<Log> {
        let until = shift.moment(u64::from_le_bytes(take(&mut bytes)?));
        let used = u32::from_le_bytes(take(&mut bytes)?);
        let mut ring = VecDeque::with_capacity((bytes.len() / size_of::<Run>()).max(FIRST));
        let (mut before, mut sum) = (0, 0_u32);
        while !bytes.is_empty() {
            let at = shift.moment(u64::from_le_bytes(take(&mut bytes)?));
            let units = u32::from_le_bytes(take(&mut bytes)?);
            sum = sum.checked_add(units)?;
            if at < before || units == 0 {
                return None;
            }
            before = at;
            ring.push_back(Run { at, units });
        }
        if ring.is_empty() {
            return Some(Log { until, used, ring: NONE });
        }
        if sum != used || before > until {
            return None;
        }
        rings.growth += ring.capacity() - FIRST;
        Some(Log { until, used, ring: rings.slab.insert(ring) })
    }
}

#[cfg(test)]
mod tests;
