//! The active shared bans, for reports to a store that does not know them.

use std::collections::{BTreeSet, HashMap};

use super::SAME_BAN_NS;
use sluicegate_base::clock::Now;
use sluicegate_store::script::bans::{Ban, BanCursor, CLIENTS_PER_CALL};

/// Maximum number of remembered bans: as many as the store announces. Further ones are not reported again.
const BANS_MAX: usize = 100_000;
/// Below this number of bans, ended ones are not purged.
const PURGED_MIN: usize = 1024;
/// Minimum time between two purges.
const PURGE_NS: u64 = 1_000_000_000;

/// Bans by the id of their client.
#[derive(Debug, Default)]
pub(super) struct BanLedger {
    bans: HashMap<u128, BanEnd>,
    /// Bans that are still to be reported to the store.
    unreported: BTreeSet<u128>,
    /// The last announcement received.
    pub cursor: BanCursor,
    /// The number of bans at which the next purge is worth it.
    purge_at: usize,
    purged: Now,
}

/// The end of a ban, and the number of consecutive bans before it.
type BanEnd = (Now, u32);

// === impl BanLedger ===

impl BanLedger {
    /// Moves on to the store's cursor `next`. If the store lost its memory, every ban is to be reported again.
    pub(super) fn advance_cursor(&mut self, next: BanCursor) {
        if self.cursor.is_lost_in(next) {
            self.unreported.extend(self.bans.keys());
        }
        self.cursor = next.merge_after(self.cursor);
    }

    /// Records a ban that the store announced.
    pub(super) fn record_known(&mut self, id: u128, ban: BanEnd, now: Now) {
        let is_longer = |(until, _): &BanEnd| until.0 > ban.0.0.saturating_add(SAME_BAN_NS);
        if !self.bans.get(&id).is_some_and(is_longer) && self.insert_ban(id, ban, now) {
            self.unreported.remove(&id);
        }
    }

    /// Records a ban that the store does not know.
    pub(super) fn record_unreported(&mut self, id: u128, ban: BanEnd, now: Now) {
        if self.insert_ban(id, ban, now) {
            self.unreported.insert(id);
        }
    }

    /// Forgets a ban that was lifted, so that it is not reported again.
    pub(super) fn forget_ban(&mut self, id: u128) {
        self.bans.remove(&id);
        self.unreported.remove(&id);
    }

    fn insert_ban(&mut self, id: u128, ban: BanEnd, now: Now) -> bool {
        if self.bans.len() >= self.purge_at && now.ns_since(self.purged) >= PURGE_NS {
            self.bans.retain(|_, (until, _)| *until > now);
            self.unreported.retain(|id| self.bans.contains_key(id));
            self.purge_at = (2 * self.bans.len()).clamp(PURGED_MIN, BANS_MAX);
            self.purged = now;
        }
        if self.bans.len() >= BANS_MAX && !self.bans.contains_key(&id) {
            return false;
        }
        self.bans.insert(id, ban);
        true
    }

    /// Bans to report, as many as fit into one call; `lasts_us` gives the length of a ban by its repeats.
    pub(super) fn unreported_batch(&mut self, now: Now, lasts_us: impl Fn(u32) -> u64) -> Vec<(u128, Ban)> {
        let mut found = Vec::new();
        while found.len() < CLIENTS_PER_CALL
            && let Some(id) = self.unreported.pop_first()
        {
            let Some(&(until, repeats)) = self.bans.get(&id).filter(|(until, _)| *until > now) else {
                continue;
            };
            let left_us = until.ns_since(now).div_ceil(1000);
            found.push((id, Ban { left_us, lasts_us: lasts_us(repeats).max(left_us), repeats }));
        }
        // They stay unreported until the store has answered.
        self.unreported.extend(found.iter().map(|(id, _)| id));
        found
    }

    pub(super) fn mark_reported(&mut self, bans: &[(u128, Ban)]) {
        for (id, _) in bans {
            self.unreported.remove(id);
        }
    }

    pub(super) fn has_unreported(&self) -> bool {
        !self.unreported.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const END: Now = Now(600 * SECOND);

    fn store(number: u64, store: u64) -> BanCursor {
        BanCursor { number, store }
    }

    fn unreported_ids(ledger: &mut BanLedger, now: Now) -> Vec<u128> {
        ledger.unreported_batch(now, |_| 1).into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn a_ban_is_reported_once_and_only_while_active() {
        let mut ledger = BanLedger::default();
        ledger.advance_cursor(store(1, 7));
        ledger.record_unreported(1, (END, 2), Now(0));
        ledger.record_known(2, (END, 0), Now(0));
        let reported = ledger.unreported_batch(Now(1), |repeats| u64::from(repeats) * 1_000_000);
        assert_eq!(reported, [(1, Ban { left_us: 600_000_000, lasts_us: 600_000_000, repeats: 2 })]);
        assert_eq!(unreported_ids(&mut ledger, Now(1)), [1], "until the store has answered");
        ledger.mark_reported(&reported);
        assert!(unreported_ids(&mut ledger, Now(1)).is_empty() && !ledger.has_unreported());
        ledger.record_unreported(3, (END, 0), Now(0));
        assert!(unreported_ids(&mut ledger, END).is_empty() && !ledger.has_unreported(), "it ended");
    }

    #[test]
    fn a_store_that_lost_its_memory_gets_all_bans_but_those_it_announces() {
        for lost in [store(9, 8), store(4, 7)] {
            let mut ledger = BanLedger::default();
            ledger.advance_cursor(store(5, 7));
            (1..4).for_each(|id| ledger.record_known(id, (END, 0), Now(0)));
            ledger.advance_cursor(store(6, 7));
            // The store could not name its memory.
            ledger.advance_cursor(store(6, 0));
            assert!(!ledger.has_unreported());
            ledger.advance_cursor(lost);
            ledger.record_known(2, (Now(END.0 + SECOND), 0), Now(0));
            ledger.record_known(3, (Now(END.0 - 2 * SECOND), 0), Now(0));
            let reported = ledger.unreported_batch(Now(1), |_| 1);
            assert_eq!(
                reported.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
                [1, 3],
                "the longer one is reported"
            );
            ledger.mark_reported(&reported);
            ledger.advance_cursor(lost);
            assert!(!ledger.has_unreported(), "once");
        }
    }

    #[test]
    fn the_ledger_is_bounded() {
        let mut ledger = BanLedger::default();
        (0..BANS_MAX as u128 + 10).for_each(|id| ledger.record_unreported(id, (END, 0), Now(0)));
        assert_eq!((ledger.bans.len(), ledger.unreported.len()), (BANS_MAX, BANS_MAX));
        ledger.record_unreported(1 << 100, (Now(2 * END.0), 0), END);
        assert_eq!((ledger.bans.len(), ledger.unreported.len()), (1, 1), "ended bans make room");
    }
}
