//! Encodes a table for a snapshot, and restores it in a later process.

use super::{OVERFLOW_PER_SHARD, Table, TableEntry, TableParams};
use sluicegate_base::clock::{ClockShift, Now};

/// An entry that survives a restart.
///
/// The contract of an implementation:
/// - [`PersistentEntry::encode_entry`] appends every field that is valid in another process, in a fixed order, little
///   endian, with the data the entry holds in `extra`. Waiters, wakers, indices into `extra` and data for pending
///   refunds are left out: no request waits or is in flight after a restart.
/// - [`PersistentEntry::decode_entry`] takes exactly those bytes. It translates every moment by
///   [`ClockShift::translate_ns`], never panics on any bytes, and returns `None` for bytes that `encode_entry` cannot
///   have written; then it has added nothing to `extra`.
/// - An entry is restored only into a rate with the same key and numbers, so it need not carry them.
/// - A restored entry never counts less than the original: anything not known exactly counts as used.
///
/// When the bytes of an entry change, the version of the snapshot has to be raised.
pub trait PersistentEntry: TableEntry {
    /// Appends the bytes of the entry to `out`; `extra` is the data of its shard.
    fn encode_entry(&self, extra: &Self::Extra, out: &mut Vec<u8>);

    /// Reads an entry of a process with another clock; `None` = `encode_entry` cannot have written the bytes.
    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, extra: &mut Self::Extra) -> Option<Self>;
}

/// A table of [`PersistentEntry`] values of any type.
pub trait PersistentTable {
    /// The number of blocks for [`PersistentTable::encode_block`].
    fn block_count(&self) -> usize;

    /// Appends one block, under one lock. Entries that are idle at `now` are left out.
    fn encode_block(&self, block: usize, now: Now, out: &mut Vec<u8>);

    /// Restores a block of a table of the same entries and any size. Returns the number of keys without room under
    /// `max_keys`; `None`: the bytes are not such a block.
    fn restore_block(&self, block: &[u8], shift: ClockShift, now: Now) -> Option<usize>;
}

/// A table that a snapshot keeps.
pub struct SnapshotTable<'a> {
    /// The name of its limit, for messages.
    pub name: &'a str,
    /// A hash of the key and the numbers of the rate, the same in every process.
    pub fingerprint: u64,
    /// The counters, block by block.
    pub table: &'a dyn PersistentTable,
}

/// The first byte of a block.
const CELLS_MARK: u8 = 1;
const OVERFLOW_MARK: u8 = 2;

/// Takes the next `N` bytes.
pub fn take_bytes<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk()?;
    *bytes = tail;
    Some(*head)
}

// === impl Table ===

impl<E: PersistentEntry, N: TableParams<E>> PersistentTable for Table<E, N> {
    fn block_count(&self) -> usize {
        self.shards.len() + self.overflow.len()
    }

    fn encode_block(&self, block: usize, now: Now, out: &mut Vec<u8>) {
        match block.checked_sub(self.shards.len()) {
            None => {
                out.push(CELLS_MARK);
                let shard = self.shards[block].0.lock();
                for (index, cell) in shard.cells.iter().enumerate() {
                    if shard.tag_at(index) != 0 && !shard.params.is_idle(&cell.entry, now) {
                        out.extend(cell.id_low().to_le_bytes());
                        out.extend(cell.high.to_le_bytes());
                        write_record(&cell.entry, &shard.extra, out);
                    }
                }
            }
            Some(shard) => {
                out.push(OVERFLOW_MARK);
                let overflow = self.overflow[shard].0.lock();
                let entries = overflow.entries.iter().enumerate();
                for (index, entry) in entries.filter(|(_, one)| !overflow.params.is_idle(one, now)) {
                    out.extend(((shard * OVERFLOW_PER_SHARD + index) as u32).to_le_bytes());
                    write_record(entry, &overflow.extra, out);
                }
            }
        }
    }

    fn restore_block(&self, mut block: &[u8], shift: ClockShift, now: Now) -> Option<usize> {
        match take_bytes(&mut block)? {
            [CELLS_MARK] => self.restore_cells(block, shift, now),
            [OVERFLOW_MARK] => self.restore_overflow(block, shift, now).map(|()| 0),
            _ => None,
        }
    }
}

impl<E: PersistentEntry, N: TableParams<E>> Table<E, N> {
    fn restore_cells(&self, mut bytes: &[u8], shift: ClockShift, now: Now) -> Option<usize> {
        let mut left_out = 0;
        while !bytes.is_empty() {
            let low = u64::from_le_bytes(take_bytes(&mut bytes)?);
            let high = u32::from_le_bytes(take_bytes(&mut bytes)?);
            let hash = self.hash_id(low, high);
            let mut guard = self.shards[hash.shard].0.lock();
            let shard = &mut *guard;
            if shard.find_cell(&hash).is_some() {
                return None;
            }
            let entry: E = take_entry(&mut bytes, shift, &mut shard.extra)?;
            let is_idle = shard.params.is_idle(&entry, now);
            let cell = if is_idle { None } else { self.claim_cell(shard, &hash, now) };
            match cell {
                Some(index) => shard.store_entry(index, &hash, entry),
                None => {
                    entry.release_extra(&mut shard.extra);
                    left_out += usize::from(!is_idle);
                }
            }
        }
        Some(left_out)
    }

    fn restore_overflow(&self, mut bytes: &[u8], shift: ClockShift, now: Now) -> Option<()> {
        while !bytes.is_empty() {
            let index = u32::from_le_bytes(take_bytes(&mut bytes)?) as usize;
            let mut guard = self.overflow.get(index / OVERFLOW_PER_SHARD)?.0.lock();
            let entry: E = take_entry(&mut bytes, shift, &mut guard.extra)?;
            let (cell, extra, params) = guard.entry_at(index % OVERFLOW_PER_SHARD);
            if params.is_idle(&entry, now) {
                entry.release_extra(extra);
                continue;
            }
            std::mem::replace(cell, entry).release_extra(extra);
            self.overflowed.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        Some(())
    }
}

/// Appends an entry, preceded by its length.
fn write_record<E: PersistentEntry>(entry: &E, extra: &E::Extra, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; 4]);
    entry.encode_entry(extra, out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Takes an entry that [`write_record`] appended.
fn take_entry<E: PersistentEntry>(bytes: &mut &[u8], shift: ClockShift, extra: &mut E::Extra) -> Option<E> {
    let length = u32::from_le_bytes(take_bytes(bytes)?) as usize;
    let (mut record, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    let entry = E::decode_entry(&mut record, shift, extra)?;
    record.is_empty().then_some(entry)
}

#[cfg(test)]
mod tests;
