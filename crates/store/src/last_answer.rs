//! The store's last answer about a key, as this process remembers it.
//!
//! Snapshots and upgrades pass it on, so that a new process does not begin an outage of the store with a full share.

use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_limit::table::TableEntry;
use sluicegate_limit::table::persistent::{PersistentEntry, take_bytes};

/// The last answer about one key; packed to keep table slots small.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
pub(super) struct LastAnswer {
    /// The moment at which its question was sent, ns.
    pub at: u64,
    /// The moment at which the answer becomes meaningless; for a fixed window, its end.
    pub until: u64,
    /// Requests of at least `rejected_cost` are rejected until then: no refill can suffice earlier.
    pub rejected_until: u64,
    /// The moment at which the question behind that rejection was sent.
    pub rejected_at: u64,
    pub rejected_cost: u32,
    pub remaining: u32,
    /// The local share was seeded with it, and leaves no more than the store did.
    pub seeded: bool,
    /// [`sluicegate_limit::Decision::reached`].
    pub reached: u8,
}

// === impl LastAnswer ===

impl LastAnswer {
    pub(super) fn forget_rejection(&mut self) {
        (self.rejected_until, self.rejected_at, self.rejected_cost) = (0, 0, 0);
    }
}

impl PersistentEntry for LastAnswer {
    fn encode_entry(&self, (): &(), out: &mut Vec<u8>) {
        for moment in [self.at, self.until, self.rejected_until, self.rejected_at] {
            out.extend(moment.to_le_bytes());
        }
        out.extend({ self.rejected_cost }.to_le_bytes());
        out.extend({ self.remaining }.to_le_bytes());
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, (): &mut ()) -> Option<LastAnswer> {
        let mut moment = || take_bytes(bytes).map(|ns| shift.translate_ns(u64::from_le_bytes(ns)));
        Some(LastAnswer {
            at: moment()?,
            until: moment()?,
            rejected_until: moment()?,
            rejected_at: moment()?,
            rejected_cost: u32::from_le_bytes(take_bytes(bytes)?),
            remaining: u32::from_le_bytes(take_bytes(bytes)?),
            // The share may not have been restored with it, and seeding twice changes nothing.
            seeded: false,
            reached: 0,
        })
    }
}

impl TableEntry for LastAnswer {
    type Extra = ();

    fn is_idle(&self, now: Now) -> bool {
        self.until <= now.0
    }

    fn inherit_overflow(&self) -> Option<LastAnswer> {
        Some(LastAnswer::default())
    }
}
