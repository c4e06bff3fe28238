//! What a call of the script says, and what it answers.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use smallvec::SmallVec;

use super::rule::RuleShape;
use crate::config::WindowAlign;
use crate::limit::Decision;
use crate::shared::{RateRule, SharedKey};

/// What the script is to do with its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptOp {
    /// Judge all; if none refuses, charge all.
    Take,
    /// Judge all, charge none.
    Peek,
    /// Give back what an acknowledged [`ScriptOp::Take`] took; of concurrency limits as [`ScriptOp::Hold`].
    Refund,
    /// Note how many slots this gateway holds; of other limits it says nothing.
    ReportSlots,
    /// Charge what was admitted without the store, even beyond the limit. It may be sent again: what has been charged
    /// once under a sequence number is not charged a second time.
    Charge,
}

/// One rate and one key that a call is about. Items of one limit stand together.
#[derive(Debug, Clone, Copy)]
pub struct CallItem<'a> {
    pub rule: &'a RateRule,
    pub key: SharedKey,
    /// Units, at least 1 and at most what the rate can ever hold.
    pub cost: u64,
    /// Place of its limit in the chain; a limit in a dry run is a transaction of its own.
    pub limit_index: u16,
    /// Judged, but never a reason to refuse.
    pub dry_run: bool,
    /// Of a concurrency limit.
    pub slot_count: SlotCount,
    /// Of [`ScriptOp::Give`]: the mark of what was taken. Of [`ScriptOp::Charge`]: the sequence number, one for all items of a key.
    pub mark: u64,
    /// Units admitted without the store that it does not count yet: judged as if it did.
    pub owed: u64,
}

/// How many slots of a key this gateway holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotCount {
    /// Those that are being asked for included.
    pub slots: u64,
    /// Higher than that of any earlier word about this key.
    pub sequence: u64,
}

/// A call, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedCall {
    /// The full names of all keys; they share one hash slot.
    pub keys: SmallVec<[Vec<u8>; 2]>,
    pub body: Vec<u8>,
}

/// What the store answered to [`ScriptOp::Take`] or [`ScriptOp::Peek`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptReply {
    /// The store's clock, microseconds since 1970.
    pub now_us: u64,
    /// Nobody refused; of a take: all was charged.
    pub admitted: bool,
    /// One per item, in their order; only of [`ScriptOp::Take`] and [`ScriptOp::Peek`].
    pub answers: SmallVec<[RateAnswer; 4]>,
}

/// The answer of one rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateAnswer {
    /// Durations count from the store's `now`. They are whole microseconds, rounded up.
    pub decision: Decision,
    /// What giving the charge back has to name; 0 if nothing was charged.
    pub mark: u64,
    /// Slots that were neither judged nor charged, because the request has to wait or is refused by a rate.
    pub skipped: bool,
    /// Of a fixed window: nanoseconds until it ends.
    pub window_ns: Option<u64>,
}

/// Where the counters of a rule are, in the order in which the script is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CounterClass {
    Entry,
    Log,
    Slots,
    /// Not counters, but which charge of this gateway was made last.
    Charge,
}

const DRY_RUN: u8 = 1;
const FIRST: u8 = 2;
const BY_CLOCK: u8 = 4;

// === impl Item ===

impl CallItem<'_> {
    /// Ticks that are owed, at so many for a unit.
    pub(crate) fn owed_ticks(&self, unit: u64) -> u64 {
        self.owed.saturating_mul(unit)
    }
}

// === impl Packed ===

impl PackedCall {
    /// What to send for `items`, whose keys live in one hash slot; `node` is this gateway.
    pub fn new(op: ScriptOp, prefix: &str, node: u64, items: &[CallItem<'_>]) -> PackedCall {
        let mut packed = PackedCall { keys: SmallVec::new(), body: Vec::with_capacity(8 + 40 * items.len()) };
        packed.body.push(match op {
            ScriptOp::Take => 1,
            ScriptOp::Peek => 2,
            ScriptOp::Refund => 3,
            ScriptOp::ReportSlots => 4,
            ScriptOp::Charge => 5,
        });
        let mut order = script_order(items);
        if op == ScriptOp::Charge {
            let first = |place: &usize| items.iter().position(|other| other.key == items[*place].key);
            order.sort_by_key(first);
        }
        let mut charged = None;
        let groups = order.chunk_by(|one, next| {
            let (one, next) = (&items[*one], &items[*next]);
            class_of(one) == CounterClass::Entry
                && class_of(next) == CounterClass::Entry
                && one.key == next.key
        });
        for group in groups {
            let Some(item) = group.first().map(|first| &items[*first]) else { continue };
            let class = class_of(item);
            if op == ScriptOp::ReportSlots && class != CounterClass::Slots
                || op == ScriptOp::Charge && class == CounterClass::Slots
            {
                continue;
            }
            if op == ScriptOp::Charge && charged.replace(item.key) != Some(item.key) {
                packed.push_charge(prefix, node, items, item);
            }
            packed.push_group(key_name(prefix, item, class), class, group.len());
            for place in group {
                packed.push_item(op, node, items, *place);
            }
        }
        packed
    }

    fn push_group(&mut self, key: Vec<u8>, class: CounterClass, items: usize) {
        self.keys.push(key);
        self.body.push(class as u8);
        self.body.extend((self.keys.len() as u16).to_le_bytes());
        self.body.extend((items as u16).to_le_bytes());
    }

    /// Names the charge that follows, of all items with the key of `item`.
    fn push_charge(&mut self, prefix: &str, node: u64, items: &[CallItem<'_>], item: &CallItem<'_>) {
        let mut key = key_name(prefix, item, CounterClass::Entry);
        key.extend(format!(":N:{node:016x}").bytes());
        self.push_group(key, CounterClass::Charge, 0);
        let own = items.iter().filter(|other| other.key == item.key);
        let recovery_us = own.map(|item| item.rule.shape.recovery_us()).max().unwrap_or(0);
        // Some time more, for what was sent last.
        self.push_number(item.mark as f64);
        self.push_number((recovery_us / 1_000).saturating_add(60_000) as f64);
    }

    fn push_item(&mut self, op: ScriptOp, node: u64, items: &[CallItem<'_>], place: usize) {
        let item = &items[place];
        let is_first = place == 0 || items[place - 1].limit_index != item.limit_index;
        let flags = if item.dry_run { DRY_RUN } else { 0 } | if is_first { FIRST } else { 0 };
        let cost = item.cost;
        let ends = |most: u64, taken: u64| match op {
            ScriptOp::Refund => item.mark as f64,
            // A charge may go below zero, but by no more than as much again.
            ScriptOp::Charge => most.saturating_mul(2) as f64,
            _ => (i128::from(most) - i128::from(taken)) as f64,
        };
        let pace = item.rule.shape.refill_pace();
        match item.rule.shape {
            RuleShape::TokenBucket { num, unit, burst } => {
                let span = cost.saturating_mul(unit);
                let taken =
                    if op == ScriptOp::Charge { 0 } else { item.owed_ticks(unit).saturating_add(span) };
                self.push_entry(
                    item,
                    0,
                    flags,
                    [num as f64, span as f64, ends(burst.saturating_mul(unit), taken)],
                );
                self.body.extend(pace.to_le_bytes());
            }
            RuleShape::LeakyBucket { num, unit, queue } => {
                let span = cost.saturating_mul(unit);
                let most = queue.ahead.saturating_add(queue.wait_max);
                let owed = item.owed_ticks(unit);
                let most = if op == ScriptOp::Charge { queue.depth } else { most };
                self.push_entry(item, 1, flags, [num as f64, span as f64, ends(most, owed)]);
                self.body.extend(pace.to_le_bytes());
                let waits_above = (i128::from(queue.ahead) - i128::from(owed)) as f64;
                // A dry run never waits.
                self.push_number(if item.dry_run { f64::INFINITY } else { waits_above });
            }
            RuleShape::FixedWindow { max, period, align } => {
                let flags = flags | if align == WindowAlign::Clock { BY_CLOCK } else { 0 };
                let taken = cost.saturating_add(item.owed);
                self.push_entry(item, 2, flags, [period as f64, cost as f64, ends(max, taken)]);
            }
            RuleShape::SlidingWindow { max, period, .. } => {
                let width = item.rule.shape.bucket_width();
                let taken = cost.saturating_add(item.owed);
                self.push_entry(item, 3, flags, [width as f64, cost as f64, ends(max, taken)]);
                self.push_number(period as f64);
            }
            RuleShape::SlidingLog { max, period } => {
                self.body.push(flags);
                let taken = cost.saturating_add(item.owed);
                self.push_numbers([period as f64, cost as f64, ends(max, taken)]);
            }
            RuleShape::Concurrency { max } => {
                let SlotCount { slots, sequence } = item.slot_count;
                let slots = slots.min(u32::MAX.into());
                self.body.push(flags);
                self.body.extend(node.to_le_bytes());
                self.body.extend(((sequence >> 32) as u32).to_le_bytes());
                self.body.extend((sequence as u32).to_le_bytes());
                self.push_number(slots as f64);
                self.push_number((i128::from(max) - i128::from(slots)) as f64);
            }
        }
    }

    fn push_entry(&mut self, item: &CallItem<'_>, kind: u8, flags: u8, numbers: [f64; 3]) {
        self.body.extend(item.rule.id.to_le_bytes());
        self.body.extend([kind, flags]);
        self.push_numbers(numbers);
    }

    fn push_numbers(&mut self, numbers: [f64; 3]) {
        numbers.iter().for_each(|number| self.push_number(*number));
    }

    fn push_number(&mut self, number: f64) {
        self.body.extend(number.to_le_bytes());
    }
}

/// The items as the script is told of them: the rates of one key together, slots last.
pub(crate) fn script_order(items: &[CallItem<'_>]) -> SmallVec<[usize; 8]> {
    let mut order: SmallVec<[usize; 8]> = (0..items.len()).collect();
    let first = |item: &CallItem<'_>| items.iter().position(|other| other.key == item.key);
    order.sort_by_key(|place| (class_of(&items[*place]), first(&items[*place]), *place));
    order
}

fn class_of(item: &CallItem<'_>) -> CounterClass {
    match item.rule.shape {
        RuleShape::SlidingLog { .. } => CounterClass::Log,
        RuleShape::Concurrency { .. } => CounterClass::Slots,
        _ => CounterClass::Entry,
    }
}

fn key_name(prefix: &str, item: &CallItem<'_>, class: CounterClass) -> Vec<u8> {
    let mut name = Vec::with_capacity(prefix.len() + 40);
    name.extend_from_slice(prefix.as_bytes());
    name.extend_from_slice(b":{");
    let mut id = [0; 22];
    // Cannot fail: 16 bytes are 22 characters.
    URL_SAFE_NO_PAD.encode_slice(item.key.0, &mut id).expect("16 bytes are 22 characters");
    name.extend(id);
    name.push(b'}');
    match class {
        CounterClass::Entry | CounterClass::Charge => {}
        CounterClass::Log => name.extend(format!(":L:{:08x}", item.rule.id).bytes()),
        CounterClass::Slots => name.extend(format!(":C:{:08x}", item.rule.id).bytes()),
    }
    name
}
