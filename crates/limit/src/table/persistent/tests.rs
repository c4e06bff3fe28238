//! Tables restored from tables of another size, and from damaged bytes.

use proptest::prelude::*;

use super::*;
use crate::table::CounterKey;

/// An entry that adds its units to `extra`, so that a leak shows.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct CountedEntry {
    until: u64,
    units: u8,
}

impl TableEntry for CountedEntry {
    type Extra = u64;

    fn is_idle(&self, now: Now) -> bool {
        self.until <= now.0
    }

    fn inherit_overflow(&self) -> Option<CountedEntry> {
        None
    }

    fn release_extra(self, extra: &mut u64) {
        *extra -= u64::from(self.units);
    }
}

impl PersistentEntry for CountedEntry {
    fn encode_entry(&self, _: &u64, out: &mut Vec<u8>) {
        out.extend(self.until.to_le_bytes());
        // One byte per unit: a variable length, as with the runs of a log.
        out.extend(std::iter::repeat_n(7, self.units.into()));
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, extra: &mut u64) -> Option<CountedEntry> {
        let until = shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?));
        let units = std::mem::take(bytes);
        let units = u8::try_from(units.len()).ok().filter(|_| units.iter().all(|byte| *byte == 7))?;
        *extra += u64::from(units);
        Some(CountedEntry { until, units })
    }
}

fn key(id: u64) -> CounterKey {
    let id = u128::from(id).wrapping_mul(0xD6E8_FEB8_6659_FD93_A076_1D64_78BD_642F);
    CounterKey::new(id, (id >> 40) as u64)
}

fn store_until(table: &Table<CountedEntry>, id: u64, until: u64) {
    table.update_entry(&key(id), Now(0), |entry, extra, (), _| {
        *extra += 2;
        *entry = CountedEntry { until, units: entry.units + 2 };
    });
}

fn extra_total(table: &Table<CountedEntry>) -> u64 {
    let shards = table.shards.iter().map(|shard| shard.0.lock().extra);
    shards.chain(table.overflow.iter().map(|overflow| overflow.0.lock().extra)).sum()
}

fn blocks(table: &Table<CountedEntry>, now: u64) -> Vec<Vec<u8>> {
    let save = |block| {
        let mut out = Vec::new();
        table.encode_block(block, Now(now), &mut out);
        out
    };
    (0..table.block_count()).map(save).collect()
}

/// Restores the blocks ten ns later, on a clock that is 1000 ahead.
fn restore(table: &Table<CountedEntry>, blocks: &[Vec<u8>]) -> Option<usize> {
    let shift = ClockShift::new(Now(0), 10, Now(1010));
    blocks.iter().map(|block| table.restore_block(block, shift, Now(1010))).sum()
}

#[test]
fn keys_are_restored_into_a_table_of_any_size() {
    let old = Table::new(20_000);
    (0..20_000).for_each(|id| store_until(&old, id, 100 + id));
    let blocks = blocks(&old, 0);
    for keys_max in [20_000, 300_000, 1_000_000] {
        let new = Table::new(keys_max);
        assert_eq!(restore(&new, &blocks), Some(0));
        assert_eq!((new.key_count(), extra_total(&new)), (20_000, 40_000));
        for id in 0..20_000 {
            assert_eq!(
                new.peek_entry(&key(id), |entry, _, ()| *entry),
                CountedEntry { until: 1100 + id, units: 2 },
                "key {id}"
            );
        }
    }
    let small = Table::new(5_000);
    assert_eq!(restore(&small, &blocks), Some(15_000), "the cap holds, and the rest is counted");
    assert_eq!((small.key_count(), extra_total(&small)), (5_000, 10_000));
}

#[test]
fn idle_entries_are_left_out() {
    let old = Table::new(100);
    (1..=20).for_each(|id| store_until(&old, id, id));
    assert_eq!(blocks(&old, 20).iter().map(Vec::len).sum::<usize>(), old.block_count(), "not written");
    let new = Table::new(100);
    assert_eq!(restore(&new, &blocks(&old, 0)), Some(0));
    assert_eq!((new.key_count(), extra_total(&new)), (10, 20), "nor restored");
}

#[test]
fn overflow_counters_are_restored() {
    let old = Table::new(1);
    (0..50).for_each(|id| store_until(&old, id, 1000));
    assert_eq!(old.overflow_updates(), 49);
    let new = Table::new(100);
    assert_eq!(restore(&new, &blocks(&old, 0)), Some(0));
    assert_eq!((new.key_count(), extra_total(&new)), (1, 100));
    let overflow = new
        .update_entry(&key(30), Now(1010), |entry, _, (), overflow| (entry.units >= 2).then_some(overflow));
    assert_eq!(overflow, Some(true), "a newcomer still shares the usage of its network");
}

#[test]
fn a_duplicate_key_is_invalid() {
    let old = Table::new(10);
    store_until(&old, 1, 100);
    let blocks = blocks(&old, 0);
    let new = Table::new(10);
    assert_eq!(restore(&new, &[blocks[0].clone(), blocks[0].clone()]), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// Any bytes are read without a panic, and `extra` matches the entries afterwards.
    #[test]
    fn any_bytes_are_survived(
        noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        chosen in 0..17_usize,
    ) {
        let old = Table::new(8);
        (0..30).for_each(|id| store_until(&old, id, 100 + id));
        let mut block = blocks(&old, 0).swap_remove(chosen);
        for (at, byte) in noise {
            let at = at.index(block.len());
            block[at] = byte;
        }
        block.truncate(cut.index(block.len() * 2).min(block.len()));
        let new = Table::new(8);
        restore(&new, &[block]);
        let mut units = 0;
        for shard in &new.shards {
            let shard = shard.0.lock();
            let is_used = |at: usize| shard.tag_at(at) != 0;
            let used = shard.cells.iter().enumerate().filter(|(at, _)| is_used(*at));
            units += used.map(|(_, cell)| u64::from(cell.entry.units)).sum::<u64>();
        }
        for overflow in &new.overflow {
            units += overflow.0.lock().entries.iter().map(|entry| u64::from(entry.units)).sum::<u64>();
        }
        prop_assert_eq!(units, extra_total(&new));
    }
}
