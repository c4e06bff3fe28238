//! What a call of the script says, and what it answers.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use smallvec::SmallVec;

use super::rule::Shape;
use crate::config::Align;
use crate::limit::Decision;
use crate::shared::{Rule, SharedKey};

/// What the script is to do with its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Judge all; if none refuses, charge all.
    Take,
    /// Judge all, charge none.
    Peek,
    /// Give back what an acknowledged [`Op::Take`] took; of concurrency limits as [`Op::Hold`].
    Give,
    /// Note how many slots this gateway holds; of other limits it says nothing.
    Hold,
    /// Charge what was admitted without the store, even beyond the limit. It may be sent again: what has been charged
    /// once under a sequence number is not charged a second time.
    Charge,
}

/// One rate and one key that a call is about. Items of one limit stand together.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    pub rule: &'a Rule,
    pub key: SharedKey,
    /// Units, at least 1 and at most what the rate can ever hold.
    pub cost: u64,
    /// Place of its limit in the chain; a limit in a dry run is a transaction of its own.
    pub place: u16,
    /// Judged, but never a reason to refuse.
    pub dry_run: bool,
    /// Of a concurrency limit.
    pub held: Held,
    /// Of [`Op::Give`]: the mark of what was taken. Of [`Op::Charge`]: the sequence number, one for all items of a key.
    pub mark: u64,
    /// Units admitted without the store that it does not count yet: judged as if it did.
    pub owed: u64,
}

/// How many slots of a key this gateway holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Those that are being asked for included.
    pub slots: u64,
    /// Higher than that of any earlier word about this key.
    pub sequence: u64,
}

/// A call, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The full names of all keys; they share one hash slot.
    pub keys: SmallVec<[Vec<u8>; 2]>,
    pub body: Vec<u8>,
}

/// What the store answered to [`Op::Take`] or [`Op::Peek`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The store's clock, microseconds since 1970.
    pub now_us: u64,
    /// Nobody refused; of a take: all was charged.
    pub admitted: bool,
    /// One per item, in their order; only of [`Op::Take`] and [`Op::Peek`].
    pub answers: SmallVec<[Answer; 4]>,
}

/// The answer of one rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
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
enum Class {
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

impl Item<'_> {
    /// Ticks that are owed, at so many for a unit.
    pub(crate) fn owed_in(&self, unit: u64) -> u64 {
        self.owed.saturating_mul(unit)
    }
}

// === impl Packed ===

impl Packed {
    /// What to send for `items`, whose keys live in one hash slot; `node` is this gateway.
    pub fn new(op: Op, prefix: &str, node: u64, items: &[Item<'_>]) -> Packed {
        let mut packed = Packed { keys: SmallVec::new(), body: Vec::with_capacity(8 + 40 * items.len()) };
        packed.body.push(match op {
            Op::Take => 1,
            Op::Peek => 2,
            Op::Give => 3,
            Op::Hold => 4,
            Op::Charge => 5,
        });
        let mut order = order(items);
        if op == Op::Charge {
            let first = |place: &usize| items.iter().position(|other| other.key == items[*place].key);
            order.sort_by_key(first);
        }
        let mut charged = None;
        let groups = order.chunk_by(|one, next| {
            let (one, next) = (&items[*one], &items[*next]);
            class(one) == Class::Entry && class(next) == Class::Entry && one.key == next.key
        });
        for group in groups {
            let Some(item) = group.first().map(|first| &items[*first]) else { continue };
            let class = class(item);
            if op == Op::Hold && class != Class::Slots || op == Op::Charge && class == Class::Slots {
                continue;
            }
            if op == Op::Charge && charged.replace(item.key) != Some(item.key) {
                packed.charge(prefix, node, items, item);
            }
            packed.group(name(prefix, item, class), class, group.len());
            for place in group {
                packed.item(op, node, items, *place);
            }
        }
        packed
    }

    fn group(&mut self, key: Vec<u8>, class: Class, items: usize) {
        self.keys.push(key);
        self.body.push(class as u8);
        self.body.extend((self.keys.len() as u16).to_le_bytes());
        self.body.extend((items as u16).to_le_bytes());
    }

    /// Names the charge that follows, of all items with the key of `item`.
    fn charge(&mut self, prefix: &str, node: u64, items: &[Item<'_>], item: &Item<'_>) {
        let mut key = name(prefix, item, Class::Entry);
        key.extend(format!(":N:{node:016x}").bytes());
        self.group(key, Class::Charge, 0);
        let own = items.iter().filter(|other| other.key == item.key);
        let recovery_us = own.map(|item| item.rule.shape.recovery_us()).max().unwrap_or(0);
        // Some time more, for what was sent last.
        self.number(item.mark as f64);
        self.number((recovery_us / 1_000).saturating_add(60_000) as f64);
    }

    fn item(&mut self, op: Op, node: u64, items: &[Item<'_>], place: usize) {
        let item = &items[place];
        let is_first = place == 0 || items[place - 1].place != item.place;
        let flags = if item.dry_run { DRY_RUN } else { 0 } | if is_first { FIRST } else { 0 };
        let cost = item.cost;
        let ends = |most: u64, taken: u64| match op {
            Op::Give => item.mark as f64,
            // A charge may go below zero, but by no more than as much again.
            Op::Charge => most.saturating_mul(2) as f64,
            _ => (i128::from(most) - i128::from(taken)) as f64,
        };
        let pace = item.rule.shape.pace();
        match item.rule.shape {
            Shape::TokenBucket { num, unit, burst } => {
                let span = cost.saturating_mul(unit);
                let taken = if op == Op::Charge { 0 } else { item.owed_in(unit).saturating_add(span) };
                self.entry(
                    item,
                    0,
                    flags,
                    [num as f64, span as f64, ends(burst.saturating_mul(unit), taken)],
                );
                self.body.extend(pace.to_le_bytes());
            }
            Shape::LeakyBucket { num, unit, queue } => {
                let span = cost.saturating_mul(unit);
                let most = queue.ahead.saturating_add(queue.wait_max);
                let owed = item.owed_in(unit);
                let most = if op == Op::Charge { queue.depth } else { most };
                self.entry(item, 1, flags, [num as f64, span as f64, ends(most, owed)]);
                self.body.extend(pace.to_le_bytes());
                let waits_above = (i128::from(queue.ahead) - i128::from(owed)) as f64;
                // A dry run never waits.
                self.number(if item.dry_run { f64::INFINITY } else { waits_above });
            }
            Shape::FixedWindow { max, period, align } => {
                let flags = flags | if align == Align::Clock { BY_CLOCK } else { 0 };
                let taken = cost.saturating_add(item.owed);
                self.entry(item, 2, flags, [period as f64, cost as f64, ends(max, taken)]);
            }
            Shape::SlidingWindow { max, period, .. } => {
                let width = item.rule.shape.width();
                let taken = cost.saturating_add(item.owed);
                self.entry(item, 3, flags, [width as f64, cost as f64, ends(max, taken)]);
                self.number(period as f64);
            }
            Shape::SlidingLog { max, period } => {
                self.body.push(flags);
                let taken = cost.saturating_add(item.owed);
                self.numbers([period as f64, cost as f64, ends(max, taken)]);
            }
            Shape::Concurrency { max } => {
                let Held { slots, sequence } = item.held;
                let slots = slots.min(u32::MAX.into());
                self.body.push(flags);
                self.body.extend(node.to_le_bytes());
                self.body.extend(((sequence >> 32) as u32).to_le_bytes());
                self.body.extend((sequence as u32).to_le_bytes());
                self.number(slots as f64);
                self.number((i128::from(max) - i128::from(slots)) as f64);
            }
        }
    }

    fn entry(&mut self, item: &Item<'_>, kind: u8, flags: u8, numbers: [f64; 3]) {
        self.body.extend(item.rule.id.to_le_bytes());
        self.body.extend([kind, flags]);
        self.numbers(numbers);
    }

    fn numbers(&mut self, numbers: [f64; 3]) {
        numbers.iter().for_each(|number| self.number(*number));
    }

    fn number(&mut self, number: f64) {
        self.body.extend(number.to_le_bytes());
    }
}

/// The items as the script is told of them: the rates of one key together, slots last.
pub(crate) fn order(items: &[Item<'_>]) -> SmallVec<[usize; 8]> {
    let mut order: SmallVec<[usize; 8]> = (0..items.len()).collect();
    let first = |item: &Item<'_>| items.iter().position(|other| other.key == item.key);
    order.sort_by_key(|place| (class(&items[*place]), first(&items[*place]), *place));
    order
}

fn class(item: &Item<'_>) -> Class {
    match item.rule.shape {
        Shape::SlidingLog { .. } => Class::Log,
        Shape::Concurrency { .. } => Class::Slots,
        _ => Class::Entry,
    }
}

fn name(prefix: &str, item: &Item<'_>, class: Class) -> Vec<u8> {
    let mut name = Vec::with_capacity(prefix.len() + 40);
    name.extend_from_slice(prefix.as_bytes());
    name.extend_from_slice(b":{");
    let mut id = [0; 22];
    // Cannot fail: 16 bytes are 22 characters.
    URL_SAFE_NO_PAD.encode_slice(item.key.0, &mut id).expect("16 bytes are 22 characters");
    name.extend(id);
    name.push(b'}');
    match class {
        Class::Entry | Class::Charge => {}
        Class::Log => name.extend(format!(":L:{:08x}", item.rule.id).bytes()),
        Class::Slots => name.extend(format!(":C:{:08x}", item.rule.id).bytes()),
    }
    name
}
