//! What a call of the script says, and what it answers.

use smallvec::SmallVec;

use super::{Rule, SharedKey};
use crate::limit::Decision;

/// What the script is to do with its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Judge all; if none refuses, charge all.
    Take,
    /// Judge all, charge none.
    Peek,
    /// Give back what an acknowledged [`Op::Take`] took.
    Give,
    /// Note how many slots this gateway holds.
    Hold,
}

/// One rate and one key that a call is about. Items of one limit stand together.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    pub rule: &'a Rule,
    pub key: SharedKey,
    /// Units, at least 1 and at most what the rate can ever hold.
    pub cost: u64,
    /// Place of its limit in the chain; a limit in a dry run is a transaction of its own.
    pub place: u16,
    /// Judged, but never a reason to refuse.
    pub dry_run: bool,
    /// Of a concurrency limit.
    pub held: Held,
    /// Of [`Op::Give`]: the mark of what was taken.
    pub mark: u64,
}

/// How many slots of a key this gateway holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Those that are being asked for included.
    pub slots: u64,
    /// Higher than that of any earlier word about this key.
    pub sequence: u64,
}

/// A call, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The full names of all keys; they share one hash slot.
    pub keys: SmallVec<[Vec<u8>; 2]>,
    pub body: Vec<u8>,
}

/// What the store answered to [`Op::Take`] or [`Op::Peek`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The store's clock, microseconds since 1970.
    pub now_us: u64,
    /// Nobody refused; of a take: all was charged.
    pub admitted: bool,
    /// One per item, in their order.
    pub answers: SmallVec<[Answer; 4]>,
}

impl Packed {
    pub fn new(_: Op, _: &str, _: u64, _: &[Item<'_>]) -> Packed {
        unimplemented!()
    }
}
impl Reply {
    pub fn read(_: Op, _: &[Item<'_>], _: &[u8]) -> Option<Reply> {
        None
    }
}
/// The answer of one rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Durations count from the store's `now`.
    pub decision: Decision,
    /// What giving the charge back has to name.
    pub mark: u64,
    pub skipped: bool,
}
