//! What a bucket asks of its rate: how long the next units take, and what taking them leaves behind.

use super::rate::{Level, Pace, Room, Since};
use crate::base::clock::{Now, Shift};
use crate::limit::table::Entry;
use crate::limit::table::saved::Saved;

/// How the units of a key follow each other: evenly ([`Pace`]) or slower while it is cold
/// ([`Warmth`](super::warm_up::Warmth)).
pub(crate) trait Schedule: PartialEq {
    type Used: Used;
    /// No unit takes longer than so many at the full rate.
    const SLOWEST: u64;

    fn pace(&self) -> &Pace;

    /// Ticks that the next `units` take if they come at `now`.
    fn next(&self, used: &Self::Used, now: Now, units: u64) -> u128;

    /// Ticks that the last `units` took.
    fn last(&self, used: &Self::Used, units: u64) -> u128;

    /// Takes `cost` units; answers also how many ticks they take.
    fn charge(&self, used: &mut Self::Used, now: Now, cost: u64) -> (Since, u128);

    /// Gives `cost` units back that may have departed.
    fn refund(&self, used: &mut Self::Used, cost: u64, since: Since);

    /// Gives `cost` units back that took `span` and have not departed.
    fn withdraw(&self, used: &mut Self::Used, cost: u64, span: u128);

    /// Takes over from the schedule `before` what it knows of a key beside its level, as of `now`; the level is still
    /// the old one.
    fn take_over(&self, used: &mut Self::Used, before: &Self, now: Now);

    /// The numbers of a bucket that is `depth` ticks deep at the full rate: one more unit fits as long as the
    /// backlog leaves room for one at that rate.
    fn room(&self, used: &Self::Used, now: Now, depth: u128, backlog: u128) -> Room;
}

/// What one key has used.
pub(crate) trait Used: Entry<Extra = ()> {
    fn level(&self) -> &Level;

    fn level_mut(&mut self) -> &mut Level;
}

// === impl Pace ===

impl Schedule for Pace {
    type Used = Level;
    const SLOWEST: u64 = 1;

    #[inline]
    fn pace(&self) -> &Pace {
        self
    }

    #[inline]
    fn next(&self, _: &Level, _: Now, units: u64) -> u128 {
        self.span(units)
    }

    #[inline]
    fn last(&self, _: &Level, units: u64) -> u128 {
        self.span(units)
    }

    #[inline]
    fn charge(&self, level: &mut Level, now: Now, cost: u64) -> (Since, u128) {
        (Pace::charge(self, level, now, cost), self.span(cost))
    }

    fn refund(&self, level: &mut Level, cost: u64, since: Since) {
        let regained = self.regained(level, self.unit(), since);
        self.retreat(level, cost, self.span(cost), regained);
    }

    fn withdraw(&self, level: &mut Level, _: u64, span: u128) {
        let tat = self.tat(level).saturating_sub(span);
        self.set_tat(level, tat);
    }

    fn take_over(&self, _: &mut Level, _: &Pace, _: Now) {}

    #[inline]
    fn room(&self, _: &Level, _: Now, depth: u128, backlog: u128) -> Room {
        Pace::room(self, depth, backlog)
    }
}

// === impl Level ===

impl Used for Level {
    #[inline]
    fn level(&self) -> &Level {
        self
    }

    #[inline]
    fn level_mut(&mut self) -> &mut Level {
        self
    }
}

impl Entry for Level {
    type Extra = ();

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        Level::is_idle(self, now)
    }

    fn inherit(&self) -> Option<Level> {
        Some(*self)
    }
}

impl Saved for Level {
    fn encode(&self, (): &(), out: &mut Vec<u8>) {
        Level::encode(self, out);
    }

    fn decode(mut bytes: &[u8], shift: Shift, (): &mut ()) -> Option<Level> {
        let level = Level::decode(&mut bytes, shift)?;
        bytes.is_empty().then_some(level)
    }
}
