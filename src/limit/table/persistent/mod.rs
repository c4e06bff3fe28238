//! A table as bytes: what a snapshot keeps of it, and how a later process takes that over.

use super::shard::{Shard, WAYS};
use super::{OVERFLOW_PER_SHARD, Table, TableEntry, TableParams};
use crate::base::clock::{ClockShift, Now};

/// An entry that survives a restart.
///
/// Whoever implements it sees to this:
/// - [`PersistentEntry::encode`] appends every field that still means something in another process, in a fixed order, little
///   endian, with what the entry holds in `extra`. Waiters, wakers, places in `extra` and what only a pending
///   refund needs are left out: nobody waits and nothing is in flight after a restart.
/// - [`PersistentEntry::decode`] is given exactly those bytes. It sends every moment through [`ClockShift::moment`], never
///   panics whatever the bytes are, and answers `None` for bytes that `encode` cannot have written; then it has
///   put nothing into `extra`.
/// - It is shown only to a rate of the same key and numbers as the one that wrote it, so it need not carry those.
/// - It never says less than the entry did: what is not known exactly counts as used.
///
/// When the bytes of an entry change, the version of the snapshot goes up.
pub trait PersistentEntry: TableEntry {
    fn encode_entry(&self, extra: &Self::Extra, out: &mut Vec<u8>);

    fn decode_entry(bytes: &[u8], shift: ClockShift, extra: &mut Self::Extra) -> Option<Self>;
}

/// A table whose entries survive a restart, whatever they are.
pub trait PersistentTable {
    /// Blocks that [`Kept::save`] makes of the table.
    fn block_count(&self) -> usize;

    /// Appends one block, holding one lock meanwhile. Entries that are idle at `now` are left out.
    fn encode_block(&self, block: usize, now: Now, out: &mut Vec<u8>);

    /// Takes a block over, from a table of the same entries and any size. Answers how many keys found no room
    /// under `max_keys`; `None`: these are not the bytes of such a block.
    fn restore_block(&self, block: &[u8], shift: ClockShift, now: Now) -> Option<usize>;
}

/// A table that a snapshot keeps.
pub struct SnapshotTable<'a> {
    /// By what it is known to people: the name of its limit.
    pub name: &'a str,
    /// The same in every process while what is counted and by which numbers are; another when they change.
    pub fingerprint: u64,
    pub table: &'a dyn PersistentTable,
}

/// What a block starts with.
const SLOTS_MARK: u8 = 1;
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
                out.push(SLOTS_MARK);
                save_slots(&self.shards[block].0.lock(), now, out);
            }
            Some(place) => {
                out.push(OVERFLOW_MARK);
                let overflow = self.overflow[place].0.lock();
                for (index, entry) in overflow.entries.iter().enumerate().filter(|(_, one)| !one.is_idle(now))
                {
                    out.extend(((place * OVERFLOW_PER_SHARD + index) as u32).to_le_bytes());
                    write_record(entry, &overflow.extra, out);
                }
            }
        }
    }

    fn restore_block(&self, mut block: &[u8], shift: ClockShift, now: Now) -> Option<usize> {
        match take_bytes(&mut block)? {
            [SLOTS_MARK] => self.restore_slots(block, shift, now),
            [OVERFLOW_MARK] => self.restore_overflow(block, shift, now).map(|()| 0),
            _ => None,
        }
    }
}

impl<E: PersistentEntry, N: TableParams<E>> Table<E, N> {
    fn restore_slots(&self, mut bytes: &[u8], shift: ClockShift, now: Now) -> Option<usize> {
        let mut left_out = 0;
        while !bytes.is_empty() {
            let low = u64::from_le_bytes(take_bytes(&mut bytes)?);
            let high = u32::from_le_bytes(take_bytes(&mut bytes)?);
            let encoded = take_record(&mut bytes)?;
            let spot = self.hash_id(low, high);
            let mut guard = self.shards[spot.shard].0.lock();
            let shard = &mut *guard;
            if shard.find_slot(&spot).is_some() {
                return None;
            }
            let entry = E::decode_entry(encoded, shift, &mut shard.extra)?;
            let seat = if entry.is_idle(now) { None } else { Some(self.claim_slot(shard, &spot, now)) };
            match seat {
                Some(Some(seat)) => shard.store_entry(seat, &spot, entry),
                _ => {
                    entry.release_extra(&mut shard.extra);
                    left_out += usize::from(seat.is_some());
                }
            }
        }
        Some(left_out)
    }

    fn restore_overflow(&self, mut bytes: &[u8], shift: ClockShift, now: Now) -> Option<()> {
        while !bytes.is_empty() {
            let index = u32::from_le_bytes(take_bytes(&mut bytes)?) as usize;
            let encoded = take_record(&mut bytes)?;
            let mut guard = self.overflow.get(index / OVERFLOW_PER_SHARD)?.0.lock();
            let overflow = &mut *guard;
            let entry = E::decode_entry(encoded, shift, &mut overflow.extra)?;
            let slot = overflow.entries.get_mut(index % OVERFLOW_PER_SHARD)?;
            if entry.is_idle(now) {
                entry.release_extra(&mut overflow.extra);
                continue;
            }
            std::mem::replace(slot, entry).release_extra(&mut overflow.extra);
            self.overflowed.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        Some(())
    }
}

fn save_slots<E: PersistentEntry, N>(shard: &Shard<E, N>, now: Now, out: &mut Vec<u8>) {
    for (set, tags) in shard.tags.iter().enumerate() {
        for way in (0..WAYS).filter(|way| tags.to_le_bytes()[*way] != 0) {
            let slot = &shard.slots[set * WAYS + way];
            if !slot.entry.is_idle(now) {
                out.extend(slot.id_low().to_le_bytes());
                out.extend(slot.high.to_le_bytes());
                write_record(&slot.entry, &shard.extra, out);
            }
        }
    }
}

/// An entry behind its length.
fn write_record<E: PersistentEntry>(entry: &E, extra: &E::Extra, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; 4]);
    entry.encode_entry(extra, out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn take_record<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(take_bytes(bytes)?) as usize;
    let (record, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(record)
}

#[cfg(test)]
mod tests;
