//! Exact arithmetic of a rate: moments are kept as nanoseconds and a fraction, so that no rate ever drifts.
//!
//! N units per P ns reduce to s units per T ns. One tick is 1/s ns, so one unit lasts T ticks, a whole number. The
//! schedule is the virtual scheduling algorithm of GCRA (ITU-T I.371, annex A.1): the theoretical arrival time (TAT)
//! runs ahead of the clock by the time of the units used.

use super::open_charges::ShardCharges;
use crate::table::TableEntry;
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::{Decision, LimitOutcome};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_model::Rate;

/// The longest unit (73 years), so that governor's 64 bits hold it.
const UNIT_TICKS_MAX: u64 = 1 << 61;
/// The most units that count as refunded at once, so that the counter does not wrap around.
const FORGOTTEN_MAX: u128 = 1 << 30;
/// The deepest bucket (146 years), so that a TAT fits 64 bits.
const DEPTH_NS_MAX: u128 = 1 << 62;

/// A rate, as the length of one unit in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TickRate {
    /// Ticks per nanosecond, s.
    ticks_per_ns: u32,
    /// Ticks per unit, T.
    unit: u64,
    /// `unit`, in whole nanoseconds; `unit_frac` = the ticks beyond them.
    pub(super) unit_ns: u64,
    pub(super) unit_frac: u32,
}

/// The usage of one key: 24 bytes, packed so that a cell of the table is 36.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
pub(crate) struct Level {
    /// Theoretical arrival time, ns.
    tat_ns: u64,
    /// The moment of the last charge, ns.
    last_ns: u64,
    /// Ticks beyond `tat_ns`.
    tat_frac: u32,
    /// Units refunded so far; starts from an arbitrary number each time the bucket was idle.
    refunded: u32,
}

/// The state at a charge, which its refund needs; packed because every request carries some.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C, packed(4))]
pub struct ChargeMark {
    at_ns: u64,
    /// The time by which the TAT was already ahead.
    ahead_ns: u32,
    refunded: u32,
}

// === impl Level ===

impl Level {
    /// `now`, or the last charge if another thread read its clock later but came first: a negative span counts as
    /// zero.
    #[inline]
    pub(crate) fn clamp_now(&self, now: Now) -> Now {
        Now(now.0.max(self.last_ns))
    }

    /// Records a departure at `at_ns`, `ahead_ns` before the TAT, of units that were charged on arrival.
    pub(crate) fn record_departure(&mut self, at_ns: u64, ahead_ns: u64) -> ChargeMark {
        self.last_ns = at_ns.max(self.last_ns);
        self.mark_charge(at_ns, ahead_ns)
    }

    /// The level as if its units lasted until `end_ns` at least.
    pub(crate) fn used_until(self, end_ns: u64) -> Level {
        Level { tat_ns: { self.tat_ns }.max(end_ns), ..self }
    }

    #[inline]
    fn mark_charge(&self, at_ns: u64, ahead_ns: u64) -> ChargeMark {
        ChargeMark { at_ns, ahead_ns: ahead_ns.min(u32::MAX.into()) as u32, refunded: self.refunded }
    }
}

impl TableEntry for Level {
    type Extra = ShardCharges;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.tat_ns < now.0 || (self.tat_ns == now.0 && self.tat_frac == 0)
    }
}

impl PersistentEntry for Level {
    /// Without the count that only pending refunds need.
    fn encode_entry(&self, _: &ShardCharges, out: &mut Vec<u8>) {
        out.extend({ self.tat_ns }.to_le_bytes());
        out.extend({ self.last_ns }.to_le_bytes());
        out.extend({ self.tat_frac }.to_le_bytes());
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, _: &mut ShardCharges) -> Option<Level> {
        Some(Level {
            tat_ns: shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?)),
            last_ns: shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?)),
            tat_frac: u32::from_le_bytes(take_bytes(bytes)?),
            refunded: 0,
        })
    }
}

// === impl ChargeMark ===

impl ChargeMark {
    /// The mark of a window, which has no schedule: the moment that identifies the charge.
    pub(crate) fn at_moment(at_ns: u64) -> ChargeMark {
        ChargeMark { at_ns, ..ChargeMark::default() }
    }

    /// The mark of a window for a request that took a place of `interval` ns in the pace of a step.
    pub(crate) fn paced_at(at_ns: u64, interval: u64) -> ChargeMark {
        ChargeMark { at_ns, ahead_ns: interval as u32, refunded: (interval >> 32) as u32 }
    }

    /// The interval of [`ChargeMark::paced_at`]; 0 for other marks of windows.
    pub(crate) fn interval_ns(self) -> u64 {
        u64::from(self.refunded) << 32 | u64::from(self.ahead_ns)
    }

    pub(crate) fn at_ns(self) -> u64 {
        self.at_ns
    }
}

// === impl TickRate ===

impl TickRate {
    pub(crate) fn new(rate: Rate) -> TickRate {
        let (mut ticks_per_ns, mut unit) = rate.in_lowest_terms();
        unit = unit.min(UNIT_TICKS_MAX);
        if ticks_per_ns > u32::MAX.into() {
            // Beyond about four units per ns the tick is coarser and the unit is rounded up, so never faster.
            let ticks = u128::from(unit) * u128::from(u32::MAX);
            unit = ticks.div_ceil(ticks_per_ns.into()) as u64;
            ticks_per_ns = u32::MAX.into();
        }
        TickRate {
            ticks_per_ns: ticks_per_ns as u32,
            unit,
            unit_ns: unit / ticks_per_ns,
            unit_frac: (unit % ticks_per_ns) as u32,
        }
    }

    /// Ticks per unit, T.
    pub(crate) fn unit_ticks(&self) -> u64 {
        self.unit
    }

    /// Ticks that `units` take.
    #[inline]
    pub(crate) fn units_to_ticks(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.unit)
    }

    #[inline]
    pub(crate) fn ns_to_ticks(&self, ns: u64) -> u128 {
        u128::from(ns) * u128::from(self.ticks_per_ns)
    }

    /// Caps `units` at the most the arithmetic holds, which is more than any valid configuration has.
    pub(crate) fn units_within_reach(&self, units: u64) -> u64 {
        let reach = DEPTH_NS_MAX * u128::from(self.ticks_per_ns) / u128::from(self.unit);
        u128::from(units).min(reach).max(1) as u64
    }

    /// Ticks by which the TAT is behind `now`, rounded up.
    pub(crate) fn idle_ticks(&self, level: &Level, now: Now) -> u128 {
        self.ns_to_ticks(now.0.saturating_sub(level.tat_ns))
    }

    /// Ticks by which the TAT is ahead of `now`.
    #[inline]
    pub(crate) fn backlog_ticks(&self, level: &Level, now: Now) -> u128 {
        let ahead = level.tat_ns.checked_sub(now.0);
        ahead.map_or(0, |ahead| self.ns_to_ticks(ahead) + u128::from(level.tat_frac))
    }

    /// The TAT, in ticks since `Now(0)`.
    pub(crate) fn tat_ticks(&self, level: &Level) -> u128 {
        self.ns_to_ticks(level.tat_ns) + u128::from(level.tat_frac)
    }

    pub(crate) fn set_tat(&self, level: &mut Level, ticks: u128) {
        let (ns, frac) = self.split_ticks(ticks);
        level.tat_ns = ns;
        level.tat_frac = frac;
    }

    /// TAT = max(TAT, now) + a span of whole nanoseconds and the ticks beyond.
    #[inline]
    pub(crate) fn advance_tat(&self, level: &mut Level, now: Now, (ns, frac): (u64, u32)) -> ChargeMark {
        if level.tat_ns < now.0 {
            level.tat_ns = now.0;
            level.tat_frac = 0;
            level.refunded = (now.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
        }
        let since = level.mark_charge(now.0, level.tat_ns - now.0);
        let frac = u64::from(level.tat_frac) + u64::from(frac);
        let carry = frac >= u64::from(self.ticks_per_ns);
        level.tat_ns = level.tat_ns.saturating_add(ns).saturating_add(carry.into());
        level.tat_frac = (frac - if carry { u64::from(self.ticks_per_ns) } else { 0 }) as u32;
        level.last_ns = now.0;
        since
    }

    /// Ticks for which the bucket could have stood full before its last charge, had neither the units of this late
    /// refund nor those refunded since been charged. No unit takes more than `unit_max` ticks.
    #[inline]
    pub(crate) fn regained_ticks(&self, level: &Level, unit_max: u64, since: ChargeMark) -> u128 {
        let refunded = { level.refunded }.wrapping_sub(since.refunded);
        let moved = self.ticks_to_ns(u128::from(refunded) * u128::from(unit_max));
        let full_from_ns = { since.at_ns }.saturating_add(u64::from(since.ahead_ns).saturating_sub(moved));
        match { level.last_ns }.checked_sub(full_from_ns) {
            // Both ends are rounded, so their distance may be one too short.
            Some(ns) if ns > 0 => self.ns_to_ticks(ns.saturating_add(1)),
            _ => 0,
        }
    }

    /// Gives back `cost` units that took `span`, less the ticks `regained`: else a late refund would let more than a
    /// full bucket pass at once.
    #[inline]
    pub(crate) fn retreat_tat(&self, level: &mut Level, cost: u64, span: u128, regained: u128) {
        let refund = span.saturating_sub(regained);
        self.set_tat(level, self.tat_ticks(level).saturating_sub(refund));
        level.refunded = { level.refunded }.wrapping_add(cost.min(u32::MAX.into()) as u32);
    }

    /// Takes the TAT back to `tat` ticks, for refunds as if all units beyond had been refunded.
    pub(crate) fn forget_usage(&self, level: &mut Level, tat: u128) {
        let before = self.tat_ticks(level);
        let units = before.saturating_sub(tat).div_ceil(self.unit.into());
        self.set_tat(level, tat.min(before));
        level.refunded = { level.refunded }.wrapping_add(units.min(FORGOTTEN_MAX) as u32);
    }

    /// The ticks of as many units as `ticks` hold at the rate `before`, rounded up.
    pub(crate) fn convert_ticks(&self, ticks: u128, before: &TickRate) -> u128 {
        let (units, rest) = (ticks / u128::from(before.unit), ticks % u128::from(before.unit));
        let rest = (rest * u128::from(self.unit)).div_ceil(before.unit.into());
        let reach = DEPTH_NS_MAX * u128::from(self.ticks_per_ns);
        units.saturating_mul(self.unit.into()).saturating_add(rest).min(reach)
    }

    /// Sets the backlog to `ticks` as of `now`, which is not before the last charge.
    pub(crate) fn set_backlog(&self, level: &mut Level, now: Now, ticks: u128) {
        self.set_tat(level, self.ns_to_ticks(now.0).saturating_add(ticks));
        // For refunds this counts as a charge.
        level.last_ns = now.0;
    }

    /// The decision on no further units of a bucket that is `depth` ticks deep: the room left.
    #[inline]
    pub(crate) fn remaining_units(&self, depth: u128, backlog: u128) -> Decision {
        let room = depth.saturating_sub(backlog);
        let remaining = match u64::try_from(room) {
            Ok(room) => room / self.unit,
            Err(_) => (room / u128::from(self.unit)).min(u64::MAX.into()) as u64,
        };
        let reset_ns = match remaining {
            0 => self.ticks_to_ns((backlog + u128::from(self.unit)).saturating_sub(depth)),
            _ => 0,
        };
        let (outcome, full_ns) = (LimitOutcome::Admit, self.ticks_to_ns(backlog));
        Decision {
            outcome,
            reached: 0,
            remaining,
            reset_ns,
            retry_after_ns: 0,
            wait_ns: 0,
            full_ns,
            anchor: None,
        }
    }

    /// Nanoseconds that last at least `ticks`.
    #[inline]
    pub(crate) fn ticks_to_ns(&self, ticks: u128) -> u64 {
        let (ns, frac) = self.split_ticks(ticks);
        ns.saturating_add((frac > 0).into())
    }

    /// Whole nanoseconds in `ticks`, and the ticks beyond.
    #[inline]
    pub(crate) fn split_ticks(&self, ticks: u128) -> (u64, u32) {
        let per_ns = self.ticks_per_ns;
        match u64::try_from(ticks) {
            Ok(ticks) if per_ns == 1 => (ticks, 0),
            Ok(ticks) => (ticks / u64::from(per_ns), (ticks % u64::from(per_ns)) as u32),
            Err(_) => match u64::try_from(ticks / u128::from(per_ns)) {
                Ok(ns) => (ns, (ticks % u128::from(per_ns)) as u32),
                Err(_) => (u64::MAX, 0),
            },
        }
    }
}
