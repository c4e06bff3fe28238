//! The numbers of answers, computed from the state that the script found by the formulas of the local algorithms, in
//! exact integers of microseconds.

use smallvec::SmallVec;

use super::call::script_order;
use super::numbers::{
    EXACT_MAX, RateRemainder, RateVerdict, bucket_remainder, read_double, read_number, take_bytes,
    ticks_to_us,
};
use super::rule::RuleShape;
use super::settle::SettledState;
use crate::{CallItem, RateAnswer, ScriptOp, ScriptReply};
use sluicegate_limit::{Decision, LimitOutcome};
use sluicegate_model::WindowAlign;

/// The state that the script found for one item, before any charge.
enum FoundState {
    /// Ticks by which the theoretical arrival time is ahead.
    Level(u64),
    /// A fixed window: its end and units; 0 if none is open.
    Window(u64, u64),
    /// A sliding window: when the newest sub-window leaves, and the units of each.
    Counts(u64, SmallVec<[u64; 11]>),
    Log {
        used: u64,
        at: u64,
        oldest: u64,
        leaves: u64,
    },
    /// Slots of other nodes; `None`: not judged.
    Slots(Option<u64>),
    Settled(SettledState),
}

// === impl FoundState ===

impl FoundState {
    /// Counts the owed units in; for a sliding window that happens when it is judged.
    fn add_owed(self, item: &CallItem<'_>) -> FoundState {
        match (self, item.rule.shape) {
            (
                FoundState::Level(level),
                RuleShape::TokenBucket { unit, .. } | RuleShape::LeakyBucket { unit, .. },
            ) => FoundState::Level(level.saturating_add(item.owed_ticks(unit))),
            (FoundState::Window(end, used), _) => FoundState::Window(end, used.saturating_add(item.owed)),
            (FoundState::Log { used, at, oldest, leaves }, _) => {
                FoundState::Log { used: used.saturating_add(item.owed), at, oldest, leaves }
            }
            (found, _) => found,
        }
    }
}

// === impl ScriptReply ===

impl ScriptReply {
    /// Parses the script's reply about `items`; `None` if it is impossible.
    pub fn parse_reply(op: ScriptOp, items: &[CallItem<'_>], mut bytes: &[u8]) -> Option<ScriptReply> {
        let now = read_number(&mut bytes)?;
        let (admitted, rest) = bytes.split_first()?;
        let mut reply = ScriptReply { now_us: now, admitted: *admitted == 1, answers: SmallVec::new() };
        if !matches!(op, ScriptOp::Take | ScriptOp::Peek) {
            return Some(reply);
        }
        bytes = rest;
        let order = script_order(items);
        let mut found: SmallVec<[(usize, FoundState); 4]> = SmallVec::with_capacity(items.len());
        for index in order {
            found.push((index, read_state(&items[index], &mut bytes)?.add_owed(&items[index])));
        }
        found.sort_unstable_by_key(|(index, _)| *index);
        let verdicts: SmallVec<[RateVerdict; 4]> =
            found.iter().zip(items).map(|((_, found), item)| judge_item(item, found, now)).collect();
        let rejects = |index: usize| verdicts[index].outcome == LimitOutcome::Reject;
        let rejected = (0..items.len()).any(|index| rejects(index) && !items[index].dry_run);
        if !bytes.is_empty() || *admitted > 1 || rejected == reply.admitted {
            return None;
        }
        for (index, item) in items.iter().enumerate() {
            let alone = |other: usize| items[other].limit_index == item.limit_index && rejects(other);
            let own_rejects = item.dry_run && (0..items.len()).any(alone);
            let charged = op == ScriptOp::Take && reply.admitted && !own_rejects;
            reply.answers.push(build_answer(item, &found[index].1, &verdicts[index], now, charged));
        }
        Some(reply)
    }
}

fn read_state(item: &CallItem<'_>, bytes: &mut &[u8]) -> Option<FoundState> {
    let shape = item.rule.shape;
    Some(match shape {
        _ if item.rule.settles => FoundState::Settled(SettledState::read_from(item, bytes)?),
        RuleShape::TokenBucket { .. } | RuleShape::LeakyBucket { .. } => {
            FoundState::Level(read_number(bytes)?)
        }
        RuleShape::FixedWindow { .. } => FoundState::Window(read_number(bytes)?, read_number(bytes)?),
        RuleShape::SlidingWindow { .. } => {
            let until = read_number(bytes)?;
            let mut counts = SmallVec::new();
            for _ in 0..shape.window_counts() {
                counts.push(u32::from_le_bytes(take_bytes(bytes)?).into());
            }
            FoundState::Counts(until, counts)
        }
        RuleShape::SlidingLog { .. } => FoundState::Log {
            used: read_number(bytes)?,
            at: read_number(bytes)?,
            oldest: read_number(bytes)?,
            leaves: read_number(bytes)?,
        },
        RuleShape::Concurrency { .. } => match read_double(bytes)? {
            -1.0 => FoundState::Slots(None),
            // Requests in other gateways have their turn.
            -2.0 => FoundState::Slots(Some(u64::MAX)),
            slots if (0.0..EXACT_MAX).contains(&slots) => FoundState::Slots(Some(slots.ceil() as u64)),
            _ => return None,
        },
    })
}

fn judge_item(item: &CallItem<'_>, found: &FoundState, now: u64) -> RateVerdict {
    let cost = item.cost;
    let admit = RateVerdict { outcome: LimitOutcome::Admit, retry_us: 0, wait_us: 0 };
    let reject = |retry_us| RateVerdict { outcome: LimitOutcome::Reject, retry_us, wait_us: 0 };
    match (item.rule.shape, found) {
        (_, FoundState::Settled(found)) => match found.retry_us(item, now) {
            None => admit,
            Some(retry_us) => reject(retry_us),
        },
        (RuleShape::TokenBucket { num, unit, burst }, FoundState::Level(level)) => {
            let excess =
                level.saturating_add(cost.saturating_mul(unit)).saturating_sub(burst.saturating_mul(unit));
            if excess == 0 { admit } else { reject(ticks_to_us(excess, num)) }
        }
        (RuleShape::LeakyBucket { num, queue, .. }, FoundState::Level(level)) => {
            let wait = level.saturating_sub(queue.ahead);
            match wait.saturating_sub(queue.wait_max) {
                0 if wait == 0 => admit,
                0 => {
                    RateVerdict { outcome: LimitOutcome::Wait, retry_us: 0, wait_us: ticks_to_us(wait, num) }
                }
                excess => reject(ticks_to_us(excess, num)),
            }
        }
        (RuleShape::FixedWindow { max, .. }, FoundState::Window(end, used)) => {
            match cost <= max.saturating_sub(*used) {
                true => admit,
                // No window is open if only owed units count.
                false => reject(end.saturating_sub(now).max(1)),
            }
        }
        (RuleShape::SlidingWindow { max, .. }, FoundState::Counts(until, counts)) => {
            let live = item.rule.shape.live_buckets(*until, now);
            match cost.saturating_sub(max.saturating_sub(sum_live(counts, live).saturating_add(item.owed))) {
                0 => admit,
                missing => reject(item.rule.shape.wait_for_units(*until, counts, missing, now)),
            }
        }
        (RuleShape::SlidingLog { max, period }, FoundState::Log { used, leaves, .. }) => {
            match cost <= max.saturating_sub(*used) {
                true => admit,
                false => reject(leaves.saturating_add(period).saturating_sub(now)),
            }
        }
        (RuleShape::Concurrency { max }, FoundState::Slots(Some(others))) => {
            match others.saturating_add(item.slot_count.slots) <= max {
                true => admit,
                false => reject(u64::MAX),
            }
        }
        _ => admit,
    }
}

fn build_answer(
    item: &CallItem<'_>,
    found: &FoundState,
    verdict: &RateVerdict,
    now: u64,
    charged: bool,
) -> RateAnswer {
    let rest = compute_remainder(item, found, now, charged);
    let decision = Decision {
        outcome: verdict.outcome,
        remaining: rest.remaining,
        reset_ns: rest.reset_us.saturating_mul(1_000),
        retry_after_ns: verdict.retry_us.saturating_mul(1_000),
        wait_ns: verdict.wait_us.saturating_mul(1_000),
        full_ns: rest.full_us.saturating_mul(1_000),
    };
    let skipped = matches!(found, FoundState::Slots(None));
    let has_reserved = matches!(found, FoundState::Settled(found) if found.has_reserved);
    let window_ns = rest.window_us.map(|us| us.saturating_mul(1_000));
    let mark = if charged && !skipped { rest.mark } else { 0 };
    RateAnswer { decision, mark, skipped, window_ns, has_reserved }
}

fn compute_remainder(item: &CallItem<'_>, found: &FoundState, now: u64, charged: bool) -> RateRemainder {
    let cost = if charged { item.cost } else { 0 };
    match (item.rule.shape, found) {
        (_, FoundState::Settled(found)) => found.compute_remainder(item, cost, now),
        (RuleShape::TokenBucket { num, unit, burst }, FoundState::Level(level)) => {
            let level = level.saturating_add(cost.saturating_mul(unit));
            RateRemainder { mark: now, ..bucket_remainder(num, unit, burst.saturating_mul(unit), level) }
        }
        (RuleShape::LeakyBucket { num, unit, queue }, FoundState::Level(level)) => {
            let level = level.saturating_add(cost.saturating_mul(unit));
            RateRemainder {
                mark: now.saturating_add(level / num),
                ..bucket_remainder(num, unit, queue.depth, level)
            }
        }
        (RuleShape::FixedWindow { max, period, align }, FoundState::Window(end, used)) => {
            let end = match (*end, align) {
                (0, _) if !charged => now,
                (0, WindowAlign::First) => now.saturating_add(period),
                (0, WindowAlign::Clock) => now.saturating_add(period - now % period),
                (end, _) => end,
            };
            let remaining = max.saturating_sub(used.saturating_add(cost));
            let left = end.saturating_sub(now);
            let reset_us = if remaining == 0 { left } else { 0 };
            let full_us = if used.saturating_add(cost) == 0 { 0 } else { left };
            RateRemainder { remaining, reset_us, mark: end, window_us: Some(left), full_us }
        }
        (RuleShape::SlidingWindow { max, .. }, FoundState::Counts(until, counts)) => {
            let shape = item.rule.shape;
            let (mut until, mut counts) = (*until, counts.clone());
            if charged {
                until = shape.advance_window(until, &mut counts, now);
                counts[0] = counts[0].saturating_add(cost);
            }
            let used = sum_live(&counts, shape.live_buckets(until, now)).saturating_add(item.owed);
            let remaining = max.saturating_sub(used);
            let reset_us = if remaining == 0 { shape.wait_for_units(until, &counts, 1, now) } else { 0 };
            let full_us = if used == 0 { 0 } else { shape.wait_for_units(until, &counts, used, now) };
            RateRemainder { remaining, reset_us, mark: until, window_us: None, full_us }
        }
        (RuleShape::SlidingLog { max, period }, FoundState::Log { used, at, oldest, .. }) => {
            let remaining = max.saturating_sub(used.saturating_add(cost));
            let oldest = if *used == 0 { at } else { oldest };
            let reset_us = oldest.saturating_add(period).saturating_sub(now);
            let reset_us = if remaining == 0 { reset_us } else { 0 };
            let full_us = if used.saturating_add(cost) == 0 { 0 } else { period };
            RateRemainder { remaining, reset_us, mark: *at, window_us: None, full_us }
        }
        (RuleShape::Concurrency { max }, FoundState::Slots(Some(others))) => {
            let own = item.slot_count.slots.saturating_sub(item.cost).saturating_add(cost);
            let remaining = max.saturating_sub(others.saturating_add(own));
            RateRemainder { remaining, reset_us: 0, mark: 0, window_us: None, full_us: 0 }
        }
        _ => RateRemainder { remaining: 0, reset_us: 0, mark: 0, window_us: None, full_us: 0 },
    }
}

fn sum_live(counts: &[u64], live: usize) -> u64 {
    counts[..live].iter().sum()
}

// === impl RuleShape ===

impl RuleShape {
    /// The width of a sub-window, in microseconds.
    pub(crate) fn bucket_width(self) -> u64 {
        match self {
            RuleShape::SlidingWindow { period, buckets, .. } => period.div_ceil(u64::from(buckets).max(1)),
            _ => 1,
        }
    }

    /// The number of sub-windows that still count.
    fn live_buckets(self, until: u64, now: u64) -> usize {
        let left = until.saturating_sub(now).div_ceil(self.bucket_width());
        usize::try_from(left).unwrap_or(usize::MAX).min(self.window_counts())
    }

    /// Makes the sub-window of `now` the newest, unless a newer one is there; returns when the newest leaves.
    fn advance_window(self, until: u64, counts: &mut [u64], now: u64) -> u64 {
        let RuleShape::SlidingWindow { period, .. } = self else { return until };
        let live = self.live_buckets(until, now);
        counts[live..].fill(0);
        let newest =
            (now / self.bucket_width() + 1).saturating_mul(self.bucket_width()).saturating_add(period);
        let Some(later) = newest.checked_sub(until).filter(|later| *later > 0) else { return until };
        let shift = usize::try_from(later / self.bucket_width()).unwrap_or(usize::MAX).min(counts.len());
        counts.rotate_right(shift);
        counts[..shift].fill(0);
        newest
    }

    /// Microseconds until `missing` more units have left.
    fn wait_for_units(self, until: u64, counts: &[u64], missing: u64, now: u64) -> u64 {
        let mut left = 0;
        let age = (1..self.live_buckets(until, now)).rev().find(|&age| {
            left += counts[age];
            left >= missing
        });
        let earlier = (age.unwrap_or(0) as u64).saturating_mul(self.bucket_width());
        until.saturating_sub(earlier).saturating_sub(now)
    }
}
