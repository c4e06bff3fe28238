//! sliding_log: exactly N units in any window: a unit charged at ts counts while now < ts + period.
//!
//! A key charged at one moment needs only its entry; more moments are a ring of runs beside the table. The rings hold
//! about 8 × keys + N runs of 12 bytes at most, each shard an equal share. A ring that may not grow becomes coarser:
//! runs are merged into the last of their sub-window, so a unit leaves late by at most two periods ÷ the ring's runs
//! (half a period at worst), and never early. Units beyond N, a debt, are the newest; when older ones leave, the debt
//! counts in their place.

mod settle;

use std::collections::VecDeque;
use std::task::Waker;

use super::meter::{Locked, MeterSpec};
use super::open_charges::ShardCharges;
use super::queue::NO_NODE;
use super::slab::Slab;
use super::window_quota::{WindowParams, WindowQuota};
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{TableCapacity, TableEntry, TableParams};
use crate::{ChargeMark, Decision};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_model::Rate;

pub(crate) struct SlidingLogParams {
    quota: WindowQuota,
    /// Runs by which the rings of one shard may grow beyond [`RING_FIRST`].
    growth_max: usize,
}

/// The log of one key: 16 bytes, packed so that a cell of the table is 28.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub(crate) struct SlidingLogEntry {
    /// A period after the newest charge, ns.
    until: u64,
    /// Units in all runs.
    used: u32,
    /// Index of the ring; `NO_NODE`: all units were charged at one moment.
    ring: u32,
}

/// All rings of one shard of a table, under its lock.
#[derive(Default)]
pub(crate) struct LogRings {
    slab: Slab<VecDeque<ChargeRun>>,
    /// Capacity of all rings beyond [`RING_FIRST`], in runs.
    growth: usize,
    charges: ShardCharges,
}

/// Units charged at the same moment; oldest first in a ring.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct ChargeRun {
    at: u64,
    units: u32,
}

/// A ring's first capacity, in runs; the least for which merging is sure to free a run.
const RING_FIRST: usize = 4;
/// The allowed growth beyond [`RING_FIRST`], in runs per key.
const GROWTH_PER_KEY: usize = 4;

// === impl SlidingLogParams ===

impl SlidingLogParams {
    pub(crate) fn new(rate: Rate, spec: &MeterSpec<'_, SlidingLogParams>) -> SlidingLogParams {
        let quota = WindowQuota::new(rate, u32::MAX.into(), spec, |before| &before.quota);
        let growth = spec.keys_max.saturating_mul(GROWTH_PER_KEY).saturating_add(quota.max as usize);
        let shards =
            spec.previous.map_or(TableCapacity::shards_for(spec.keys_max), |meter| meter.table.shard_count());
        SlidingLogParams { quota, growth_max: growth.div_ceil(shards) }
    }

    #[inline]
    fn newest_charge(&self, log: &SlidingLogEntry) -> u64 {
        { log.until }.saturating_sub(self.quota.period)
    }

    /// `now`, or the newest charge if that is later; capped so that adding a period cannot overflow.
    #[inline]
    fn clamp_now(&self, log: &SlidingLogEntry, now: Now) -> u64 {
        now.0.max(self.newest_charge(log)).min(u64::MAX - self.quota.period)
    }

    /// The number of oldest runs that no longer count at `present`, and their units.
    #[inline]
    fn expired_runs(&self, log: &SlidingLogEntry, rings: &LogRings, present: u64) -> (usize, u32) {
        if log.until <= present {
            return (usize::MAX, log.used);
        }
        let mut expired = (0, 0);
        for run in rings.key_runs(log) {
            if { run.at }.saturating_add(self.quota.period) > present {
                break;
            }
            expired = (expired.0 + 1, expired.1 + run.units);
        }
        expired
    }

    /// Adds a run at the newest end. The rings of overflow counters never grow.
    #[inline]
    fn append_run(&self, log: &mut SlidingLogEntry, rings: &mut LogRings, run: ChargeRun, overflow: bool) {
        let before = *log;
        log.used += run.units;
        log.until = run.at + self.quota.period;
        if before.used == 0 || before.ring == NO_NODE && before.until == log.until {
            return;
        }
        if before.ring == NO_NODE {
            let mut ring = VecDeque::with_capacity(RING_FIRST);
            ring.push_back(ChargeRun { at: self.newest_charge(&before), units: before.used });
            log.ring = rings.slab.insert(ring);
        }
        let Some(ring) = rings.slab.get_mut(log.ring) else { return };
        if let Some(last) = ring.back_mut().filter(|last| last.at == run.at) {
            last.units += run.units;
            return;
        }
        if ring.len() == ring.capacity() {
            let capacity = ring.capacity();
            // No ring needs more runs than the units it may hold.
            let useful = (self.units_max() as usize).saturating_sub(capacity).min(capacity);
            let growth_max = if overflow { 0 } else { self.growth_max };
            let step = useful.min(growth_max.saturating_sub(rings.growth));
            if step == useful || step >= capacity / 4 {
                ring.reserve_exact(step);
                rings.growth += ring.capacity() - capacity;
            } else {
                merge_runs(ring, self.quota.period.saturating_mul(2).div_ceil(capacity as u64));
            }
        }
        ring.push_back(run);
    }

    /// Nanoseconds until `missing` units beyond those of the oldest `runs` have left.
    fn leaves_ns(&self, log: &SlidingLogEntry, rings: &LogRings, runs: usize, missing: u64, now: Now) -> u64 {
        let mut left = 0;
        let until = rings.key_runs(log).skip(runs).find_map(|run| {
            left += u64::from(run.units);
            (left >= missing).then(|| { run.at }.saturating_add(self.quota.period))
        });
        until.unwrap_or(log.until).saturating_sub(now.0)
    }
}

impl WindowParams for SlidingLogParams {
    type Entry = SlidingLogEntry;

    #[inline]
    fn quota(&self) -> &WindowQuota {
        &self.quota
    }

    #[inline]
    fn carry_debt(&self, (log, rings): Locked<'_, Self>, now: Now) {
        self.carry_runs(log, rings, now);
    }

    #[inline]
    fn take_units(
        &self,
        (log, rings): Locked<'_, Self>,
        cost: u64,
        now: Now,
        overflow: bool,
    ) -> Option<ChargeMark> {
        let at = self.clamp_now(log, now);
        let (runs, left) = self.expired_runs(log, rings, at);
        if u64::from(log.used - left).saturating_add(cost) > self.quota.max {
            return None;
        }
        rings.remove_oldest(log, runs, left);
        self.append_run(log, rings, ChargeRun { at, units: cost as u32 }, overflow);
        Some(ChargeMark::at_moment(at))
    }

    #[inline]
    fn build_decision(&self, (log, rings): &Locked<'_, Self>, cost: u64, now: Now) -> Decision {
        let (runs, left) = self.expired_runs(log, rings, self.clamp_now(log, now));
        let used = u64::from(log.used - left);
        let until = rings.newest_run(log).map_or(log.until, |at| at.saturating_add(self.quota.period));
        let full_ns = if used == 0 { 0 } else { until.saturating_sub(now.0) };
        let leaves_ns = |units: u64| self.leaves_ns(log, rings, runs, units, now);
        self.quota.decide_sliding(used, cost, full_ns, leaves_ns, || self.quota.period)
    }
}

impl TableParams<SlidingLogEntry> for SlidingLogParams {
    #[inline]
    fn is_idle(&self, log: &SlidingLogEntry, now: Now) -> bool {
        let carries_ns = if self.quota.debt(log.used.into()) > 0 { self.quota.period } else { 0 };
        { log.until }.saturating_add(carries_ns) <= now.0
    }

    /// Counts the present units as charged now, in a new period. A debt stays, and a lower limit makes none of
    /// the units used within the earlier one: as before, the newest units have to leave.
    fn convert_entry(
        &self,
        (log, rings): Locked<'_, Self>,
        before: &SlidingLogParams,
        now: Now,
        _: &mut Vec<Waker>,
    ) {
        let keeps_times = self.quota.period == before.quota.period;
        if keeps_times && !self.quota.settle_terms.settles {
            return;
        }
        before.carry_runs(log, rings, now);
        let present = before.clamp_now(log, now).min(u64::MAX - self.quota.period);
        let (runs, left) = before.expired_runs(log, rings, present);
        let used = u64::from(log.used - left);
        let kept = self.quota.convert_used(used, &before.quota, &mut rings.charges);
        if keeps_times {
            rings.remove_oldest(log, runs, left);
            return rings.keep_newest(log, kept as u32);
        }
        rings.drop_ring(log);
        *log = SlidingLogEntry::default();
        if kept > 0 {
            (log.until, log.used) = (present + self.quota.period, kept as u32);
        }
    }
}

/// Merges the runs of each sub-window of `width` ns into its last.
#[cold]
fn merge_runs(ring: &mut VecDeque<ChargeRun>, width: u64) {
    let mut kept: usize = 0;
    for index in 0..ring.len() {
        let mut run = ring[index];
        match kept.checked_sub(1).map(|last| ring[last]) {
            Some(last) if last.at / width == run.at / width => run.units += last.units,
            _ => kept += 1,
        }
        ring[kept - 1] = run;
    }
    ring.truncate(kept);
}

// === impl LogRings ===

impl AsMut<ShardCharges> for LogRings {
    fn as_mut(&mut self) -> &mut ShardCharges {
        &mut self.charges
    }
}

impl LogRings {
    /// The runs of a key that has a ring.
    #[inline]
    fn key_runs(&self, log: &SlidingLogEntry) -> impl Iterator<Item = &ChargeRun> {
        self.slab.get(log.ring).into_iter().flatten()
    }

    /// Removes the oldest `runs`, which hold `left` units.
    #[inline]
    fn remove_oldest(&mut self, log: &mut SlidingLogEntry, runs: usize, left: u32) {
        if runs == 0 {
            return;
        }
        log.used -= left;
        let Some(ring) = self.slab.get_mut(log.ring) else { return };
        if log.used == 0 {
            return self.drop_ring(log);
        }
        ring.drain(..runs);
        let capacity = ring.capacity();
        if capacity > RING_FIRST && ring.len() < capacity / 4 {
            ring.shrink_to((capacity / 2).max(RING_FIRST));
            self.growth -= capacity - ring.capacity();
        }
    }

    /// The moment of the newest run in the ring of a log.
    fn newest_run(&self, log: &SlidingLogEntry) -> Option<u64> {
        self.slab.get(log.ring)?.back().map(|run| run.at)
    }

    /// Takes `units` out of the run that holds the charge made at `at`.
    fn refund_units(&mut self, log: &mut SlidingLogEntry, at: u64, units: u32) {
        let Some(ring) = self.slab.get_mut(log.ring) else {
            log.used = log.used.saturating_sub(units);
            return self.release_if_empty(log);
        };
        // Runs are merged into later ones only, so the first run not before `at` holds it.
        let index = ring.partition_point(|run| run.at < at);
        let Some(run) = ring.get_mut(index) else { return };
        let units = units.min(run.units);
        run.units -= units;
        log.used -= units;
        if run.units == 0 {
            ring.remove(index);
        }
        self.release_if_empty(log);
    }

    fn drop_ring(&mut self, log: &mut SlidingLogEntry) {
        if let Some(ring) = self.slab.remove(log.ring) {
            self.growth -= ring.capacity().saturating_sub(RING_FIRST);
        }
        log.ring = NO_NODE;
    }
}

// === impl SlidingLogEntry ===

impl Default for SlidingLogEntry {
    fn default() -> SlidingLogEntry {
        SlidingLogEntry { until: 0, used: 0, ring: NO_NODE }
    }
}

impl TableEntry for SlidingLogEntry {
    type Extra = LogRings;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.until <= now.0
    }

    /// The newcomer inherits all units of the overflow counter, as if they had been charged at its newest moment.
    fn inherit_overflow(&self) -> Option<SlidingLogEntry> {
        Some(SlidingLogEntry { ring: NO_NODE, ..*self })
    }

    fn release_extra(mut self, rings: &mut LogRings) {
        rings.drop_ring(&mut self);
    }
}

impl PersistentEntry for SlidingLogEntry {
    fn encode_entry(&self, rings: &LogRings, out: &mut Vec<u8>) {
        out.extend({ self.until }.to_le_bytes());
        out.extend({ self.used }.to_le_bytes());
        for run in rings.key_runs(self) {
            out.extend({ run.at }.to_le_bytes());
            out.extend({ run.units }.to_le_bytes());
        }
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, rings: &mut LogRings) -> Option<SlidingLogEntry> {
        let until = shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?));
        let used = u32::from_le_bytes(take_bytes(bytes)?);
        let mut ring = VecDeque::with_capacity((bytes.len() / size_of::<ChargeRun>()).max(RING_FIRST));
        let (mut before, mut sum) = (0, 0_u32);
        while !bytes.is_empty() {
            let at = shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?));
            let units = u32::from_le_bytes(take_bytes(bytes)?);
            sum = sum.checked_add(units)?;
            if at < before || units == 0 {
                return None;
            }
            before = at;
            ring.push_back(ChargeRun { at, units });
        }
        if ring.is_empty() {
            return Some(SlidingLogEntry { until, used, ring: NO_NODE });
        }
        if sum != used || before > until {
            return None;
        }
        rings.growth += ring.capacity() - RING_FIRST;
        Some(SlidingLogEntry { until, used, ring: rings.slab.insert(ring) })
    }
}

#[cfg(test)]
mod tests;
