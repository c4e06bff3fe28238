//! The number of active bans, so that no lookup happens while there is none, and the bound on log lines about new
//! bans.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use sluicegate_base::clock::Now;

#[derive(Debug, Default)]
pub(super) struct ActiveBans {
    count: AtomicUsize,
    /// The end of the first active ban.
    next_end: AtomicU64,
    inner: Mutex<ActiveBansInner>,
}

#[derive(Debug, Default)]
struct ActiveBansInner {
    /// One end per active ban, so there are never more than clients in the table.
    ends: BinaryHeap<Reverse<u64>>,
    /// Start of the log span, lines logged in it, and starts not logged since the last line.
    logged_since: Now,
    logged: u64,
    unlogged: u64,
}

/// Log lines about new bans per span.
const LOGGED_MAX: u64 = 10;
const LOG_SPAN_NS: u64 = 1_000_000_000;

impl ActiveBans {
    /// True if any ban is active: one load while there is none.
    pub(super) fn any_active(&self, now: Now) -> bool {
        self.count.load(Relaxed) > 0 && self.count_active(now) > 0
    }

    /// The number of active bans.
    pub(super) fn count_active(&self, now: Now) -> usize {
        if self.count.load(Relaxed) > 0 && self.next_end.load(Relaxed) <= now.0 {
            self.expire_ended(&mut self.inner.lock(), now);
        }
        self.count.load(Relaxed)
    }

    /// Returns [`super::BanStart::log_skipped`] for a ban that was added.
    pub(super) fn try_log(&self, now: Now) -> Option<u64> {
        let mut inner = self.inner.lock();
        if now.ns_since(inner.logged_since) >= LOG_SPAN_NS {
            (inner.logged_since, inner.logged) = (now, 0);
        }
        if inner.logged >= LOGGED_MAX {
            inner.unlogged += 1;
            return None;
        }
        inner.logged += 1;
        Some(std::mem::take(&mut inner.unlogged))
    }

    pub(super) fn add_ban(&self, end: u64, now: Now) {
        let mut inner = self.inner.lock();
        inner.ends.push(Reverse(end));
        self.expire_ended(&mut inner, now);
    }

    /// Removes a ban that was lifted, by its end.
    pub(super) fn remove_ban(&self, end: u64, now: Now) {
        let mut inner = self.inner.lock();
        let mut is_removed = false;
        inner.ends.retain(|Reverse(other)| {
            let is_lifted = !is_removed && *other == end;
            is_removed |= is_lifted;
            !is_lifted
        });
        self.expire_ended(&mut inner, now);
    }

    fn expire_ended(&self, inner: &mut ActiveBansInner, now: Now) {
        while inner.ends.peek().is_some_and(|Reverse(end)| *end <= now.0) {
            inner.ends.pop();
        }
        self.next_end.store(inner.ends.peek().map_or(u64::MAX, |Reverse(end)| *end), Relaxed);
        self.count.store(inner.ends.len(), Relaxed);
    }
}
