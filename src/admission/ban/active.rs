//! How many bans run now, so that nobody looks one up while there is none; and which of them the operator hears of.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::base::clock::Now;

#[derive(Debug, Default)]
pub(super) struct ActiveBans {
    count: AtomicUsize,
    /// When the first of them ends.
    next_end: AtomicU64,
    inner: Mutex<ActiveBansInner>,
}

#[derive(Debug, Default)]
struct ActiveBansInner {
    /// One per ban that runs, so that there are never more than clients in the table.
    ends: BinaryHeap<Reverse<u64>>,
    /// Since when how many were told, and how many were not.
    logged_since: Now,
    logged: u64,
    unlogged: u64,
}

/// Lines about new bans per second.
const LOGGED_MAX: u64 = 10;
const LOG_SPAN_NS: u64 = 1_000_000_000;

impl ActiveBans {
    /// Whether any ban runs: one load while there is none.
    #[inline]
    pub fn any_active(&self, now: Now) -> bool {
        self.count.load(Relaxed) > 0 && self.count_active(now) > 0
    }

    /// How many bans run.
    pub fn count_active(&self, now: Now) -> usize {
        if self.count.load(Relaxed) > 0 && self.next_end.load(Relaxed) <= now.0 {
            self.expire_ended(&mut self.inner.lock(), now);
        }
        self.count.load(Relaxed)
    }

    /// Notes a ban that begins now; answers as [`super::BanStart::told`].
    pub fn start_ban(&self, end: u64, now: Now) -> Option<u64> {
        self.add_ban(end, now);
        self.try_log(now)
    }

    /// As [`super::BanStart::told`], of a ban that is noted.
    pub fn try_log(&self, now: Now) -> Option<u64> {
        let mut kept = self.inner.lock();
        if now.ns_since(kept.logged_since) >= LOG_SPAN_NS {
            (kept.logged_since, kept.logged) = (now, 0);
        }
        if kept.logged >= LOGGED_MAX {
            kept.unlogged += 1;
            return None;
        }
        kept.logged += 1;
        Some(std::mem::take(&mut kept.unlogged))
    }

    /// Notes a ban.
    pub fn add_ban(&self, end: u64, now: Now) {
        let mut kept = self.inner.lock();
        kept.ends.push(Reverse(end));
        self.expire_ended(&mut kept, now);
    }

    /// Forgets those that have ended.
    fn expire_ended(&self, kept: &mut ActiveBansInner, now: Now) {
        while kept.ends.peek().is_some_and(|Reverse(end)| *end <= now.0) {
            kept.ends.pop();
        }
        self.next_end.store(kept.ends.peek().map_or(u64::MAX, |Reverse(end)| *end), Relaxed);
        self.count.store(kept.ends.len(), Relaxed);
    }
}
