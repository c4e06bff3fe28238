//! `state.snapshot`: a file from which local counters are restored after a restart.
//!
//! The file, all numbers little endian: eight bytes of magic; the version; the time of day and the clock when it was
//! written; the secret that keys are hashed with; then for each table (of a rate, or of the bans) a head
//! (fingerprint, name) and its blocks by [`crate::table::persistent::PersistentTable`]; an end mark; a checksum
//! over everything before it.

mod read;
mod write;

use std::sync::Arc;

use crate::Limit;
use crate::table::persistent::SnapshotTable;

pub use read::{SnapshotReader, find_snapshot, read_handed_over};
pub use write::{LastFault, SnapshotThread, write_snapshot, write_tables};

/// An owner of counters that a snapshot keeps.
pub trait SnapshotSource {
    /// The tables to save, in the order of the file.
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>>;
}

impl SnapshotSource for [Arc<Limit>] {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        self.iter().flat_map(|limit| limit.rate_tables()).collect()
    }
}

const MAGIC: [u8; 8] = *b"sluicegt";
/// Has to be raised when any bytes of the file change their meaning.
const VERSION: u32 = 1;
/// The largest file, in bytes: some hundred million keys.
const FILE_MAX: u64 = 8 << 30;

/// The first byte of a part of the file.
const END_MARK: u8 = 0;
const TABLE_MARK: u8 = 1;
const BLOCK_MARK: u8 = 2;

/// The length of the checksum, in bytes.
const CHECKSUM_LEN: usize = 8;

/// The checksum, without a key: it detects damage, not forgery.
type Checksum = siphasher::sip::SipHasher13;

#[cfg(test)]
mod tests;
