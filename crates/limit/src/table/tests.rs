//! The table by arithmetic: its cap, its growth, sharing and expiry.

use super::*;

/// A counter that is idle from a given moment on.
#[derive(Clone, Copy, Default, Debug)]
struct ExpiringEntry {
    count: u32,
    until: u64,
}

impl TableEntry for ExpiringEntry {
    type Extra = ();

    fn is_idle(&self, now: Now) -> bool {
        self.until <= now.0
    }

    fn inherit_overflow(&self) -> Option<ExpiringEntry> {
        Some(*self)
    }
}

fn key(id: u128) -> CounterKey {
    CounterKey::new(id, id as u64 % 3)
}

/// Counts up for `id`, not idle before `until`; returns the count and whether it is shared.
fn count_up(table: &Table<ExpiringEntry>, id: u128, now: u64, until: u64) -> (u32, bool) {
    table.update_entry(&key(id), Now(now), |entry, _, (), overflow| {
        *entry = ExpiringEntry { count: entry.count + 1, until };
        (entry.count, overflow)
    })
}

#[test]
fn the_cap_is_exact_and_reached() {
    for keys_max in [1, 2, 3, 10, 64, 1000, 20_000, 100_000] {
        let table = Table::new(keys_max);
        for id in 0..2 * keys_max as u128 {
            count_up(&table, id, 0, 100);
            assert!(table.key_count() <= keys_max);
        }
        assert_eq!(table.key_count(), keys_max, "keys make room for each other");
    }
}

#[test]
fn no_key_is_lost_or_doubled_when_others_move_it() {
    let table = Table::new(3000);
    for id in 0..3000 {
        count_up(&table, id, 0, 100);
    }
    for id in 0..3000 {
        assert_eq!(count_up(&table, id, 1, 100), (2, false), "key {id}");
    }
    assert_eq!((table.key_count(), table.overflow_updates()), (3000, 0));
}

#[test]
fn keys_keep_their_entries_while_the_table_grows() {
    let table = Table::new(50_000);
    for id in 0..40_000 {
        assert_eq!(count_up(&table, id, 0, 100), (1, false));
    }
    for id in 0..40_000 {
        assert_eq!(count_up(&table, id, 0, 100), (2, false), "key {id}");
    }
    assert_eq!(table.key_count(), 40_000);
}

#[test]
fn idle_cells_are_used_again() {
    let table = Table::new(1000);
    for round in 0..20u64 {
        for id in 0..500 {
            let (count, overflow) =
                count_up(&table, u128::from(round) * 1000 + id, round * 10, round * 10 + 10);
            assert_eq!((count, overflow), (1, false));
        }
    }
    assert!(table.key_count() <= 1000);
}

#[test]
fn a_flood_neither_refills_nor_drops_counters() {
    let table = Table::new(1000);
    for id in 0..500 {
        count_up(&table, id, 0, 1_000);
    }
    for id in 10_000..12_000 {
        count_up(&table, id, 1, 1_000);
    }
    for id in 0..500 {
        assert_eq!(count_up(&table, id, 2, 1_000), (2, false), "key {id} lost its count");
    }
}

#[test]
fn newcomers_share_by_prefix_and_inherit() {
    let table = Table::new(1);
    assert_eq!(count_up(&table, 0, 0, 100), (1, false));
    assert_eq!(count_up(&table, 3, 0, 100), (1, true));
    assert_eq!(count_up(&table, 6, 0, 100), (2, true), "same prefix, same counter");
    assert_eq!(count_up(&table, 4, 0, 100), (1, true), "another prefix");
    assert_eq!(table.peek_entry(&key(9), |entry, (), ()| entry.count), 2);
    assert_eq!(
        count_up(&table, 9, 100, 200),
        (3, false),
        "the cell is idle now, and the counter is inherited"
    );
    assert_eq!(table.key_count(), 1);
    assert_eq!(table.overflow_updates(), 3, "each request on an overflow counter is counted");
}

#[test]
fn an_entry_left_idle_takes_no_cell() {
    let table = Table::new(10);
    count_up(&table, 1, 100, 100);
    assert_eq!(table.key_count(), 0);
    assert_eq!(table.update_existing(&key(1), false, |_, (), ()| ()), None);
    count_up(&table, 1, 100, 101);
    assert_eq!(
        table.update_existing(&key(1), false, |entry: &mut ExpiringEntry, (), ()| entry.count),
        Some(1)
    );
}
