//! `warm_up`: from cold the rate climbs from a third to the whole over a time W, and cools down again when idle.
//!
//! The curve is that of the warming-up rate limiter of Guava (`SmoothRateLimiter.SmoothWarmingUp`, cold factor 3),
//! told by how warm a key is instead of by stored permits: at heat h, 0 = cold and W = warm, a unit takes
//! I(h) = T·(3 − 2h/W) ticks instead of T, and adds 2·T of heat. Time in which the bucket stands idle takes heat
//! away one for one. Saturated from cold it is warm after W, in which W/2T units pass.
//!
//! Heat is counted on beyond W while there is a backlog, where it changes nothing, so that units given back take
//! away exactly the heat they brought. The interval is the difference of one function of heat, so any way of
//! dividing the same units takes the same time; and no unit takes less than T, so a warm limit is never faster.

use super::rate::{Level, Pace, Room, Since};
use super::schedule::{Schedule, Used};
use crate::base::clock::{Now, Shift};
use crate::limit::table::Entry;
use crate::limit::table::saved::{Saved, take};

/// Longer times to warm up would not fit the arithmetic; the configuration refuses them.
const WARM_TICKS_MAX: u128 = 1 << 61;

/// More heat than this cannot be saved up: it leaves room for the arithmetic on it.
const HEAT_MAX: u128 = 1 << 96;

/// A rate that has to warm up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Warmth {
    pace: Pace,
    /// Ticks to warm up, W.
    warm: u128,
    /// Ticks of heat that a unit brings, 2·T.
    unit_heat: u128,
}

/// What one key has used, and how warm it is.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
pub(crate) struct WarmLevel {
    level: Level,
    /// Ticks, at the TAT.
    heat: u128,
    /// How long it takes to cool down, ns.
    cools_ns: u64,
}

// === impl Warmth ===

impl Warmth {
    pub(crate) fn new(pace: Pace, warm_up_ns: u64) -> Warmth {
        let warm = pace.ticks(warm_up_ns).clamp(1, WARM_TICKS_MAX);
        Warmth { pace, warm, unit_heat: 2 * u128::from(pace.unit()) }
    }

    /// The heat at `now`, which is not before the last charge.
    fn heat(&self, used: &WarmLevel, now: Now) -> u128 {
        match self.pace.idle(&used.level, now) {
            0 => used.heat,
            idle => { used.heat }.min(self.warm).saturating_sub(idle),
        }
    }

    fn heat_of(&self, units: u64) -> u128 {
        self.unit_heat.saturating_mul(units.into())
    }

    /// Ticks that units take which bring the heat from `from` to `to`.
    fn between(&self, from: u128, to: u128) -> u128 {
        self.since_cold(to).saturating_sub(self.since_cold(from))
    }

    /// A function F with F(h + 2T) − F(h) = I(h): x·(3W + 2T − x)/2W, and T per unit where all of it is warm.
    fn since_cold(&self, heat: u128) -> u128 {
        let all_warm = heat.saturating_sub(self.warm + self.unit_heat).div_ceil(self.unit_heat);
        let heat = heat - all_warm * self.unit_heat;
        let climbing = (heat * (3 * self.warm + self.unit_heat - heat)).div_ceil(2 * self.warm);
        climbing + all_warm * u128::from(self.pace.unit())
    }

    fn set_heat(&self, used: &mut WarmLevel, heat: u128) {
        used.heat = heat;
        used.cools_ns = self.pace.ns_up(heat.min(self.warm));
    }
}

impl Schedule for Warmth {
    type Used = WarmLevel;
    const SLOWEST: u64 = 3;

    fn pace(&self) -> &Pace {
        &self.pace
    }

    fn next(&self, used: &WarmLevel, now: Now, units: u64) -> u128 {
        let heat = self.heat(used, now);
        self.between(heat, heat.saturating_add(self.heat_of(units)))
    }

    fn last(&self, used: &WarmLevel, units: u64) -> u128 {
        // Who was charged before it was cold again is not among those.
        let from = { used.heat }.saturating_sub(self.heat_of(units));
        self.between(from, from.saturating_add(self.heat_of(units)))
    }

    fn charge(&self, used: &mut WarmLevel, now: Now, cost: u64) -> (Since, u128) {
        let heat = self.heat(used, now);
        let heat_new = heat.saturating_add(self.heat_of(cost));
        let span = self.between(heat, heat_new);
        self.set_heat(used, heat_new);
        (self.pace.advance(&mut used.level, now, self.pace.split(span)), span)
    }

    fn refund(&self, used: &mut WarmLevel, cost: u64, since: Since) {
        let regained = self.pace.regained(&used.level, Self::SLOWEST * self.pace.unit(), since);
        let (heat, span) = match regained {
            0 => {
                let heat = { used.heat }.saturating_sub(self.heat_of(cost));
                (heat, self.between(heat, used.heat))
            }
            // Its heat may have cooled away; taken away twice, it would make what others give back too long.
            _ => (used.heat, self.pace.span(cost)),
        };
        self.pace.retreat(&mut used.level, cost, span, regained);
        self.set_heat(used, heat);
    }

    fn withdraw(&self, used: &mut WarmLevel, cost: u64, span: u128) {
        self.pace.withdraw(&mut used.level, cost, span);
        self.set_heat(used, { used.heat }.saturating_sub(self.heat_of(cost)));
    }

    /// As warm as it was; what was saved up beyond that are units.
    fn take_over(&self, used: &mut WarmLevel, before: &Warmth, now: Now) {
        let heat = before.heat(used, now);
        let (climbed, beyond) = (heat.min(before.warm), heat.saturating_sub(before.warm));
        let climbed = climbed * self.warm / before.warm;
        let beyond = self.pace.converted(beyond, &before.pace);
        self.set_heat(used, climbed.saturating_add(beyond).min(HEAT_MAX));
    }

    fn room(&self, used: &WarmLevel, now: Now, depth: u128, backlog: u128) -> Room {
        let unit = u128::from(self.pace.unit());
        let Some(ahead) = depth.saturating_sub(unit).checked_sub(backlog) else {
            return Room { remaining: 0, reset_ns: self.pace.ns_up((backlog + unit).saturating_sub(depth)) };
        };
        // As many as fit at the full rate are enough, and at a third of it they fit for certain.
        let (mut fits, mut exceeds) = (1, u64::try_from(ahead / unit).unwrap_or(u64::MAX).saturating_add(2));
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            match self.next(used, now, middle - 1) <= ahead {
                true => fits = middle,
                false => exceeds = middle,
            }
        }
        Room { remaining: fits, reset_ns: 0 }
    }
}

// === impl WarmLevel ===

impl Used for WarmLevel {
    fn level(&self) -> &Level {
        &self.level
    }

    fn level_mut(&mut self) -> &mut Level {
        &mut self.level
    }
}

impl Entry for WarmLevel {
    type Extra = ();

    fn is_idle(&self, now: Now) -> bool {
        self.level.is_idle(Now(now.0.saturating_sub(self.cools_ns)))
    }

    fn inherit(&self) -> Option<WarmLevel> {
        Some(*self)
    }
}

impl Saved for WarmLevel {
    fn encode(&self, (): &(), out: &mut Vec<u8>) {
        self.level.encode(out);
        out.extend({ self.heat }.to_le_bytes());
        out.extend({ self.cools_ns }.to_le_bytes());
    }

    fn decode(mut bytes: &[u8], shift: Shift, (): &mut ()) -> Option<WarmLevel> {
        let used = WarmLevel {
            level: Level::decode(&mut bytes, shift)?,
            heat: u128::from_le_bytes(take(&mut bytes)?),
            cools_ns: u64::from_le_bytes(take(&mut bytes)?),
        };
        (bytes.is_empty() && { used.heat } <= HEAT_MAX).then_some(used)
    }
}
