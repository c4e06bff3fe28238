//! What the store said last about a key, as this process remembers it.

use crate::base::clock::{Now, Shift};
use crate::limit::table::Entry;
use crate::limit::table::saved::{Saved, take};

/// What the store said last about one key; packed so that a slot of the table is small.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
pub(super) struct Seen {
    /// When it was said, ns.
    pub at: u64,
    /// From when on it says nothing any more; of a fixed window, its end.
    pub until: u64,
    /// Requests of at least `refused_cost` are refused until then: no refill can suffice before.
    pub refused_until: u64,
    /// When that was said.
    pub refused_at: u64,
    pub refused_cost: u32,
    pub remaining: u32,
    /// The local share leaves no more than this does.
    pub seeded: bool,
}

// === impl Seen ===

impl Saved for Seen {
    fn encode(&self, (): &(), out: &mut Vec<u8>) {
        for moment in [self.at, self.until, self.refused_until, self.refused_at] {
            out.extend(moment.to_le_bytes());
        }
        out.extend({ self.refused_cost }.to_le_bytes());
        out.extend({ self.remaining }.to_le_bytes());
    }

    fn decode(mut bytes: &[u8], shift: Shift, (): &mut ()) -> Option<Seen> {
        let mut moment = || take(&mut bytes).map(|ns| shift.moment(u64::from_le_bytes(ns)));
        let (at, until, refused_until, refused_at) = (moment()?, moment()?, moment()?, moment()?);
        let (refused_cost, remaining) = (take(&mut bytes)?, take(&mut bytes)?);
        bytes.is_empty().then_some(Seen {
            at,
            until,
            refused_until,
            refused_at,
            refused_cost: u32::from_le_bytes(refused_cost),
            remaining: u32::from_le_bytes(remaining),
            // The share of another process may not have come with it, and to seed it twice changes nothing.
            seeded: false,
        })
    }
}

impl Entry for Seen {
    type Extra = ();

    fn is_idle(&self, now: Now) -> bool {
        self.until <= now.0
    }

    fn inherit(&self) -> Option<Seen> {
        Some(Seen::default())
    }
}
