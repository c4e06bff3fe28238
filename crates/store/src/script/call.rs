//! Calls of the judging script: the items, how they are packed, and the types of the reply.

use std::io::Write as _;
use std::sync::Arc;

use smallvec::SmallVec;

use super::rule_shape::RuleShape;
use super::shares::ShareRule;
use crate::{RateRule, SharedKey, SlotKey};
use sluicegate_base::calendar::Anchor;
use sluicegate_limit::Decision;
use sluicegate_limit::steps::{KEY_NAME_MAX, StepTerm, WindowUsage};
use sluicegate_model::WindowAlign;

/// The operation of a call, by its number in the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptOp {
    /// Judge all; if none rejects, charge all.
    Take = 1,
    /// Judge all, charge none.
    Peek,
    /// Refund the charges of an acknowledged [`ScriptOp::Take`]; for concurrency limits as [`ScriptOp::ReportSlots`].
    Refund,
    /// Note the number of slots that this gateway holds; items of other limits are left out.
    ReportSlots,
    /// Charge units that were admitted without the store, even beyond the limit. It may be sent again: the store
    /// charges each sequence number once.
    ChargeDebt,
    /// Correct charges by the use of responses. It may be sent again, as [`ScriptOp::ChargeDebt`].
    Settle,
}

/// One rate and one key of a call. Items of one limit stand together.
#[derive(Debug, Clone, Copy)]
pub struct CallItem<'a> {
    /// The numbers of the rate.
    pub rule: &'a RateRule,
    /// The name of the key in the store.
    pub key: SharedKey,
    /// Units, at least 1 and at most the rate's capacity.
    pub cost: u64,
    /// Index of its limit in the chain; a limit in a dry run is a transaction of its own.
    pub limit_index: u16,
    /// Judged, but never a reason to reject.
    pub dry_run: bool,
    /// The slots of a concurrency limit.
    pub slot_count: SlotCount,
    /// The mark of the charge for [`ScriptOp::Refund`]; the sequence number for [`ScriptOp::ChargeDebt`], the same for
    /// all items of a key.
    pub mark: u64,
    /// Units admitted without the store that it does not count yet: judged as if it did.
    pub owed: u64,
    /// Such units of other classes, where the limit has shares; `owed` is then of this class alone.
    pub owed_by_others: u64,
    /// The class of the request, where the limit has shares.
    pub class: u8,
    /// The name of the key, which a window of the calendar keeps; empty = it is not known here.
    pub name: &'a str,
    /// The date by which windows of its account begin.
    pub anchor: Option<Anchor>,
    /// The furthest turn that a rejection by its limit is told, in microseconds; 0 = none.
    pub turns_us: u64,
}

/// The number of slots of a key that this gateway holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotCount {
    /// Includes slots that are being asked for.
    pub slots: u64,
    /// Slots that are being asked for; of a question its own included.
    pub asked: u64,
    /// The sequence number of the oldest question that is not answered, or of this one.
    pub oldest: u64,
    /// Higher than in any earlier report about this key.
    pub sequence: u64,
    /// The turn of a question, if requests wait for these slots.
    pub turn: Option<GatewayTurn>,
}

/// The turn of a gateway at slots that requests wait for in several gateways: that of the request that asks for them,
/// or has to ask next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayTurn {
    /// [`crate::Store::process_node`].
    pub gateway: u64,
    /// Microseconds that the request has waited; `None`: nobody waits here any more.
    pub waited_us: Option<u64>,
    /// Microseconds between two polls; 0: the request does not stand in the queue for these slots, and the store does
    /// not note its turn.
    pub poll_us: u64,
    /// Slots that requests wait for here.
    pub waiting: u64,
}

/// A call, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedCall {
    /// The full names of all keys; they share one hash slot.
    pub keys: SmallVec<[Vec<u8>; 2]>,
    /// The content of the call, packed as its script reads it.
    pub body: Vec<u8>,
}

/// The reply of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptReply {
    /// The store's clock, microseconds since 1970.
    pub now_us: u64,
    /// No item rejects; for a take: everything was charged.
    pub admitted: bool,
    /// One answer per item, in their order; only for [`ScriptOp::Take`] and [`ScriptOp::Peek`].
    pub answers: SmallVec<[RateAnswer; 4]>,
    /// The items that are buckets, by their indices, with the ticks that were found; only for [`ScriptOp::Refund`].
    pub levels: SmallVec<[(usize, u64); 1]>,
}

/// The answer of one rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateAnswer {
    /// Durations count from the store's `now`. They are whole microseconds, rounded up.
    pub decision: Decision,
    /// The mark that a refund must name; 0 if nothing was charged.
    pub mark: u64,
    /// Slots were neither judged nor charged, because the request has to wait or a rate rejects it.
    pub skipped: bool,
    /// Nanoseconds until a fixed window ends.
    pub window_ns: Option<u64>,
    /// Requests in flight hold reservations that may be given back before a rejection's retry time.
    pub has_reserved: bool,
    /// The window of a quota.
    pub window: Option<WindowUsage>,
    /// The steps of the quota that this call has reached first, a bit for each.
    pub fired: u8,
    /// Nanoseconds until the turn of a request that the limit alone rejects.
    pub turn_ns: Option<u64>,
}

/// The class of a key in the store, in the order in which the script receives them. The first six hold counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyClass {
    Entry,
    Log,
    Settled,
    Calendar,
    Shares,
    Slots,
    /// The turns of gateways at the slots that follow.
    Turns,
    /// The last charge of debts by this gateway.
    DebtSequence,
    /// The last settlement by this worker.
    SettleSequence,
    /// The moment that rejected requests were promised last.
    Promises,
    /// What gateways hold of a rate: see `lease.lua`.
    Leases,
    /// The same in a region that leases from a home. The state is another one, so gateways that know of the home and
    /// others must not share it.
    RegionLeases,
}

const DRY_RUN: u8 = 1;
const FIRST: u8 = 2;
const BY_CLOCK: u8 = 4;
const SETTLES: u8 = 4;
const AT_FIRST: u8 = 8;

// === impl CallItem ===

impl CallItem<'_> {
    /// Units of one rate, without slots and debts, as the only limit of a chain.
    pub fn new(rule: &RateRule, key: SharedKey, cost: u64) -> CallItem<'_> {
        CallItem {
            rule,
            key,
            cost,
            limit_index: 0,
            dry_run: false,
            slot_count: SlotCount::default(),
            mark: 0,
            owed: 0,
            owed_by_others: 0,
            class: 0,
            name: "",
            anchor: None,
            turns_us: 0,
        }
    }
}

// === impl PackedCall ===

impl PackedCall {
    /// Packs `items`, which have their keys in one hash slot; `node` names this gateway, and `at` is the time of the
    /// store in seconds since 1970.
    pub fn new(op: ScriptOp, prefix: &str, node: u64, at: u64, items: &[CallItem<'_>]) -> PackedCall {
        let mut packed = PackedCall { keys: SmallVec::new(), body: Vec::with_capacity(8 + 40 * items.len()) };
        packed.body.push(op as u8);
        let mut order = script_order(items);
        if op == ScriptOp::ChargeDebt {
            // The classes of a rate are one group.
            let place = |index: &usize| {
                let (item, first) = (&items[*index], |other: &CallItem<'_>| other.key == items[*index].key);
                (items.iter().position(first), item.rule.shares.as_ref().map(|_| item.rule.id))
            };
            order.sort_by_key(place);
        }
        let mut charged = None;
        let groups = order.chunk_by(|one, next| {
            let (one, next) = (&items[*one], &items[*next]);
            let are_entries = [one, next].iter().all(|item| item.rule.class() == KeyClass::Entry);
            let are_classes = op == ScriptOp::ChargeDebt
                && one.rule.class() == KeyClass::Shares
                && one.rule.id == next.rule.id;
            (are_entries || are_classes) && one.key == next.key
        });
        for group in groups {
            let Some(item) = group.first().map(|first| &items[*first]) else { continue };
            let class = item.rule.class();
            if op == ScriptOp::ReportSlots && class != KeyClass::Slots
                || op == ScriptOp::ChargeDebt && class == KeyClass::Slots
            {
                continue;
            }
            if op == ScriptOp::ChargeDebt && charged.replace(item.key) != Some(item.key) {
                packed.push_charge(prefix, node, items, item);
            }
            if let Some(turn) = item.slot_count.turn.filter(|_| class == KeyClass::Slots) {
                let name = KeyClass::Turns.name_key(prefix, &item.key, item.rule.id.into());
                packed.push_turn(name, turn);
            }
            packed.push_group(item.rule.counters_name(prefix, &item.key), class, group.len());
            if let (Some(shares), Some(first)) = (item.rule.unit_shares(), group.first()) {
                packed.push_shares(item.rule, item_flags(items, *first), shares);
            }
            for index in group {
                packed.push_item(op, (node, at), items, *index);
            }
        }
        for (before, group) in turn_groups(items, &order) {
            let first = &items[group[0]];
            let name = KeyClass::Promises.name_key(prefix, &first.key, first.rule.id.into());
            packed.push_group(name, KeyClass::Promises, group.len());
            packed.body.extend((before as u16).to_le_bytes());
            packed.push_number(first.turns_us as f64);
            group.iter().for_each(|index| packed.push_number(items[*index].rule.span_us(items[*index].cost)));
        }
        packed
    }

    pub(super) fn push_group(&mut self, key: Vec<u8>, class: KeyClass, items: usize) {
        self.keys.push(key);
        self.body.push(class.encoding().0);
        self.body.extend((self.keys.len() as u16).to_le_bytes());
        self.body.extend((items as u16).to_le_bytes());
    }

    /// Announces a charge of all items with the key of `item`.
    fn push_charge(&mut self, prefix: &str, node: u64, items: &[CallItem<'_>], item: &CallItem<'_>) {
        let own = items.iter().filter(|other| other.key == item.key);
        let recovery_us = own.map(|item| item.rule.recovery_us()).max().unwrap_or(0);
        self.push_sequence(prefix, KeyClass::DebtSequence, node, &item.key, (item.mark, recovery_us));
    }

    /// Announces the turn of a gateway at the slots that follow.
    fn push_turn(&mut self, key: Vec<u8>, turn: GatewayTurn) {
        self.push_group(key, KeyClass::Turns, 0);
        self.body.extend(turn.gateway.to_le_bytes());
        self.push_number(turn.waited_us.map_or(-1.0, |us| us as f64));
        self.push_number(turn.poll_us as f64);
    }

    /// Names a call that the script runs once; its number is kept as long as the charge counts.
    pub(super) fn push_sequence(
        &mut self,
        prefix: &str,
        class: KeyClass,
        node: u64,
        key: &SharedKey,
        (sequence, recovery_us): (u64, u64),
    ) {
        self.push_group(class.name_key(prefix, key, node), class, 0);
        // A minute longer, for calls that are still on their way.
        self.push_number(sequence as f64);
        self.push_number((recovery_us / 1_000).saturating_add(60_000) as f64);
    }

    fn push_item(&mut self, op: ScriptOp, (node, at): (u64, u64), items: &[CallItem<'_>], index: usize) {
        let (item, flags) = (&items[index], item_flags(items, index));
        if item.rule.class() == KeyClass::Calendar {
            self.push_calendar(item.rule, flags, (at, item.anchor), item.name);
            return self.push_units(op, item);
        }
        if let Some(shares) = item.rule.unit_shares() {
            return self.push_class_units(op, shares, item);
        }
        if item.rule.settles {
            self.push_shape(item.rule, flags);
            return self.push_units(op, item);
        }
        let shape = item.rule.shape;
        let (cost, owed) = (shape.scale_units(item.cost), shape.scale_units(item.owed));
        let taken = cost.saturating_add(owed);
        let (x, most, taken) = match shape {
            RuleShape::TokenBucket { num, burst, .. } => (num, shape.scale_units(burst), taken),
            RuleShape::LeakyBucket { num, queue, .. } if op == ScriptOp::ChargeDebt => {
                (num, queue.depth, owed)
            }
            RuleShape::LeakyBucket { num, queue, .. } => {
                (num, queue.ahead.saturating_add(queue.wait_max), owed)
            }
            RuleShape::FixedWindow { max, period, .. } | RuleShape::Calendar { max, longest: period } => {
                (period, max, taken)
            }
            RuleShape::SlidingWindow { max, .. } => (shape.bucket_width(), max, taken),
            RuleShape::SlidingLog { max, period } => (period, max, taken),
            RuleShape::Concurrency { max } => return self.push_slots(flags, node, item, max),
        };
        if item.rule.class() == KeyClass::Entry {
            self.body.extend(item.rule.id.to_le_bytes());
            self.body.push(shape.algorithm_code());
        }
        let is_by_clock = matches!(shape, RuleShape::FixedWindow { align: WindowAlign::Clock, .. });
        self.body.push(if is_by_clock { flags | BY_CLOCK } else { flags });
        let z = match op {
            ScriptOp::Refund => item.mark as f64,
            // A charge may exceed the limit, but by no more than the limit itself.
            ScriptOp::ChargeDebt => most.saturating_mul(2) as f64,
            _ => (i128::from(most) - i128::from(taken)) as f64,
        };
        self.push_numbers([x as f64, cost as f64, z]);
        match shape {
            RuleShape::TokenBucket { .. } => self.body.extend(shape.refill_pace().to_le_bytes()),
            RuleShape::LeakyBucket { queue, .. } => {
                self.body.extend(shape.refill_pace().to_le_bytes());
                let waits_above = (i128::from(queue.ahead) - i128::from(owed)) as f64;
                // A dry run never waits.
                self.push_number(if item.dry_run { f64::INFINITY } else { waits_above });
            }
            RuleShape::SlidingWindow { period, .. } => self.push_number(period as f64),
            _ => {}
        }
    }

    /// What the items of a group have in common.
    pub(super) fn push_shares(&mut self, rule: &RateRule, flags: u8, shares: &ShareRule) {
        let own = match rule.shape {
            RuleShape::FixedWindow { align: WindowAlign::Clock, .. } => BY_CLOCK,
            _ if rule.settles => SETTLES,
            _ => 0,
        };
        self.body.extend([rule.shape.algorithm_code(), flags | own]);
        self.body.extend(shares.numbers());
    }

    /// The class, and the units that are judged, charged or given back.
    fn push_class_units(&mut self, op: ScriptOp, shares: &ShareRule, item: &CallItem<'_>) {
        self.push_class(shares, item.class);
        self.push_number(item.cost as f64);
        match op {
            ScriptOp::Take | ScriptOp::Peek => {
                self.push_numbers([item.owed as f64, item.owed_by_others as f64])
            }
            ScriptOp::Refund => self.push_number(item.mark as f64),
            ScriptOp::ReportSlots | ScriptOp::ChargeDebt | ScriptOp::Settle => {}
        }
    }

    pub(super) fn push_class(&mut self, shares: &ShareRule, class: u8) {
        self.body.push(shares.terms.index(class) as u8);
    }

    /// The flags of a rate with windows of a calendar, the borders around the time of the store by the date of the
    /// account, its steps, and the name of the key.
    pub(super) fn push_calendar(
        &mut self,
        rule: &RateRule,
        flags: u8,
        (at, anchor): (u64, Option<Anchor>),
        name: &str,
    ) {
        let by_request = if rule.calendar.is_none() { AT_FIRST } else { 0 };
        self.body.push(flags | by_request | if rule.settles { SETTLES } else { 0 });
        self.push_number((rule.shape.recovery_us() / 1_000_000) as f64);
        self.push_numbers(rule.borders(at, anchor).map(|border| border as f64));
        let (quota, steps) = rule.steps.as_ref().map_or((0, &[][..]), |terms| (terms.quota, terms.steps()));
        self.push_numbers([rule.capacity() as f64, quota as f64]);
        self.body.push(steps.len() as u8);
        for StepTerm { reached_at, most, bars, .. } in steps {
            let (interval, ahead) =
                bars.map_or((-1.0, 0.0), |pace| (pace.interval as f64, pace.ahead as f64));
            self.push_numbers([*reached_at as f64, *most as f64, interval, ahead]);
        }
        let name = if name.len() > KEY_NAME_MAX { "" } else { name };
        self.body.extend((name.len() as u16).to_le_bytes());
        self.body.extend(name.as_bytes());
    }

    fn push_slots(&mut self, flags: u8, node: u64, item: &CallItem<'_>, max: u64) {
        let SlotCount { slots, asked, oldest, sequence, turn } = item.slot_count;
        let held = slots.min(u32::MAX.into()).saturating_sub(asked);
        self.body.push(flags);
        self.body.extend(node.to_le_bytes());
        self.body.extend(((sequence >> 32) as u32).to_le_bytes());
        self.body.extend((sequence as u32).to_le_bytes());
        self.push_numbers([held, oldest, item.cost, max].map(|number| number as f64));
        self.body.push(item.class);
        let shares = item.rule.shares.as_ref().filter(|_| item.class != SlotKey::NO_CLASS);
        let Some(shares) = shares else { return self.body.push(0) };
        self.body.extend(shares.numbers());
        self.push_number(turn.map_or(0, |turn| turn.waiting) as f64);
    }

    pub(super) fn push_numbers<const N: usize>(&mut self, numbers: [f64; N]) {
        numbers.iter().for_each(|number| self.push_number(*number));
    }

    pub(super) fn push_number(&mut self, number: f64) {
        self.body.extend(number.to_le_bytes());
    }
}

fn item_flags(items: &[CallItem<'_>], index: usize) -> u8 {
    let is_first = index == 0 || items[index - 1].limit_index != items[index].limit_index;
    let dry_run = if items[index].dry_run { DRY_RUN } else { 0 };
    if is_first { dry_run | FIRST } else { dry_run }
}

/// The order of the items in a call: the rates of one key together, slots last.
pub(crate) fn script_order(items: &[CallItem<'_>]) -> SmallVec<[usize; 8]> {
    let mut order: SmallVec<[usize; 8]> = (0..items.len()).collect();
    let first = |item: &CallItem<'_>| items.iter().position(|other| other.key == item.key);
    order.sort_by_key(|index| (items[*index].rule.class(), first(&items[*index]), *index));
    order
}

/// The items of each limit that tells turns, with the number of those before them in the call.
pub(super) fn turn_groups<'o>(
    items: &'o [CallItem<'_>],
    order: &'o [usize],
) -> impl Iterator<Item = (usize, &'o [usize])> {
    let groups = order.chunk_by(|one, next| items[*one].limit_index == items[*next].limit_index);
    let counted = groups.scan(0, |before, group| {
        *before += group.len();
        Some((*before - group.len(), group))
    });
    counted.filter(|(_, group)| items[group[0]].turns_us > 0)
}

// === impl RateRule ===

impl RateRule {
    /// The class of the key that holds its counters.
    pub(crate) fn class(&self) -> KeyClass {
        match self.shape {
            RuleShape::Calendar { .. } => KeyClass::Calendar,
            RuleShape::Concurrency { .. } => KeyClass::Slots,
            _ if self.leases.is_some() => KeyClass::Leases,
            _ if self.shares.is_some() => KeyClass::Shares,
            _ if self.settles => KeyClass::Settled,
            RuleShape::SlidingLog { .. } => KeyClass::Log,
            _ => KeyClass::Entry,
        }
    }

    /// The shares by which units are counted; slots have a place for theirs.
    pub(super) fn unit_shares(&self) -> Option<&Arc<ShareRule>> {
        self.shares.as_ref().filter(|_| self.class() != KeyClass::Slots)
    }

    /// The name of that key.
    pub(crate) fn counters_name(&self, prefix: &str, key: &SharedKey) -> Vec<u8> {
        self.class().name_key(prefix, key, self.id.into())
    }

    /// The pattern of the names of all such keys.
    pub(crate) fn names_pattern(&self, prefix: &str) -> String {
        format!("{prefix}:{{*}}{}{:08x}", self.class().encoding().1, self.id)
    }
}

// === impl KeyClass ===

impl KeyClass {
    /// The number of the class in a call, and its mark in the names of keys.
    fn encoding(self) -> (u8, &'static str) {
        match self {
            KeyClass::Entry => (0, ""),
            KeyClass::Log => (1, ":L:"),
            KeyClass::Slots => (2, ":C:"),
            KeyClass::DebtSequence => (3, ":N:"),
            KeyClass::SettleSequence => (3, ":M:"),
            KeyClass::Settled => (4, ":S:"),
            KeyClass::Turns => (5, ":Q:"),
            KeyClass::Calendar => (6, ":W:"),
            KeyClass::Promises => (7, ":P:"),
            KeyClass::Shares => (8, ":G:"),
            KeyClass::Leases => (9, ":H:"),
            KeyClass::RegionLeases => (9, ":R:"),
        }
    }

    /// The name of a key of this class; `owner` is the rule or the node that it belongs to. All entries of a key are in
    /// one packed string.
    pub(crate) fn name_key(self, prefix: &str, key: &SharedKey, owner: u64) -> Vec<u8> {
        let mut name = Vec::with_capacity(prefix.len() + 40);
        for part in [prefix.as_bytes(), b":{", &key.tag(), b"}", self.encoding().1.as_bytes()] {
            name.extend_from_slice(part);
        }
        let digits = match self {
            KeyClass::Entry => return name,
            KeyClass::DebtSequence | KeyClass::SettleSequence => 16,
            _ => 8,
        };
        // Cannot fail: a vector has room for all that is written.
        let _ = write!(name, "{owner:0digits$x}");
        name
    }
}
