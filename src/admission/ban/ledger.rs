//! The shared bans that run, so that a store which does not know of them can be told.

use std::collections::{BTreeSet, HashMap};

use super::SAME_BAN_NS;
use crate::base::clock::Now;
use crate::shared::script::bans::{Ban, CLIENTS_PER_CALL, Known};

/// Bans that are remembered, as many as the store announces; of more it is not told again.
const BANS_MAX: usize = 100_000;
/// Fewer are not worth looking for those that have ended.
const PURGED_MIN: usize = 1024;
/// Between two looks for those that have ended.
const PURGE_NS: u64 = 1_000_000_000;

/// Bans by the ids of their clients.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    bans: HashMap<u128, Entry>,
    /// Those that the store is to be told.
    untold: BTreeSet<u128>,
    /// What the store announced last.
    known: Known,
    /// Look for ended bans when there are so many.
    purge_at: usize,
    purged: Now,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    until: Now,
    repeats: u32,
}

// === impl Ledger ===

impl Ledger {
    pub fn known(&self) -> Known {
        self.known
    }

    /// The store is at `known` now. If it lost what it knew, it is to be told every ban.
    pub fn follow(&mut self, known: Known) {
        if self.known.is_lost_in(known) {
            self.untold.extend(self.bans.keys());
        }
        self.known = known.after(self.known);
    }

    /// Notes a ban that the store told.
    pub fn hear(&mut self, id: u128, until: Now, repeats: u32, now: Now) {
        let is_longer = |entry: &Entry| entry.until.0 > until.0.saturating_add(SAME_BAN_NS);
        if !self.bans.get(&id).is_some_and(is_longer) && self.put(id, Entry { until, repeats }, now) {
            self.untold.remove(&id);
        }
    }

    /// Notes a ban that the store does not know of.
    pub fn add(&mut self, id: u128, until: Now, repeats: u32, now: Now) {
        if self.put(id, Entry { until, repeats }, now) {
            self.untold.insert(id);
        }
    }

    fn put(&mut self, id: u128, entry: Entry, now: Now) -> bool {
        if self.bans.len() >= self.purge_at && now.since(self.purged) >= PURGE_NS {
            self.bans.retain(|_, entry| entry.until > now);
            self.untold.retain(|id| self.bans.contains_key(id));
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
    pub fn untold(&mut self, now: Now, lasts_us: impl Fn(u32) -> u64) -> Vec<(u128, Ban)> {
        let mut found = Vec::new();
        while found.len() < CLIENTS_PER_CALL
            && let Some(id) = self.untold.pop_first()
        {
            let Some(Entry { until, repeats }) = self.bans.get(&id).filter(|entry| entry.until > now) else {
                continue;
            };
            let left_us = until.since(now).div_ceil(1000);
            found.push((id, Ban { left_us, lasts_us: lasts_us(*repeats).max(left_us), repeats: *repeats }));
        }
        // Until the store has answered they are untold.
        self.untold.extend(found.iter().map(|(id, _)| id));
        found
    }

    /// The store was told of these.
    pub fn told(&mut self, bans: &[(u128, Ban)]) {
        for (id, _) in bans {
            self.untold.remove(id);
        }
    }

    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const END: Now = Now(600 * SECOND);

    fn store(number: u64, store: u64) -> Known {
        Known::of(number, store)
    }

    fn untold(ledger: &mut Ledger, now: Now) -> Vec<u128> {
        ledger.untold(now, |_| 1).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn a_ban_is_told_once_and_as_long_as_it_runs() {
        let mut ledger = Ledger::default();
        ledger.follow(store(1, 7));
        ledger.add(1, END, 2, Now(0));
        ledger.hear(2, END, 0, Now(0));
        let told = ledger.untold(Now(1), |repeats| u64::from(repeats) * 1_000_000);
        assert_eq!(told, [(1, Ban { left_us: 600_000_000, lasts_us: 600_000_000, repeats: 2 })]);
        assert_eq!(untold(&mut ledger, Now(1)), [1], "until the store has answered");
        ledger.told(&told);
        assert!(untold(&mut ledger, Now(1)).is_empty() && !ledger.has_untold());
        ledger.add(3, END, 0, Now(0));
        assert!(untold(&mut ledger, END).is_empty() && !ledger.has_untold(), "it ended");
    }

    #[test]
    fn a_store_that_lost_what_it_knew_is_told_all_but_what_it_tells_itself() {
        for lost in [store(9, 8), store(4, 7)] {
            let mut ledger = Ledger::default();
            ledger.follow(store(5, 7));
            (1..4).for_each(|id| ledger.hear(id, END, 0, Now(0)));
            ledger.follow(store(6, 7));
            // The store could not say which one it is.
            ledger.follow(store(6, 0));
            assert!(!ledger.has_untold());
            ledger.follow(lost);
            ledger.hear(2, Now(END.0 + SECOND), 0, Now(0));
            ledger.hear(3, Now(END.0 - 2 * SECOND), 0, Now(0));
            let told = ledger.untold(Now(1), |_| 1);
            assert_eq!(told.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3], "the longer one is told");
            ledger.told(&told);
            ledger.follow(lost);
            assert!(!ledger.has_untold(), "once");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut ledger = Ledger::default();
        (0..BANS_MAX as u128 + 10).for_each(|id| ledger.add(id, END, 0, Now(0)));
        assert_eq!((ledger.bans.len(), ledger.untold.len()), (BANS_MAX, BANS_MAX));
        ledger.add(1 << 100, Now(2 * END.0), 0, END);
        assert_eq!((ledger.bans.len(), ledger.untold.len()), (1, 1), "those that ended make room");
    }
}
