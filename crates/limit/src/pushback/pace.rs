//! The pace after a pause: from a third to the whole within a second, and from there with care.
//!
//! The whole is the pace of the last second before the pause. A pause that soon follows another one shows that this
//! was too much, so then the whole is the pace taken since, and the pace grows beyond it as a cubic: slow
//! at first, twice as fast after a quarter of a minute. It never exceeds the greatest pace known, or that of the limit
//! in front.

use crate::table::persistent::take_bytes;

/// The time in which the pace climbs to the whole, in nanoseconds.
pub(super) const CLIMB_NS: u64 = 1_000_000_000;
/// The pace after a repeated pause has doubled after this time …
const REGROWTH_NS: u64 = 15_000_000_000;
/// … and the greatest known pace, while requests wait, after this one: it may have been measured under a small load.
const PEAK_GROWTH_NS: u64 = 60_000_000_000;
/// A repeated pause reduces the whole at most to this share of it, as 1/n.
const REDUCTION_MAX: u64 = 2;
/// The slowest whole pace: one request a second.
const INTERVAL_MAX_NS: u64 = 1_000_000_000;

/// The pace after a pause, as intervals between requests in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pace {
    whole_ns: u64,
    /// The least interval known.
    peak_ns: u64,
    /// The pause was a repeated one.
    is_repeated: bool,
}

// === impl Pace ===

impl Pace {
    /// The pace after a pause, when so many requests passed in the second before.
    pub(super) fn after_pause(passed: u64) -> Pace {
        let whole_ns = (CLIMB_NS / passed.max(1)).max(1);
        Pace { whole_ns, peak_ns: whole_ns, is_repeated: false }
    }

    /// The pace after a pause that soon follows the one before this pace, which began and ended so long ago. The
    /// upstream took `passed` requests in a time that lies between that with the last pause and that without: the
    /// middle of both rates is the estimate.
    pub(super) fn after_repeated_pause(self, passed: u64, began_ns: u64, ended_ns: u64) -> Pace {
        let (with, without) = (u128::from(began_ns.max(1)), u128::from(ended_ns.max(CLIMB_NS)));
        let whole = 2 * with * without / ((with + without) * u128::from(passed.max(1)));
        let Pace { whole_ns, peak_ns, .. } = self;
        let slowest = whole_ns.saturating_mul(REDUCTION_MAX).min(INTERVAL_MAX_NS);
        let whole = u64::try_from(whole).unwrap_or(u64::MAX).min(slowest).max(peak_ns);
        Pace { whole_ns: whole, peak_ns, is_repeated: true }
    }

    /// Appends the pace after a pause.
    pub(super) fn encode_pace(&self, out: &mut Vec<u8>) {
        out.extend(self.whole_ns.to_le_bytes());
        out.extend(self.peak_ns.to_le_bytes());
        out.push(self.is_repeated.into());
    }

    /// `None`: no pause has such a pace.
    pub(super) fn decode_pace(bytes: &mut &[u8]) -> Option<Pace> {
        let whole_ns = u64::from_le_bytes(take_bytes(bytes)?);
        let peak_ns = u64::from_le_bytes(take_bytes(bytes)?);
        let [is_repeated @ 0..=1] = take_bytes(bytes)? else { return None };
        let is_pace = peak_ns >= 1 && whole_ns >= peak_ns && whole_ns <= INTERVAL_MAX_NS;
        is_pace.then_some(Pace { whole_ns, peak_ns, is_repeated: is_repeated == 1 })
    }

    /// True if the pace has nothing left to climb, `since` the pause.
    pub(super) fn is_whole(&self, since: u64) -> bool {
        let grown = !self.is_repeated || self.grown_interval(since) <= self.peak_ns;
        since >= CLIMB_NS && grown
    }

    /// The moment of the `requests`-th request after one at `since`; both are nanoseconds after the pause. `front` is
    /// the interval of the limit in front.
    pub(super) fn moment_after(&self, since: u64, requests: u64, front: u64) -> u64 {
        let (climb, requests) = (u128::from(CLIMB_NS), u128::from(requests));
        let step = u128::from(self.interval_at(since.max(CLIMB_NS), front));
        if since >= CLIMB_NS {
            return saturate(u128::from(since) + requests * step);
        }
        // With the time t in units of the climb, t²/3 + t/3 of its requests at the whole pace have passed.
        let (since, whole) = (u128::from(since), u128::from(self.whole_ns));
        let level = since * since / climb + since + 3 * requests * whole;
        if level <= 2 * climb {
            return saturate(((climb * climb + 4 * climb * level).isqrt() - climb).div_ceil(2));
        }
        saturate(climb + ((level - 2 * climb) * step).div_ceil(3 * whole))
    }

    /// The interval after the climb.
    fn interval_at(&self, since: u64, front: u64) -> u64 {
        let least = match front <= self.peak_ns {
            true => front,
            false => grow(self.peak_ns, since - CLIMB_NS, PEAK_GROWTH_NS),
        };
        if self.is_repeated { self.grown_interval(since).max(least) } else { least }
    }

    fn grown_interval(&self, since: u64) -> u64 {
        grow(self.whole_ns, since.saturating_sub(CLIMB_NS), REGROWTH_NS)
    }
}

/// The interval after a growth of the pace by the factor 1 + (time ÷ doubling)³.
fn grow(interval: u64, time: u64, doubling: u64) -> u64 {
    let thousandths = (u128::from(time) * 1_000 / u128::from(doubling)).min(1_000_000);
    let factor = 1_000 + thousandths.pow(3) / 1_000_000;
    saturate((u128::from(interval) * 1_000 / factor).max(1))
}

fn saturate(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}
