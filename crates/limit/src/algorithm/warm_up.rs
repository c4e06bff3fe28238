//! `warm_up`: from cold the rate climbs from a third to the whole over a time W, and a key cools down when idle.
//!
//! The curve is that of the warming-up rate limiter of Guava (`SmoothRateLimiter.SmoothWarmingUp`, cold factor 3),
//! expressed in heat instead of stored permits: at heat h, 0 = cold and W = warm, a unit takes I(h) = T·(3 − 2h/W)
//! ticks instead of T, and adds 2·T of heat. Idle time removes heat one for one. A saturated key is warm W after it
//! was cold, and W/2T units pass in that time.
//!
//! During a backlog heat is counted beyond W, where it changes nothing, so that refunded units remove exactly the
//! heat they added. The interval is the difference of one function of heat, so the same units take the same time
//! however they are divided; no unit takes less than T, so a warm limit is never faster.

use super::open_charges::ShardCharges;
use super::rate::{ChargeMark, Level, TickRate};
use super::schedule::{BucketUsage, Schedule, greatest_where};
use crate::Decision;
use crate::table::TableEntry;
use crate::table::persistent::{PersistentEntry, take_bytes};
use sluicegate_base::clock::{ClockShift, Now};

/// The longest W; a longer one would not fit the arithmetic, and the check of the configuration rejects it.
const WARM_TICKS_MAX: u128 = 1 << 61;

/// The most heat, which leaves room for the arithmetic on it.
const HEAT_MAX: u128 = 1 << 96;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WarmUpRate {
    tick_rate: TickRate,
    /// Ticks to warm up, W.
    warm: u128,
    /// Ticks of heat that a unit adds, 2·T.
    unit_heat: u128,
}

/// The usage and the heat of one key.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
pub(crate) struct WarmLevel {
    level: Level,
    /// Heat at the TAT, in ticks.
    heat: u128,
    /// Time it takes to cool down, ns.
    cools_ns: u64,
}

// === impl WarmUpRate ===

impl WarmUpRate {
    pub(crate) fn new(tick_rate: TickRate, warm_up_ns: u64) -> WarmUpRate {
        let warm = tick_rate.ns_to_ticks(warm_up_ns).clamp(1, WARM_TICKS_MAX);
        WarmUpRate { tick_rate, warm, unit_heat: 2 * u128::from(tick_rate.unit_ticks()) }
    }

    /// The heat at `now`, which is not before the last charge.
    fn heat_at(&self, used: &WarmLevel, now: Now) -> u128 {
        match self.tick_rate.idle_ticks(&used.level, now) {
            0 => used.heat,
            idle => { used.heat }.min(self.warm).saturating_sub(idle),
        }
    }

    fn units_heat(&self, units: u64) -> u128 {
        self.unit_heat.saturating_mul(units.into())
    }

    /// Ticks of the units that raise the heat from `from` to `to`.
    fn ticks_between(&self, from: u128, to: u128) -> u128 {
        self.ticks_since_cold(to).saturating_sub(self.ticks_since_cold(from))
    }

    /// A function F with F(h + 2T) − F(h) = I(h): x·(3W + 2T − x)/2W, and T per unit once the key is warm.
    fn ticks_since_cold(&self, heat: u128) -> u128 {
        let all_warm = heat.saturating_sub(self.warm + self.unit_heat).div_ceil(self.unit_heat);
        let heat = heat - all_warm * self.unit_heat;
        let climbing = (heat * (3 * self.warm + self.unit_heat - heat)).div_ceil(2 * self.warm);
        climbing + all_warm * u128::from(self.tick_rate.unit_ticks())
    }

    fn set_heat(&self, used: &mut WarmLevel, heat: u128) {
        used.heat = heat;
        used.cools_ns = self.tick_rate.ticks_to_ns(heat.min(self.warm));
    }
}

impl Schedule for WarmUpRate {
    type Used = WarmLevel;
    const SLOWEST: u64 = 3;

    fn tick_rate(&self) -> &TickRate {
        &self.tick_rate
    }

    fn next_ticks(&self, used: &WarmLevel, now: Now, units: u64) -> u128 {
        let heat = self.heat_at(used, now);
        self.ticks_between(heat, heat.saturating_add(self.units_heat(units)))
    }

    fn last_ticks(&self, used: &WarmLevel, units: u64) -> u128 {
        // Units charged before the key last was cold are not among the last ones.
        let from = { used.heat }.saturating_sub(self.units_heat(units));
        self.ticks_between(from, from.saturating_add(self.units_heat(units)))
    }

    fn charge_usage(&self, used: &mut WarmLevel, now: Now, cost: u64) -> (ChargeMark, u128) {
        let heat = self.heat_at(used, now);
        let heat_new = heat.saturating_add(self.units_heat(cost));
        let span = self.ticks_between(heat, heat_new);
        self.set_heat(used, heat_new);
        (self.tick_rate.advance_tat(&mut used.level, now, self.tick_rate.split_ticks(span)), span)
    }

    fn refund_usage(&self, used: &mut WarmLevel, cost: u64, since: ChargeMark) {
        let regained =
            self.tick_rate.regained_ticks(&used.level, Self::SLOWEST * self.tick_rate.unit_ticks(), since);
        let (heat, span) = match regained {
            0 => {
                let heat = { used.heat }.saturating_sub(self.units_heat(cost));
                (heat, self.ticks_between(heat, used.heat))
            }
            // The heat may have cooled away; removing it twice would make the refunds of others too long.
            _ => (used.heat, self.tick_rate.units_to_ticks(cost)),
        };
        self.tick_rate.retreat_tat(&mut used.level, cost, span, regained);
        self.set_heat(used, heat);
    }

    fn refund_to_tat(&self, used: &mut WarmLevel, cost: u64, tat_min: u128) {
        let (span, tat) = (self.last_ticks(used, cost), self.tick_rate.tat_ticks(&used.level));
        if tat >= tat_min + span {
            self.tick_rate.retreat_tat(&mut used.level, cost, span, 0);
            return self.set_heat(used, { used.heat }.saturating_sub(self.units_heat(cost)));
        }
        // As for a late refund, the heat stays: it may have cooled away.
        self.tick_rate.refund_to_tat(&mut used.level, cost, tat_min);
    }

    fn withdraw_usage(&self, used: &mut WarmLevel, cost: u64, span: u128) {
        self.tick_rate.withdraw_usage(&mut used.level, cost, span);
        self.set_heat(used, { used.heat }.saturating_sub(self.units_heat(cost)));
    }

    /// Keeps the warmth: a reset is to let the key through, and a cold one would get a third of its rate.
    fn reset_usage(&self, used: &mut WarmLevel, now: Now) {
        let heat = self.heat_at(used, now).min(self.warm);
        self.set_heat(used, heat);
        self.tick_rate.set_backlog(&mut used.level, now, 0);
    }

    /// Keeps the warmth as a share of W; heat beyond W stands for units and keeps their number.
    fn convert_usage(&self, used: &mut WarmLevel, before: &WarmUpRate, now: Now) {
        let heat = before.heat_at(used, now);
        let (climbed, beyond) = (heat.min(before.warm), heat.saturating_sub(before.warm));
        let climbed = climbed * self.warm / before.warm;
        let beyond = self.tick_rate.convert_ticks(beyond, &before.tick_rate);
        self.set_heat(used, climbed.saturating_add(beyond).min(HEAT_MAX));
    }

    fn remaining_units(&self, used: &WarmLevel, now: Now, depth: u128, backlog: u128) -> Decision {
        // No more units fit than at the full rate.
        let room = self.tick_rate.remaining_units(depth, backlog);
        let unit = u128::from(self.tick_rate.unit_ticks());
        let Some(ahead) = depth.saturating_sub(unit).checked_sub(backlog) else { return room };
        let fits = |units: u64| self.next_ticks(used, now, units - 1) <= ahead;
        Decision { remaining: greatest_where(1, room.remaining.saturating_add(1), fits), ..room }
    }
}

// === impl WarmLevel ===

impl BucketUsage for WarmLevel {
    fn level(&self) -> &Level {
        &self.level
    }

    fn level_mut(&mut self) -> &mut Level {
        &mut self.level
    }
}

impl TableEntry for WarmLevel {
    type Extra = ShardCharges;

    /// Idle is empty and cold: the last unit ended at least the cooling time ago.
    fn is_idle(&self, now: Now) -> bool {
        self.level.is_idle(Now(now.0.saturating_sub(self.cools_ns)))
    }
}

impl PersistentEntry for WarmLevel {
    fn encode_entry(&self, charges: &ShardCharges, out: &mut Vec<u8>) {
        self.level.encode_entry(charges, out);
        out.extend({ self.heat }.to_le_bytes());
        out.extend({ self.cools_ns }.to_le_bytes());
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, charges: &mut ShardCharges) -> Option<WarmLevel> {
        let level = Level::decode_entry(bytes, shift, charges)?;
        let heat = u128::from_le_bytes(take_bytes(bytes)?);
        let cools_ns = u64::from_le_bytes(take_bytes(bytes)?);
        (heat <= HEAT_MAX).then_some(WarmLevel { level, heat, cools_ns })
    }
}
