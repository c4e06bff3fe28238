//! The slots and waiters of keys that need more than a number: of those that wait, and of those with classes.

use smallvec::SmallVec;

use super::freed_rate::FreedRate;
use crate::algorithm::queue::ShardQueues;
use crate::algorithm::slab::Slab;

/// The slots and waiters of one shard.
#[derive(Default)]
pub(crate) struct SlotQueues {
    pub(super) waited: Slab<WaitedSlots>,
    pub(super) by_class: Slab<ClassSlots>,
    pub(crate) waiters: ShardQueues,
}

/// The slots of a key with its queue; kept as long as a request waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitedSlots {
    pub in_flight: u32,
    /// The queue in [`ShardQueues`]; [`NO_NODE`] = no request waits.
    pub queue: u32,
    pub freed: FreedRate,
}

/// A need is remembered for four such periods and the one under way, in nanoseconds: a second at least.
pub(crate) const PERIOD_NS: u64 = 250_000_000;
pub(super) const PERIODS: usize = 5;

/// The slots of a key by class.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClassSlots {
    /// The number of the period under way.
    pub(super) period: u64,
    pub(super) classes: SmallVec<[OneClass; 4]>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct OneClass {
    pub(super) in_flight: u32,
    /// Slots that are its own: in flight, set aside, or lent until their requests end.
    pub(super) kept: u32,
    /// Free slots that no other class takes.
    pub(super) set_aside: u32,
    /// Slots that it was refused in the period under way.
    pub(super) refused: u32,
    /// The most that it needed at one moment of each period, the newest first.
    pub(super) needs: [u32; PERIODS],
    pub(super) queue: u32,
    pub(super) freed: FreedRate,
}
