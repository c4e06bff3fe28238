//! Settles the charges of a log by the used units of responses.

use super::{ChargeRun, LogRings, SlidingLogEntry, SlidingLogParams};
use crate::algorithm::meter::Locked;
use crate::algorithm::open_charges::OpenUnits;
use crate::algorithm::settle::{ForcedUnits, GivenBack, SettleParams};
use crate::algorithm::window_quota::Carried;
use crate::table::CounterKey;
use sluicegate_base::clock::Now;

impl SettleParams for SlidingLogParams {
    /// Nothing, if the units no longer count.
    fn give_back(&self, (log, rings): Locked<'_, Self>, given: &GivenBack<'_>, now: Now) {
        let (at, newest) = (given.charge.since.at_ns(), self.newest_charge(log));
        // Without debt, units that have left are in their own run, and taking them out changes nothing.
        let present = if self.quota.settle_terms.settles { newest.max(now.0) } else { newest };
        if at <= newest && present - at < self.quota.period {
            rings.refund_units(log, at, given.units.min(u32::MAX.into()) as u32);
        }
    }

    fn credit_units(&self, (log, rings): Locked<'_, Self>, _: &CounterKey, units: u64, now: Now) {
        self.remove_expired(log, rings, now);
        let mut left = units.min(u32::MAX.into()) as u32;
        while left > 0 && log.used > 0 {
            let used = { log.used };
            let newest = rings.newest_run(log).unwrap_or_else(|| self.newest_charge(log));
            rings.refund_units(log, newest, left);
            let given = used.saturating_sub(log.used);
            if given == 0 {
                return;
            }
            left = left.saturating_sub(given);
        }
    }

    fn force_units(&self, (log, rings): Locked<'_, Self>, forced: &ForcedUnits<'_>, now: Now) -> u64 {
        let present = self.remove_expired(log, rings, now);
        let taken = forced.units.min(self.units_max().saturating_sub(log.used.into()));
        let own = forced.own.map(|charge| charge.since.at_ns());
        let own = own.filter(|at| at.saturating_add(self.quota.period) > present);
        let newest = self.newest_charge(log);
        // Cannot overflow: a sum of at most `units_max`, which is 32 bits wide.
        let run = ChargeRun { at: present, units: taken as u32 };
        let counts_in_own = own.is_some_and(|at| rings.add_to_run(log, at, newest, run.units));
        if taken > 0 && !counts_in_own {
            self.append_run(log, rings, run, forced.overflow);
        }
        forced.units - taken
    }

    fn keep_open_units(&self, (log, rings): Locked<'_, Self>, _: &CounterKey, open: &[OpenUnits], now: Now) {
        let present = self.remove_expired(log, rings, now);
        let counts =
            |open: &&OpenUnits| open.at_ns.is_none_or(|at| at.saturating_add(self.quota.period) > present);
        rings.keep_open(log, open.iter().filter(counts));
    }
}

// === impl SlidingLogParams ===

impl SlidingLogParams {
    /// The most units of a key, with its debt.
    pub(super) fn units_max(&self) -> u64 {
        self.quota.units_max().min(u32::MAX.into())
    }

    /// Removes the runs that no longer count, and returns the moment as of which they do not.
    fn remove_expired(&self, log: &mut SlidingLogEntry, rings: &mut LogRings, now: Now) -> u64 {
        let present = self.clamp_now(log, now);
        let (runs, left) = self.expired_runs(log, rings, present);
        rings.remove_oldest(log, runs, left);
        present
    }

    /// Lets the runs of a key with debt leave one by one, and carries its debt.
    #[inline]
    pub(super) fn carry_runs(&self, log: &mut SlidingLogEntry, rings: &mut LogRings, now: Now) {
        if self.quota.debt(log.used.into()) > 0 {
            self.carry_oldest_runs(log, rings, now);
        }
    }

    #[cold]
    fn carry_oldest_runs(&self, log: &mut SlidingLogEntry, rings: &mut LogRings, now: Now) {
        let present = self.clamp_now(log, now);
        while u64::from(log.used) > self.quota.max {
            let newest = ChargeRun { at: self.newest_charge(log), units: log.used };
            let oldest = rings.key_runs(log).next().copied().unwrap_or(newest);
            let leaves = { oldest.at }.saturating_add(self.quota.period);
            if leaves > present {
                return;
            }
            let carried = Carried::of(oldest.units.into(), log.used.into(), self.quota.max);
            // Cannot overflow: parts of `used`, which is 32 bits wide.
            log.used -= carried.left as u32;
            log.until = leaves + self.quota.period;
            let run = ChargeRun { at: leaves, units: carried.debt as u32 };
            rings.redate_newest(log, carried.newest as u32, run);
        }
    }
}

// === impl LogRings ===

impl LogRings {
    /// Replaces the oldest run and the `newest` units by a newer run.
    fn redate_newest(&mut self, log: &SlidingLogEntry, mut newest: u32, run: ChargeRun) {
        let Some(ring) = self.slab.get_mut(log.ring) else { return };
        ring.pop_front();
        while let Some(last) = ring.back_mut().filter(|_| newest > 0) {
            let taken = newest.min(last.units);
            last.units -= taken;
            newest -= taken;
            if last.units == 0 {
                ring.pop_back();
            }
        }
        match ring.back_mut().filter(|last| last.at == run.at) {
            Some(last) => last.units += run.units,
            None => ring.push_back(run),
        }
    }

    /// Adds `units` to the run that holds the charge made at `at`; `false` if there is none. `newest` = the moment of
    /// the newest charge.
    fn add_to_run(&mut self, log: &mut SlidingLogEntry, at: u64, newest: u64, units: u32) -> bool {
        if log.used == 0 || at > newest {
            return false;
        }
        if let Some(ring) = self.slab.get_mut(log.ring) {
            let index = ring.partition_point(|run| run.at < at);
            let Some(run) = ring.get_mut(index) else { return false };
            run.units += units;
        }
        log.used += units;
        true
    }

    /// Forgets the oldest units until `kept` are left.
    pub(super) fn keep_newest(&mut self, log: &mut SlidingLogEntry, kept: u32) {
        let mut excess = log.used.saturating_sub(kept);
        log.used -= excess;
        if let Some(ring) = self.slab.get_mut(log.ring) {
            while let Some(oldest) = ring.front_mut().filter(|_| excess > 0) {
                let taken = excess.min(oldest.units);
                oldest.units -= taken;
                excess -= taken;
                if oldest.units == 0 {
                    ring.pop_front();
                }
            }
        }
        self.release_if_empty(log);
    }

    /// Forgets all units but those that are `open`, the oldest first.
    fn keep_open<'a>(&mut self, log: &mut SlidingLogEntry, open: impl Iterator<Item = &'a OpenUnits>) {
        let mut open: Vec<OpenUnits> = open.copied().collect();
        let Some(ring) = self.slab.get_mut(log.ring) else {
            let kept = open.iter().fold(0, |sum: u64, open| sum.saturating_add(open.units));
            log.used = u64::from(log.used).min(kept) as u32;
            return self.release_if_empty(log);
        };
        let forgotten: Vec<ChargeRun> = ring.iter().copied().collect();
        let mut next = 0;
        for run in ring.iter_mut() {
            let (at, mut free) = (run.at, u64::from(run.units));
            run.units = 0;
            // Runs are merged into later ones only, so a charge is in the first run that is not before it.
            while let Some(open) =
                open.get_mut(next).filter(|open| open.at_ns.is_none_or(|moment| moment <= at))
            {
                let kept = if open.at_ns.is_some() { open.units.min(free) } else { 0 };
                run.units += kept as u32;
                (open.units, free) = (open.units - kept, free - kept);
                next += 1;
            }
        }
        // Units of an earlier epoch, or that count later than they were charged, count among the newest.
        let mut elsewhere = open.iter().fold(0, |sum: u64, open| sum.saturating_add(open.units));
        for (run, before) in ring.iter_mut().zip(&forgotten).rev() {
            let kept = elsewhere.min(u64::from(before.units - run.units));
            run.units += kept as u32;
            elsewhere -= kept;
        }
        ring.retain(|run| run.units > 0);
        log.used = ring.iter().map(|run| run.units).sum();
        self.release_if_empty(log);
    }

    /// A log without units is as that of a newcomer.
    pub(super) fn release_if_empty(&mut self, log: &mut SlidingLogEntry) {
        if log.used == 0 {
            self.drop_ring(log);
            *log = SlidingLogEntry::default();
        }
    }
}
