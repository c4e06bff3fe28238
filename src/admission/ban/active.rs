//! How many bans run now, so that nobody looks one up while there is none; and which of them the operator hears of.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::base::clock::Now;

#[derive(Debug, Default)]
pub(super) struct Running {
    count: AtomicUsize,
    /// When the first of them ends.
    next_end: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// One per ban that runs, so that there are never more than clients in the table.
    ends: BinaryHeap<Reverse<u64>>,
    /// Since when how many were told, and how many were not.
    told_since: Now,
    told: u64,
    untold: u64,
}

/// Lines about new bans per second.
const TOLD_MAX: u64 = 10;
const TOLD_SPAN_NS: u64 = 1_000_000_000;

impl Running {
    /// Whether any ban runs: one load while there is none.
    #[inline]
    pub fn any(&self, now: Now) -> bool {
        self.count.load(Relaxed) > 0 && self.count(now) > 0
    }

    /// How many bans run.
    pub fn count(&self, now: Now) -> usize {
        if self.count.load(Relaxed) > 0 && self.next_end.load(Relaxed) <= now.0 {
            self.settle(&mut self.kept.lock(), now);
        }
        self.count.load(Relaxed)
    }

    /// Notes a ban that begins now; answers as [`super::Started::told`].
    pub fn start(&self, end: u64, now: Now) -> Option<u64> {
        self.resume(end, now);
        self.tell(now)
    }

    /// As [`super::Started::told`], of a ban that is noted.
    pub fn tell(&self, now: Now) -> Option<u64> {
        let mut kept = self.kept.lock();
        if now.since(kept.told_since) >= TOLD_SPAN_NS {
            (kept.told_since, kept.told) = (now, 0);
        }
        if kept.told >= TOLD_MAX {
            kept.untold += 1;
            return None;
        }
        kept.told += 1;
        Some(std::mem::take(&mut kept.untold))
    }

    /// Notes a ban.
    pub fn resume(&self, end: u64, now: Now) {
        let mut kept = self.kept.lock();
        kept.ends.push(Reverse(end));
        self.settle(&mut kept, now);
    }

    /// Forgets those that have ended.
    fn settle(&self, kept: &mut Kept, now: Now) {
        while kept.ends.peek().is_some_and(|Reverse(end)| *end <= now.0) {
            kept.ends.pop();
        }
        self.next_end.store(kept.ends.peek().map_or(u64::MAX, |Reverse(end)| *end), Relaxed);
        self.count.store(kept.ends.len(), Relaxed);
    }
}
