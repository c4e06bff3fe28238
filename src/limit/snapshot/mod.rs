//! `state.snapshot`: a file from which local counters come back after a restart.
//!
//! The file, all numbers little endian: eight bytes of magic, the version; the time of day and the clock when it was
//! written; the secret that keys are hashed with; then for each table (of a rate, or of the bans) a head
//! (fingerprint, name) and its blocks as [`crate::limit::table::persistent::Kept`] makes them; an end mark; a checksum
//! over all before it.

mod read;
mod write;
mod writer_thread;

use std::sync::Arc;

use crate::limit::Limit;
use crate::limit::table::persistent::SnapshotTable;

pub use read::{SnapshotReader, find_snapshot, read_handed_over};
pub use write::{write_snapshot, write_tables};
pub use writer_thread::SnapshotThread;

/// Who has counters to be kept.
pub trait SnapshotSource {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>>;
}

impl SnapshotSource for [Arc<Limit>] {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        self.iter().flat_map(|limit| limit.rate_tables()).collect()
    }
}

const MAGIC: [u8; 8] = *b"sluicegt";
/// Goes up when the bytes of anything in the file change their meaning.
const VERSION: u32 = 1;
/// Some hundred million keys.
const FILE_MAX: u64 = 8 << 30;

/// What a piece of the file starts with.
const END_MARK: u8 = 0;
const TABLE_MARK: u8 = 1;
const BLOCK_MARK: u8 = 2;

/// Bytes of the checksum.
const CHECKSUM_LEN: usize = 8;

/// The checksum: no secret, it tells damage and not forgery.
type Checksum = siphasher::sip::SipHasher13;

#[cfg(test)]
mod tests;
