//! Rates with charges that responses settle, as the script judges them; and the calls that settle.

use smallvec::SmallVec;

use super::call::{KeyClass, PackedCall};
use super::rule_shape::RuleShape;
use super::{RateRemainder, bucket_remainder, read_double, read_number, ticks_to_us};
use crate::{CallItem, RateRule, ScriptOp, SharedKey};
use sluicegate_base::calendar::Anchor;
use sluicegate_model::WindowAlign;

/// The most units that one response may use beyond its reservation; sums of them stay exact in doubles.
const SPENT_MAX: u64 = 1 << 45;

/// The state that the script found for one item, before any charge.
pub(super) struct SettledState {
    /// Units, of a bucket ticks; owed ones are counted in.
    level: u64,
    mark: u64,
    /// The moments at which the units fit, and one more does.
    fits_at: u64,
    one_fits_at: u64,
    pub has_reserved: bool,
}

/// A charge with a response that is over: `reserved` units are corrected to `used` ones.
#[derive(Debug, Clone, Copy)]
pub struct SettleItem<'a> {
    /// The numbers of the charged rate.
    pub rule: &'a RateRule,
    /// The mark of the charge.
    pub mark: u64,
    /// Units that were charged before the response.
    pub reserved: u64,
    /// Units that the response used.
    pub used: u64,
    /// The settlement then resets the used units of the key; open reservations stay.
    pub forgets: bool,
    /// The date by which windows of its account begin.
    pub anchor: Option<Anchor>,
    /// The class of the request, where the limit has shares.
    pub class: u8,
}

/// The settlements of one key.
#[derive(Debug)]
pub struct SettledKey<'a> {
    /// The name of the key in the store.
    pub key: SharedKey,
    /// Higher than in any earlier call of the worker about the key; the same when the call is repeated.
    pub sequence: u64,
    /// The charges to correct.
    pub items: Vec<SettleItem<'a>>,
}

// === impl PackedCall ===

impl PackedCall {
    /// Packs settlements of keys in one hash slot; `node` names this worker, and `at` is the time of the store.
    pub fn settle(prefix: &str, node: u64, at: u64, keys: &[SettledKey<'_>]) -> PackedCall {
        let mut packed = PackedCall::new(ScriptOp::Settle, prefix, node, at, &[]);
        for settled in keys {
            let recovery_us = settled.items.iter().map(|item| item.rule.recovery_us()).max().unwrap_or(0);
            // A debt lasts twice as long.
            let keep = (settled.sequence, recovery_us.saturating_mul(2));
            packed.push_sequence(prefix, KeyClass::SettleSequence, node, &settled.key, keep);
            for order in settled.rule_order() {
                let SettleItem { rule, anchor, .. } = settled.items[order[0]];
                packed.push_group(rule.counters_name(prefix, &settled.key), rule.class(), order.len());
                match &rule.shares {
                    Some(shares) => packed.push_shares(rule, 0, shares),
                    None if rule.class() == KeyClass::Calendar => {
                        packed.push_calendar(rule, 0, (at, anchor), "")
                    }
                    None => packed.push_shape(rule, 0),
                }
                for index in order {
                    let SettleItem { mark, reserved, used, forgets, class, .. } = settled.items[index];
                    // A window of a calendar counts all units, for the invoice.
                    let beyond = match rule.class() {
                        KeyClass::Calendar => SPENT_MAX,
                        _ => rule.capacity_max.saturating_mul(2),
                    };
                    let most = reserved.saturating_add(beyond);
                    // The script scales those of shares.
                    let unit = if rule.shares.is_some() { 1 } else { rule.shape.unit() };
                    let numbers = [reserved, used.min(most)].map(|units| units.saturating_mul(unit) as f64);
                    if let Some(shares) = &rule.shares {
                        packed.push_class(shares, class);
                    }
                    packed.push_numbers([mark as f64, numbers[0], numbers[1]]);
                    packed.body.push(forgets.into());
                }
            }
        }
        packed
    }

    /// The units of an item with a string of its own.
    pub(super) fn push_units(&mut self, op: ScriptOp, item: &CallItem<'_>) {
        let shape = item.rule.shape;
        self.push_number(shape.scale_units(item.cost) as f64);
        let taken = item.cost.saturating_add(item.owed);
        match op {
            ScriptOp::Take | ScriptOp::Peek if item.rule.class() == KeyClass::Calendar => {
                self.push_number(taken as f64);
            }
            ScriptOp::Take | ScriptOp::Peek => {
                let free = i128::from(item.rule.capacity()) - i128::from(taken);
                self.push_number((free * i128::from(shape.unit())) as f64);
            }
            ScriptOp::Refund => self.push_number(item.mark as f64),
            ScriptOp::ReportSlots | ScriptOp::ChargeDebt | ScriptOp::Settle => {}
        }
    }

    pub(super) fn push_shape(&mut self, rule: &RateRule, flags: u8) {
        let unit = rule.shape.unit();
        let (kind, x, w) = match rule.shape {
            RuleShape::TokenBucket { num, .. } | RuleShape::LeakyBucket { num, .. } => {
                (0, num as f64, num as f64 / unit as f64)
            }
            RuleShape::FixedWindow { period, align: WindowAlign::First | WindowAlign::Calendar, .. } => {
                (1, period as f64, 0.0)
            }
            RuleShape::FixedWindow { period, align: WindowAlign::Clock, .. } => (2, period as f64, 0.0),
            RuleShape::SlidingWindow { period, .. } => (3, period as f64, rule.shape.bucket_width() as f64),
            RuleShape::SlidingLog { period, .. } => (4, period as f64, 0.0),
            // The configuration refuses `charge` there; calendars have a class of their own.
            RuleShape::Concurrency { .. } | RuleShape::Calendar { .. } => (4, 1.0, 0.0),
        };
        self.body.extend([kind, flags]);
        self.push_numbers([x, w, rule.shape.scale_units(rule.capacity_max) as f64, unit as f64]);
    }
}

// === impl SettledKey ===

impl SettledKey<'_> {
    /// The indices of the items of each rule.
    fn rule_order(&self) -> Vec<SmallVec<[usize; 4]>> {
        let mut groups: Vec<SmallVec<[usize; 4]>> = Vec::new();
        for (index, item) in self.items.iter().enumerate() {
            match groups.iter_mut().find(|group| self.items[group[0]].rule.id == item.rule.id) {
                Some(group) => group.push(index),
                None => groups.push(SmallVec::from_iter([index])),
            }
        }
        groups
    }

    /// Parses the reply about `keys`: of each item of each key the units that were forgiven, or `None` if it was
    /// settled before. `None` for an impossible reply.
    pub fn parse_reply(keys: &[SettledKey<'_>], mut bytes: &[u8]) -> Option<Vec<Vec<Option<u64>>>> {
        read_number(&mut bytes)?;
        bytes = bytes.split_first()?.1;
        let mut forgiven: Vec<Vec<Option<u64>>> = Vec::with_capacity(keys.len());
        for settled in keys {
            let mut own = vec![None; settled.items.len()];
            for index in settled.rule_order().into_iter().flatten() {
                let (charged, item) = (read_double(&mut bytes)?, settled.items[index]);
                let excess = item.used.saturating_sub(item.reserved);
                // Below 0: settled before.
                own[index] = (charged >= 0.0).then(|| excess.saturating_sub(charged as u64));
            }
            forgiven.push(own);
        }
        bytes.is_empty().then_some(forgiven)
    }
}

// === impl SettledState ===

impl SettledState {
    pub(super) fn read_from(item: &CallItem<'_>, bytes: &mut &[u8]) -> Option<SettledState> {
        let level = read_number(bytes)?.saturating_add(item.rule.shape.scale_units(item.owed));
        Some(SettledState {
            level,
            mark: read_number(bytes)?,
            fits_at: read_number(bytes)?,
            one_fits_at: read_number(bytes)?,
            has_reserved: read_double(bytes)? > 0.0,
        })
    }

    /// Microseconds until the item fits; `None` if it does now.
    pub(super) fn retry_us(&self, item: &CallItem<'_>, now: u64) -> Option<u64> {
        let shape = item.rule.shape;
        let needed = self.level.saturating_add(shape.scale_units(item.cost));
        let excess = needed.saturating_sub(shape.scale_units(item.rule.capacity()));
        let retry_us = match shape {
            RuleShape::TokenBucket { num, .. } => ticks_to_us(excess, num),
            _ => self.fits_at.saturating_sub(now).max(1),
        };
        (excess > 0).then_some(retry_us)
    }

    /// The remainder after a charge of `cost` units; 0 for none.
    pub(super) fn compute_remainder(&self, item: &CallItem<'_>, cost: u64, now: u64) -> RateRemainder {
        let (shape, capacity) = (item.rule.shape, item.rule.capacity());
        let level = self.level.saturating_add(shape.scale_units(cost));
        let rest = match shape {
            RuleShape::TokenBucket { num, unit, .. } => {
                bucket_remainder(num, unit, capacity.saturating_mul(unit), level)
            }
            _ => {
                let remaining = capacity.saturating_sub(level);
                let reset_us = if remaining == 0 { self.one_fits_at.saturating_sub(now) } else { 0 };
                let full_us = if level == 0 { 0 } else { shape.recovery_us() };
                RateRemainder { remaining, reset_us, mark: 0, window_us: None, full_us }
            }
        };
        let window_us = item.rule.window_ns().map(|_| self.mark.saturating_sub(now));
        RateRemainder { mark: self.mark, window_us, ..rest }
    }
}
