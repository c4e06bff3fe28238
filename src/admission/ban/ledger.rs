//! The shared bans that run, so that a store which does not know of them can be told.

use std::collections::{BTreeSet, HashMap};

use super::SAME_BAN_NS;
use crate::base::clock::Now;
use crate::shared::script::bans::{Ban, BanCursor, CLIENTS_PER_CALL};

/// Bans that are remembered, as many as the store announces; of more it is not told again.
const BANS_MAX: usize = 100_000;
/// Fewer are not worth looking for those that have ended.
const PURGED_MIN: usize = 1024;
/// Between two looks for those that have ended.
const PURGE_NS: u64 = 1_000_000_000;

/// Bans by the ids of their clients.
#[derive(Debug, Default)]
pub(super) struct BanLedger {
    bans: HashMap<u128, BanEntry>,
    /// Those that the store is to be told.
    unreported: BTreeSet<u128>,
    /// What the store announced last.
    cursor: BanCursor,
    /// Look for ended bans when there are so many.
    purge_at: usize,
    purged: Now,
}

#[derive(Debug, Clone, Copy)]
struct BanEntry {
    until: Now,
    repeats: u32,
}

// === impl Ledger ===

impl BanLedger {
    pub fn cursor(&self) -> BanCursor {
        self.cursor
    }

    /// The store is at `known` now. If it lost what it knew, it is to be told every ban.
    pub fn advance_cursor(&mut self, known: BanCursor) {
        if self.cursor.is_lost_in(known) {
            self.unreported.extend(self.bans.keys());
        }
        self.cursor = known.merge_after(self.cursor);
    }

    /// Notes a ban that the store told.
    pub fn record_known(&mut self, id: u128, until: Now, repeats: u32, now: Now) {
        let is_longer = |entry: &BanEntry| entry.until.0 > until.0.saturating_add(SAME_BAN_NS);
        if !self.bans.get(&id).is_some_and(is_longer) && self.insert_ban(id, BanEntry { until, repeats }, now)
        {
            self.unreported.remove(&id);
        }
    }

    /// Notes a ban that the store does not know of.
    pub fn record_unreported(&mut self, id: u128, until: Now, repeats: u32, now: Now) {
        if self.insert_ban(id, BanEntry { until, repeats }, now) {
            self.unreported.insert(id);
        }
    }

    fn insert_ban(&mut self, id: u128, entry: BanEntry, now: Now) -> bool {
        if self.bans.len() >= self.purge_at && now.ns_since(self.purged) >= PURGE_NS {
            self.bans.retain(|_, entry| entry.until > now);
            self.unreported.retain(|id| self.bans.contains_key(id));
            self.purge_at = (2 * self.bans.len()).clamp(PURGED_MIN, BANS_MAX);
            self.purged = now;
        }
        if self.bans.len() >= BANS_MAX && !self.bans.contains_key(&id) {
            return false;
        }
        self.bans.insert(id, entry);
        true
    }

    /// Some of the bans that the store is to be told, as many as fit into a call; `lasts_us` is what a ban lasts
    /// after so many.
    pub fn unreported_batch(&mut self, now: Now, lasts_us: impl Fn(u32) -> u64) -> Vec<(u128, Ban)> {
        let mut found = Vec::new();
        while found.len() < CLIENTS_PER_CALL
            && let Some(id) = self.unreported.pop_first()
        {
            let Some(BanEntry { until, repeats }) = self.bans.get(&id).filter(|entry| entry.until > now)
            else {
                continue;
            };
            let left_us = until.ns_since(now).div_ceil(1000);
            found.push((id, Ban { left_us, lasts_us: lasts_us(*repeats).max(left_us), repeats: *repeats }));
        }
        // Until the store has answered they are untold.
        self.unreported.extend(found.iter().map(|(id, _)| id));
        found
    }

    /// The store was told of these.
    pub fn mark_reported(&mut self, bans: &[(u128, Ban)]) {
        for (id, _) in bans {
            self.unreported.remove(id);
        }
    }

    pub fn has_unreported(&self) -> bool {
        !self.unreported.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const END: Now = Now(600 * SECOND);

    fn store(number: u64, store: u64) -> BanCursor {
        BanCursor::at_number(number, store)
    }

    fn unreported_ids(ledger: &mut BanLedger, now: Now) -> Vec<u128> {
        ledger.unreported_batch(now, |_| 1).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn a_ban_is_told_once_and_as_long_as_it_runs() {
        let mut ledger = BanLedger::default();
        ledger.advance_cursor(store(1, 7));
        ledger.record_unreported(1, END, 2, Now(0));
        ledger.record_known(2, END, 0, Now(0));
        let told = ledger.unreported_batch(Now(1), |repeats| u64::from(repeats) * 1_000_000);
        assert_eq!(told, [(1, Ban { left_us: 600_000_000, lasts_us: 600_000_000, repeats: 2 })]);
        assert_eq!(unreported_ids(&mut ledger, Now(1)), [1], "until the store has answered");
        ledger.mark_reported(&told);
        assert!(unreported_ids(&mut ledger, Now(1)).is_empty() && !ledger.has_unreported());
        ledger.record_unreported(3, END, 0, Now(0));
        assert!(unreported_ids(&mut ledger, END).is_empty() && !ledger.has_unreported(), "it ended");
    }

    #[test]
    fn a_store_that_lost_what_it_knew_is_told_all_but_what_it_tells_itself() {
        for lost in [store(9, 8), store(4, 7)] {
            let mut ledger = BanLedger::default();
            ledger.advance_cursor(store(5, 7));
            (1..4).for_each(|id| ledger.record_known(id, END, 0, Now(0)));
            ledger.advance_cursor(store(6, 7));
            // The store could not say which one it is.
            ledger.advance_cursor(store(6, 0));
            assert!(!ledger.has_unreported());
            ledger.advance_cursor(lost);
            ledger.record_known(2, Now(END.0 + SECOND), 0, Now(0));
            ledger.record_known(3, Now(END.0 - 2 * SECOND), 0, Now(0));
            let told = ledger.unreported_batch(Now(1), |_| 1);
            assert_eq!(told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3], "the longer one is told");
            ledger.mark_reported(&told);
            ledger.advance_cursor(lost);
            assert!(!ledger.has_unreported(), "once");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut ledger = BanLedger::default();
        (0..BANS_MAX as u128 + 10).for_each(|id| ledger.record_unreported(id, END, 0, Now(0)));
        assert_eq!((ledger.bans.len(), ledger.unreported.len()), (BANS_MAX, BANS_MAX));
        ledger.record_unreported(1 << 100, Now(2 * END.0), 0, END);
        assert_eq!((ledger.bans.len(), ledger.unreported.len()), (1, 1), "those that ended make room");
    }
}
