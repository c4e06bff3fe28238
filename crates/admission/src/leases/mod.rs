//! Leases: the hold of callers of the rate-limit service beyond their call: concurrency slots, and charges that they
//! still have to settle.
//!
//! A lease ends when its holder releases it, or when its time is over: a holder that died keeps nothing. Leases are
//! kept by their end in one ordered set, and a sweep looks at its first entry alone; there is no task and no timer
//! per lease. At most [`LEASES_MAX`] are held. A place is reserved before the limits are judged, so that a call that
//! finds none has taken nothing.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use aws_lc_rs::rand;
use parking_lot::Mutex;

use crate::chain::{ChainPermit, FinalCharges};
use sluicegate_base::clock::{Now, duration_ns};
use sluicegate_limit::Limit;
use sluicegate_observe::metrics::Metrics;

/// Most leases that are held at once; each takes about a kilobyte.
pub const LEASES_MAX: usize = 100_000;
/// Leases that one sweep ends, so that it delays no request for long.
const SWEPT_MAX: usize = 4_096;

/// Hexadecimal digits of an id.
const DIGITS: usize = 32;

/// The id of a lease: 128 random bits, so that no caller can guess the lease of another; 32 hexadecimal digits in
/// calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u128);

/// All leases of a process. Gateways of later configurations continue with them.
#[derive(Default)]
pub struct Leases {
    held: Mutex<LeaseSet>,
    /// Places that are taken: leases, and calls that are being judged.
    places: AtomicUsize,
    /// The end of the lease that ends first, in the nanoseconds of [`Now`]; 0 = there is none.
    first_end: AtomicU64,
}

#[derive(Default)]
struct LeaseSet {
    by_id: HashMap<LeaseId, LeaseEntry>,
    by_end: BTreeSet<(Now, LeaseId)>,
}

struct LeaseEntry {
    permit: ChainPermit,
    /// The metrics of the gateway that granted it, with the numbers of its limits.
    metrics: Arc<Metrics>,
    ends: Now,
    _place: PlaceCount,
}

/// A place for a lease, with its id; dropping it gives the place back.
pub struct LeasePlace {
    leases: Arc<Leases>,
    id: LeaseId,
    place: PlaceCount,
}

/// One of the places, counted out by `Drop`.
struct PlaceCount(Arc<Leases>);

/// Why a call has no place for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoLease {
    /// [`LEASES_MAX`] are held.
    Full,
    /// The operating system gives no randomness.
    NoRandomness,
}

/// The units that a holder says it used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsedUnits {
    /// The units of every limit of the lease with a charge that is not settled yet.
    All(u64),
    /// The units by the names of limits, each at most once.
    ByLimit(Vec<(String, u64)>),
}

/// Why a settlement changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettleFault {
    /// There is no such lease, or it has ended.
    Unknown,
    /// The lease has no charge of this limit that is still to be settled; empty = of any limit.
    NotReserved(String),
}

// === impl LeaseId ===

impl LeaseId {
    /// An id from the generator of the cryptographic library; `None` if that fails.
    pub fn random() -> Option<LeaseId> {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).ok()?;
        Some(LeaseId(u128::from_be_bytes(bytes)))
    }

    /// The id in a call; `None` of any other text.
    pub fn parse(text: &str) -> Option<LeaseId> {
        let is_id =
            text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let parsed = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
        parsed.map(LeaseId)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A holder of an id can end the lease, so it is not written elsewhere.
impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseId")
    }
}

// === impl Leases ===

impl Leases {
    /// Takes a place for one more lease at `now`.
    ///
    /// # Errors
    /// There is none, or no id can be made.
    pub fn reserve_place(self: &Arc<Leases>, worker: usize, now: Now) -> Result<LeasePlace, NoLease> {
        // Ended leases are free to the slot, although the next sweep is still to come.
        self.end_due(worker, now);
        let taken = self.places.fetch_add(1, Relaxed);
        // Above the maximum, dropping it counts it out again.
        let place = PlaceCount(self.clone());
        if taken >= LEASES_MAX {
            return Err(NoLease::Full);
        }
        let id = LeaseId::random().ok_or(NoLease::NoRandomness)?;
        Ok(LeasePlace { leases: self.clone(), id, place })
    }

    /// Leases that are held.
    pub fn count(&self) -> usize {
        self.held.lock().by_id.len()
    }

    /// Ends overdue leases, for the metrics of this worker.
    pub fn end_due(&self, worker: usize, now: Now) {
        let first_end = self.first_end.load(Relaxed);
        if first_end == 0 || now.0 < first_end {
            return;
        }
        let mut ended = Vec::new();
        self.change(|held| {
            while ended.len() < SWEPT_MAX
                && let Some((ends, id)) = held.by_end.first().copied()
                && ends <= now
            {
                ended.extend(held.remove_lease(id));
            }
        });
        // Outside of the lock: slots go to waiters, and charges to the store.
        ended.into_iter().for_each(|lease| lease.end(worker, now));
    }

    /// Ends all leases, because the process ends.
    pub fn end_all(&self, worker: usize, now: Now) {
        let held = std::mem::take(&mut *self.held.lock());
        self.first_end.store(0, Relaxed);
        held.by_id.into_values().for_each(|lease| lease.end(worker, now));
    }

    /// Ends a lease: its slots are free, and charges that were not settled stay as they were reserved. False if there
    /// is none, or if its time is over.
    pub fn release(&self, id: LeaseId, worker: usize, now: Now) -> bool {
        let Some(lease) = self.change(|held| held.remove_lease(id)) else { return false };
        let was_held = lease.ends > now;
        lease.end(worker, now);
        was_held
    }

    /// Lets a lease end only after `span` from `now`. False if there is none, or if its time is over.
    pub fn renew(&self, id: LeaseId, span: Duration, now: Now) -> bool {
        self.change(|LeaseSet { by_id, by_end }| {
            let Some(lease) = by_id.get_mut(&id).filter(|lease| lease.ends > now) else { return false };
            by_end.remove(&(lease.ends, id));
            lease.ends = end_after(now, span);
            by_end.insert((lease.ends, id))
        })
    }

    /// Corrects charges of a lease to the units that were used. A lease that then holds nothing more has ended. Also
    /// returns whether it goes on.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn settle(
        &self,
        id: LeaseId,
        units: &UsedUnits,
        worker: usize,
        now: Now,
    ) -> Result<(FinalCharges, bool), SettleFault> {
        let settled = self.change(|held| {
            let found = held.by_id.get_mut(&id).filter(|lease| lease.ends > now);
            let lease = found.ok_or(SettleFault::Unknown)?;
            lease.check_units(units)?;
            let settlements = lease.permit.settle_units(|limit| units.find(limit), now);
            lease.count_settlements(&settlements, worker);
            let goes_on = lease.permit.holds_anything();
            Ok((settlements, if goes_on { None } else { held.remove_lease(id) }))
        });
        settled.map(|(settlements, ended)| (settlements, ended.is_none()))
    }

    /// Changes the leases under their lock, which is free again before anything that is returned is dropped.
    fn change<R>(&self, change: impl FnOnce(&mut LeaseSet) -> R) -> R {
        let mut held = self.held.lock();
        let changed = change(&mut held);
        self.first_end.store(held.by_end.first().map_or(0, |(ends, _)| ends.0), Relaxed);
        changed
    }
}

fn end_after(now: Now, span: Duration) -> Now {
    Now(now.0.saturating_add(duration_ns(span)))
}

// === impl LeaseSet ===

impl LeaseSet {
    fn remove_lease(&mut self, id: LeaseId) -> Option<LeaseEntry> {
        let lease = self.by_id.remove(&id)?;
        self.by_end.remove(&(lease.ends, id));
        Some(lease)
    }
}

// === impl LeaseEntry ===

impl LeaseEntry {
    fn end(mut self, worker: usize, now: Now) {
        let settlements = self.permit.settle_reserved(now);
        self.count_settlements(&settlements, worker);
    }

    fn check_units(&self, units: &UsedUnits) -> Result<(), SettleFault> {
        let reserves = |name: &str| self.permit.reserving_limits().any(|limit| *limit.name == *name);
        match units {
            UsedUnits::All(_) if self.permit.reserving_limits().next().is_none() => {
                Err(SettleFault::NotReserved(String::new()))
            }
            UsedUnits::All(_) => Ok(()),
            UsedUnits::ByLimit(all) => match all.iter().find(|(name, _)| !reserves(name)) {
                Some((name, _)) => Err(SettleFault::NotReserved(name.clone())),
                None => Ok(()),
            },
        }
    }

    fn count_settlements(&self, settlements: &FinalCharges, worker: usize) {
        for settled in settlements {
            let source = settled.source as usize;
            self.metrics.count_charge(worker, settled.limit, source, settled.charged, settled.overrun);
        }
    }
}

// === impl UsedUnits ===

impl UsedUnits {
    fn find(&self, limit: &Limit) -> Option<u64> {
        match self {
            UsedUnits::All(units) => Some(*units),
            UsedUnits::ByLimit(all) => {
                all.iter().find(|(name, _)| *limit.name == **name).map(|(_, units)| *units)
            }
        }
    }
}

// === impl LeasePlace ===

impl LeasePlace {
    /// Holds the claims of the permit for `span` from `now`.
    pub fn hold(self, permit: ChainPermit, metrics: Arc<Metrics>, span: Duration, now: Now) -> LeaseId {
        let LeasePlace { leases, id, place } = self;
        let ends = end_after(now, span);
        leases.change(|held| {
            held.by_end.insert((ends, id));
            held.by_id.insert(id, LeaseEntry { permit, metrics, ends, _place: place });
        });
        id
    }
}

// === impl PlaceCount ===

impl Drop for PlaceCount {
    fn drop(&mut self) {
        self.0.places.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
