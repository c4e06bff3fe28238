//! What the store said last about a key, as this process remembers it.

use crate::base::clock::{ClockShift, Now};
use crate::limit::table::TableEntry;
use crate::limit::table::persistent::{PersistentEntry, take_bytes};

/// What the store said last about one key; packed so that a slot of the table is small.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
pub(super) struct LastAnswer {
    /// When it was said, ns.
    pub at: u64,
    /// From when on it says nothing any more; of a fixed window, its end.
    pub until: u64,
    /// Requests of at least `refused_cost` are refused until then: no refill can suffice before.
    pub rejected_until: u64,
    /// When that was said.
    pub rejected_at: u64,
    pub rejected_cost: u32,
    pub remaining: u32,
    /// The local share leaves no more than this does.
    pub seeded: bool,
}

// === impl Seen ===

impl PersistentEntry for LastAnswer {
    fn encode_entry(&self, (): &(), out: &mut Vec<u8>) {
        for moment in [self.at, self.until, self.rejected_until, self.rejected_at] {
            out.extend(moment.to_le_bytes());
        }
        out.extend({ self.rejected_cost }.to_le_bytes());
        out.extend({ self.remaining }.to_le_bytes());
    }

    fn decode_entry(mut bytes: &[u8], shift: ClockShift, (): &mut ()) -> Option<LastAnswer> {
        let mut moment = || take_bytes(&mut bytes).map(|ns| shift.translate_ns(u64::from_le_bytes(ns)));
        let (at, until, refused_until, refused_at) = (moment()?, moment()?, moment()?, moment()?);
        let (refused_cost, remaining) = (take_bytes(&mut bytes)?, take_bytes(&mut bytes)?);
        bytes.is_empty().then_some(LastAnswer {
            at,
            until,
            rejected_until: refused_until,
            rejected_at: refused_at,
            rejected_cost: u32::from_le_bytes(refused_cost),
            remaining: u32::from_le_bytes(remaining),
            // The share of another process may not have come with it, and to seed it twice changes nothing.
            seeded: false,
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
