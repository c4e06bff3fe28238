//! The numbers of answers, computed from the state that the script found by the formulas of the local algorithms, in
//! exact integers of microseconds.

use std::sync::Arc;

use smallvec::SmallVec;

use super::call::{KeyClass, script_order, turn_groups};
use super::rule_shape::RuleShape;
use super::settle::SettledState;
use super::shares::{FoundShares, ShareRule};
use super::{EXACT_MAX, RateRemainder, bucket_remainder, read_double, read_number, take_bytes, ticks_to_us};
use crate::{CallItem, RateAnswer, ScriptOp, ScriptReply};
use sluicegate_limit::steps::{StepJudgement, WindowUsage};
use sluicegate_limit::{Decision, LimitOutcome};
use sluicegate_model::WindowAlign;

/// The state that the script found for one item, before any charge. Owed units are counted in; a sliding window counts
/// them when it is judged.
enum FoundState {
    /// Ticks by which the theoretical arrival time is ahead.
    Level(u64),
    /// A fixed window: its end and units; 0 if none is open.
    Window(u64, u64),
    /// A window of a calendar with the steps that it had reached, without owed units; and the moment in microseconds
    /// at which the bucket of its pace is full.
    Calendar(WindowUsage, u64),
    /// A sliding window: when the newest sub-window leaves, and the units of each.
    Counts(u64, SmallVec<[u64; 11]>),
    Log {
        used: u64,
        at: u64,
        oldest: u64,
        leaves: u64,
    },
    /// Slots that the request can take; `None` = they were not judged.
    Slots(Option<u64>),
    Settled(SettledState),
    Shares(FoundShares),
}

// === impl ScriptReply ===

impl ScriptReply {
    /// The store's clock, in microseconds, if it was beyond the borders of a call, which then did nothing.
    pub fn time_beyond(mut bytes: &[u8]) -> Option<u64> {
        let now = read_number(&mut bytes)?;
        (bytes == [2]).then_some(now)
    }

    /// Parses the script's reply about `items`; `None` if it is impossible.
    pub fn parse_reply(op: ScriptOp, items: &[CallItem<'_>], mut bytes: &[u8]) -> Option<ScriptReply> {
        let now_us = read_number(&mut bytes)?;
        let (admitted, bytes) = bytes.split_first()?;
        let (answers, levels) = match op {
            ScriptOp::Take | ScriptOp::Peek => {
                (read_answers(op, items, (*admitted, now_us), bytes)?, SmallVec::new())
            }
            ScriptOp::Refund => (SmallVec::new(), read_levels(items, bytes, now_us)?),
            ScriptOp::ReportSlots | ScriptOp::ChargeDebt | ScriptOp::Settle => Default::default(),
        };
        Some(ScriptReply { now_us, admitted: *admitted == 1, answers, levels })
    }
}

fn read_answers(
    op: ScriptOp,
    items: &[CallItem<'_>],
    (admitted, now): (u8, u64),
    mut bytes: &[u8],
) -> Option<SmallVec<[RateAnswer; 4]>> {
    let order = script_order(items);
    let mut found: SmallVec<[(usize, FoundState); 4]> = SmallVec::with_capacity(items.len());
    for &index in &order {
        found.push((index, read_state(&items[index], &mut bytes, now)?));
    }
    let mut turns: SmallVec<[(u16, u64); 2]> = SmallVec::new();
    for (_, group) in turn_groups(items, &order) {
        turns.push((items[group[0]].limit_index, read_number(&mut bytes)?));
    }
    found.sort_unstable_by_key(|(index, _)| *index);
    let judged: SmallVec<[Decision; 4]> =
        found.iter().zip(items).map(|((_, found), item)| judge_item(item, found, now)).collect();
    let rejects = |index: usize| judged[index].outcome == LimitOutcome::Reject;
    let rejected = (0..items.len()).any(|index| rejects(index) && !items[index].dry_run);
    if !bytes.is_empty() || admitted > 1 || rejected == (admitted == 1) {
        return None;
    }
    let mut answers = SmallVec::new();
    for (index, item) in items.iter().enumerate() {
        let alone = |other: usize| items[other].limit_index == item.limit_index && rejects(other);
        let own_rejects = item.dry_run && (0..items.len()).any(alone);
        let charged = op == ScriptOp::Take && admitted == 1 && !own_rejects;
        let (_, found) = &found[index];
        let skipped = matches!(found, FoundState::Slots(None));
        let has_reserved = match found {
            FoundState::Settled(found) => found.has_reserved,
            FoundState::Calendar(usage, _) => usage.reserved > 0,
            FoundState::Shares(found) => matches!(found, FoundShares::Bucket(_, true)),
            _ => false,
        };
        let rest = compute_remainder(item, found, now, charged);
        let window_ns = rest.window_us.map(|us| us.saturating_mul(1_000));
        let mark = if charged && !skipped { rest.mark } else { 0 };
        let noted = match op {
            ScriptOp::Take if charged => Noted::Charged,
            ScriptOp::Take if rejects(index) && !item.dry_run => Noted::Refused,
            _ => Noted::Nothing,
        };
        let (window, fired) = note_window(item, found, noted);
        let decision = Decision {
            remaining: rest.remaining,
            reset_ns: rest.reset_us.saturating_mul(1_000),
            full_ns: rest.full_us.saturating_mul(1_000),
            anchor: item.anchor,
            reached: window.map_or(0, |window| window.reached),
            ..judged[index]
        };
        let turn = turns.iter().find(|(limit_index, due)| *limit_index == item.limit_index && *due > 0);
        let turn_ns = turn.map(|(_, due)| due.saturating_sub(now).saturating_mul(1_000));
        answers.push(RateAnswer { decision, mark, skipped, window_ns, has_reserved, window, fired, turn_ns });
    }
    Some(answers)
}

/// The ticks of buckets that a refund found; those of other states come behind them, if they are told at all.
fn read_levels(items: &[CallItem<'_>], mut bytes: &[u8], now: u64) -> Option<SmallVec<[(usize, u64); 1]>> {
    let mut levels = SmallVec::new();
    let is_entry = |index: &usize| items[*index].rule.class() == KeyClass::Entry;
    for index in script_order(items).into_iter().take_while(is_entry) {
        if let FoundState::Level(level) = read_state(&items[index], &mut bytes, now)? {
            levels.push((index, level));
        }
    }
    Some(levels)
}

fn read_state(item: &CallItem<'_>, bytes: &mut &[u8], now: u64) -> Option<FoundState> {
    let shape = item.rule.shape;
    if let Some(shares) = item.rule.unit_shares() {
        return shares.read_state(bytes, now).map(FoundState::Shares);
    }
    let with_owed = |level: u64| level.saturating_add(shape.scale_units(item.owed));
    Some(match shape {
        RuleShape::Calendar { .. } => {
            let usage = WindowUsage {
                quota: item.rule.steps.as_ref().map_or(0, |steps| steps.quota),
                used: read_number(bytes)?,
                begins: read_number(bytes)?,
                ends: read_number(bytes)?,
                reserved: read_number(bytes)?,
                reached: read_number(bytes)? as u8,
            };
            FoundState::Calendar(usage, read_number(bytes)?)
        }
        _ if item.rule.settles => FoundState::Settled(SettledState::read_from(item, bytes)?),
        RuleShape::TokenBucket { .. } | RuleShape::LeakyBucket { .. } => {
            FoundState::Level(with_owed(read_number(bytes)?))
        }
        RuleShape::FixedWindow { .. } => {
            FoundState::Window(read_number(bytes)?, with_owed(read_number(bytes)?))
        }
        RuleShape::SlidingWindow { .. } => {
            let until = read_number(bytes)?;
            let mut counts = SmallVec::new();
            for _ in 0..shape.window_counts() {
                counts.push(u32::from_le_bytes(take_bytes(bytes)?).into());
            }
            FoundState::Counts(until, counts)
        }
        RuleShape::SlidingLog { .. } => FoundState::Log {
            used: with_owed(read_number(bytes)?),
            at: read_number(bytes)?,
            oldest: read_number(bytes)?,
            leaves: read_number(bytes)?,
        },
        RuleShape::Concurrency { .. } => match read_double(bytes)? {
            -1.0 => FoundState::Slots(None),
            left if (0.0..EXACT_MAX).contains(&left) => FoundState::Slots(Some(left as u64)),
            _ => return None,
        },
    })
}

/// The outcome with the retry or the wait.
fn judge_item(item: &CallItem<'_>, found: &FoundState, now: u64) -> Decision {
    let (cost, shape) = (item.cost, item.rule.shape);
    let retry_us = match (shape, found) {
        (_, FoundState::Shares(found)) => {
            item.rule.shares.as_ref().and_then(|shares| shares.retry_us(item, found, now))
        }
        (_, FoundState::Settled(found)) => found.retry_us(item, now),
        (RuleShape::TokenBucket { num, burst, .. }, FoundState::Level(level)) => {
            let needed = level.saturating_add(shape.scale_units(cost));
            let excess = needed.saturating_sub(shape.scale_units(burst));
            (excess > 0).then(|| ticks_to_us(excess, num))
        }
        (RuleShape::LeakyBucket { num, queue, .. }, FoundState::Level(level)) => {
            let wait = level.saturating_sub(queue.ahead);
            let excess = wait.saturating_sub(queue.wait_max);
            if wait > 0 && excess == 0 {
                let wait_ns = ticks_to_us(wait, num).saturating_mul(1_000);
                return Decision { wait_ns, ..Decision::without_numbers(LimitOutcome::Wait) };
            }
            (excess > 0).then(|| ticks_to_us(excess, num))
        }
        (RuleShape::FixedWindow { max, .. }, FoundState::Window(end, used)) => {
            // No window is open if only owed units count.
            (cost > max.saturating_sub(*used)).then(|| end.saturating_sub(now).max(1))
        }
        (RuleShape::Calendar { .. }, FoundState::Calendar(WindowUsage { used, ends, .. }, full_at)) => {
            let left = seconds_left(*ends, now).max(1);
            let used = used.saturating_add(item.owed);
            item.rule.steps.as_ref().and_then(|steps| steps.wait(used, cost, *full_at, now, left))
        }
        (RuleShape::SlidingWindow { max, .. }, FoundState::Counts(until, counts)) => {
            let used = sum_live(counts, shape.live_buckets(*until, now)).saturating_add(item.owed);
            let missing = cost.saturating_sub(max.saturating_sub(used));
            (missing > 0).then(|| shape.wait_for_units(*until, counts, missing, now))
        }
        (RuleShape::SlidingLog { max, period }, FoundState::Log { used, leaves, .. }) => {
            let left_at = leaves.saturating_add(period);
            (cost > max.saturating_sub(*used)).then(|| left_at.saturating_sub(now))
        }
        (_, FoundState::Slots(Some(left))) => (cost > *left).then_some(u64::MAX),
        // Slots that were not judged; `read_state` makes no other pair.
        _ => None,
    };
    match retry_us.map(|us| us.saturating_mul(1_000)) {
        None => Decision::without_numbers(LimitOutcome::Admit),
        Some(retry_after_ns) => {
            Decision { retry_after_ns, ..Decision::without_numbers(LimitOutcome::Reject) }
        }
    }
}

fn compute_remainder(item: &CallItem<'_>, found: &FoundState, now: u64, charged: bool) -> RateRemainder {
    let (cost, shape) = (if charged { item.cost } else { 0 }, item.rule.shape);
    match (shape, found) {
        (_, FoundState::Shares(found)) => {
            let remainder = |shares: &Arc<ShareRule>| shares.compute_remainder(item, found, now, charged);
            item.rule.shares.as_ref().map(remainder).unwrap_or_default()
        }
        (_, FoundState::Settled(found)) => found.compute_remainder(item, cost, now),
        (RuleShape::TokenBucket { num, unit, burst }, FoundState::Level(level)) => {
            let level = level.saturating_add(shape.scale_units(cost));
            RateRemainder { mark: now, ..bucket_remainder(num, unit, shape.scale_units(burst), level) }
        }
        (RuleShape::LeakyBucket { num, unit, queue }, FoundState::Level(level)) => {
            let level = level.saturating_add(shape.scale_units(cost));
            let mark = now.saturating_add(level / num);
            RateRemainder { mark, ..bucket_remainder(num, unit, queue.depth, level) }
        }
        (RuleShape::FixedWindow { max, period, align }, FoundState::Window(end, used)) => {
            let end = match (*end, align) {
                (0, _) if !charged => now,
                (0, WindowAlign::First | WindowAlign::Calendar) => now.saturating_add(period),
                (0, WindowAlign::Clock) => now.saturating_add(period - now % period),
                (end, _) => end,
            };
            let remaining = max.saturating_sub(used.saturating_add(cost));
            let left = end.saturating_sub(now);
            let reset_us = if remaining == 0 { left } else { 0 };
            let full_us = if used.saturating_add(cost) == 0 { 0 } else { left };
            RateRemainder { remaining, reset_us, mark: end, window_us: Some(left), full_us }
        }
        (RuleShape::Calendar { .. }, FoundState::Calendar(usage, full_at)) => {
            calendar_remainder(item, usage, *full_at, now, cost)
        }
        (RuleShape::SlidingWindow { max, .. }, FoundState::Counts(until, counts)) => {
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
        (_, FoundState::Slots(Some(left))) => {
            RateRemainder { remaining: left.saturating_sub(cost), ..RateRemainder::default() }
        }
        _ => RateRemainder::default(),
    }
}

/// [`compute_remainder`] of a window of a calendar.
fn calendar_remainder(
    item: &CallItem<'_>,
    usage: &WindowUsage,
    full_at: u64,
    now: u64,
    cost: u64,
) -> RateRemainder {
    let Some(steps) = &item.rule.steps else { return RateRemainder::default() };
    let used = usage.used.saturating_add(item.owed);
    let full_at = match steps.judge(used, cost, full_at, now) {
        StepJudgement::Paced { full_at, .. } if cost > 0 => full_at,
        _ => full_at,
    };
    let (used, left) = (used.saturating_add(cost), seconds_left(usage.ends, now));
    let reset_us = steps.wait(used, 1, full_at, now, left).unwrap_or(0);
    let (remaining, full_us) = (steps.remaining(used, full_at, now), if used == 0 { 0 } else { left });
    RateRemainder { remaining, reset_us, mark: usage.begins, window_us: Some(left), full_us }
}

/// The window of a quota after the call, with the steps that it has reached first. A refusal reaches the step that
/// refuses.
fn note_window(item: &CallItem<'_>, found: &FoundState, noted: Noted) -> (Option<WindowUsage>, u8) {
    let (FoundState::Calendar(usage, _), Some(steps)) = (found, &item.rule.steps) else {
        return (None, 0);
    };
    let after = usage.used.saturating_add(item.cost);
    let (used, new) = match noted {
        Noted::Charged => (after, steps.reached_by(after)),
        Noted::Refused => {
            (usage.used, steps.reached_by(usage.used) | steps.barred_by(after.saturating_add(item.owed)))
        }
        Noted::Nothing => (usage.used, 0),
    };
    // A dry run tells nothing.
    let reached = usage.reached | if item.dry_run { 0 } else { new };
    let reserved = usage.reserved + if item.rule.settles { used - usage.used } else { 0 };
    (Some(WindowUsage { used, reserved, reached, ..*usage }), reached & !usage.reached)
}

/// The part of a call that a window keeps.
#[derive(Clone, Copy)]
enum Noted {
    Charged,
    /// The rate itself refuses the request.
    Refused,
    Nothing,
}

/// Microseconds until a moment in seconds.
fn seconds_left(until: u64, now: u64) -> u64 {
    until.saturating_mul(1_000_000).saturating_sub(now)
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
