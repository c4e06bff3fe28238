//! `state.snapshot`: a file from which local counters come back after a restart.
//!
//! The file, all numbers little endian: eight bytes of magic, the version; the time of day and the clock when it was
//! written; the secret that keys are hashed with; then for each table (of a rate, or of the bans) a head
//! (fingerprint, name) and its blocks as [`crate::limit::table::saved::Kept`] makes them; an end mark; a checksum
//! over all before it.

mod keeper;
mod read;
mod write;

use std::sync::Arc;

use crate::limit::Limit;
use crate::limit::table::saved::KeptTable;

pub use keeper::Keeper;
pub use read::{Found, find, within};
pub use write::{fill, write};

/// Who has counters to be kept.
pub trait Holds {
    fn kept(&self) -> Vec<KeptTable<'_>>;
}

impl Holds for [Arc<Limit>] {
    fn kept(&self) -> Vec<KeptTable<'_>> {
        self.iter().flat_map(|limit| limit.kept_rates()).collect()
    }
}

const MAGIC: [u8; 8] = *b"sluicegt";
/// Goes up when the bytes of anything in the file change their meaning.
const VERSION: u32 = 1;
/// Some hundred million keys.
const FILE_MAX: u64 = 8 << 30;

/// What a piece of the file starts with.
const END: u8 = 0;
const TABLE: u8 = 1;
const BLOCK: u8 = 2;

/// Bytes of the checksum.
const CHECKSUM: usize = 8;

/// The checksum: no secret, it tells damage and not forgery.
type Checksum = siphasher::sip::SipHasher13;

#[cfg(test)]
mod tests;
