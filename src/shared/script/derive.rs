//! The numbers that answers tell, from the state that the script found: the formulas of the local algorithms, in exact
//! integers of microseconds.

use smallvec::SmallVec;

use super::call::order;
use super::rule::Shape;
use crate::config::Align;
use crate::limit::{Decision, Outcome};
use crate::shared::{Answer, Item, Op, Reply};

/// What the script found for one item, before anything was charged.
enum Found {
    /// Ticks by which the TAT is ahead.
    Level(u64),
    /// Of a fixed window: its end and units; 0 if none lasts.
    Window(u64, u64),
    /// Of a sliding window: when the newest sub-window leaves, and the units of each.
    Counts(u64, SmallVec<[u64; 11]>),
    Log {
        used: u64,
        at: u64,
        oldest: u64,
        leaves: u64,
    },
    /// Slots of other nodes; `None`: not judged.
    Slots(Option<u64>),
}

/// What a rate has to say: waits and retries in ticks of a bucket are microseconds here already.
struct Numbers {
    outcome: Outcome,
    retry_us: u64,
    wait_us: u64,
}

/// What remains after the charge, or without one.
struct Rest {
    remaining: u64,
    reset_us: u64,
    mark: u64,
    /// Until a fixed window ends.
    window_us: Option<u64>,
}

/// Whole numbers that a double holds exactly.
const WHOLE: f64 = 9_007_199_254_740_992.0;

// === impl Found ===

impl Found {
    /// With what is owed to the store counted in; of a sliding window that follows when it is judged.
    fn owing(self, item: &Item<'_>) -> Found {
        match (self, item.rule.shape) {
            (Found::Level(level), Shape::TokenBucket { unit, .. } | Shape::LeakyBucket { unit, .. }) => {
                Found::Level(level.saturating_add(item.owed_in(unit)))
            }
            (Found::Window(end, used), _) => Found::Window(end, used.saturating_add(item.owed)),
            (Found::Log { used, at, oldest, leaves }, _) => {
                Found::Log { used: used.saturating_add(item.owed), at, oldest, leaves }
            }
            (found, _) => found,
        }
    }
}

// === impl Reply ===

impl Reply {
    /// What the script answered to `items`; `None` if it cannot have.
    pub fn read(op: Op, items: &[Item<'_>], mut bytes: &[u8]) -> Option<Reply> {
        let now = number(&mut bytes)?;
        let (admitted, rest) = bytes.split_first()?;
        let mut reply = Reply { now_us: now, admitted: *admitted == 1, answers: SmallVec::new() };
        if !matches!(op, Op::Take | Op::Peek) {
            return Some(reply);
        }
        bytes = rest;
        let order = order(items);
        let mut found: SmallVec<[(usize, Found); 4]> = SmallVec::with_capacity(items.len());
        for place in order {
            found.push((place, read(items[place].rule.shape, &mut bytes)?.owing(&items[place])));
        }
        found.sort_unstable_by_key(|(place, _)| *place);
        let numbers: SmallVec<[Numbers; 4]> =
            found.iter().zip(items).map(|((_, found), item)| judge(item, found, now)).collect();
        let refuses = |place: usize| numbers[place].outcome == Outcome::Reject;
        let refused = (0..items.len()).any(|place| refuses(place) && !items[place].dry_run);
        if !bytes.is_empty() || *admitted > 1 || refused == reply.admitted {
            return None;
        }
        for (place, item) in items.iter().enumerate() {
            let alone = |other: usize| items[other].place == item.place && refuses(other);
            let own_refuses = item.dry_run && (0..items.len()).any(alone);
            let charged = op == Op::Take && reply.admitted && !own_refuses;
            reply.answers.push(answer(item, &found[place].1, &numbers[place], now, charged));
        }
        Some(reply)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

fn double(bytes: &mut &[u8]) -> Option<f64> {
    take(bytes).map(f64::from_le_bytes)
}

/// A number that is not negative; a fraction, which only foreign state has, is rounded up.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    double(bytes).filter(|number| (0.0..WHOLE).contains(number)).map(|number| number.ceil() as u64)
}

fn read(shape: Shape, bytes: &mut &[u8]) -> Option<Found> {
    Some(match shape {
        Shape::TokenBucket { .. } | Shape::LeakyBucket { .. } => Found::Level(number(bytes)?),
        Shape::FixedWindow { .. } => Found::Window(number(bytes)?, number(bytes)?),
        Shape::SlidingWindow { .. } => {
            let until = number(bytes)?;
            let mut counts = SmallVec::new();
            for _ in 0..shape.counts() {
                counts.push(u32::from_le_bytes(take(bytes)?).into());
            }
            Found::Counts(until, counts)
        }
        Shape::SlidingLog { .. } => Found::Log {
            used: number(bytes)?,
            at: number(bytes)?,
            oldest: number(bytes)?,
            leaves: number(bytes)?,
        },
        Shape::Concurrency { .. } => match double(bytes)? {
            -1.0 => Found::Slots(None),
            slots if (0.0..WHOLE).contains(&slots) => Found::Slots(Some(slots.ceil() as u64)),
            _ => return None,
        },
    })
}

/// Microseconds that last at least `ticks`.
fn us_up(ticks: u64, num: u64) -> u64 {
    ticks.div_ceil(num)
}

fn judge(item: &Item<'_>, found: &Found, now: u64) -> Numbers {
    let cost = item.cost;
    let admit = Numbers { outcome: Outcome::Admit, retry_us: 0, wait_us: 0 };
    let reject = |retry_us| Numbers { outcome: Outcome::Reject, retry_us, wait_us: 0 };
    match (item.rule.shape, found) {
        (Shape::TokenBucket { num, unit, burst }, Found::Level(level)) => {
            let excess =
                level.saturating_add(cost.saturating_mul(unit)).saturating_sub(burst.saturating_mul(unit));
            if excess == 0 { admit } else { reject(us_up(excess, num)) }
        }
        (Shape::LeakyBucket { num, queue, .. }, Found::Level(level)) => {
            let wait = level.saturating_sub(queue.ahead);
            match wait.saturating_sub(queue.wait_max) {
                0 if wait == 0 => admit,
                0 => Numbers { outcome: Outcome::Wait, retry_us: 0, wait_us: us_up(wait, num) },
                excess => reject(us_up(excess, num)),
            }
        }
        (Shape::FixedWindow { max, .. }, Found::Window(end, used)) => match cost <= max.saturating_sub(*used)
        {
            true => admit,
            // No window lasts where all that counts is owed.
            false => reject(end.saturating_sub(now).max(1)),
        },
        (Shape::SlidingWindow { max, .. }, Found::Counts(until, counts)) => {
            let live = item.rule.shape.live(*until, now);
            match cost.saturating_sub(max.saturating_sub(sum(counts, live).saturating_add(item.owed))) {
                0 => admit,
                missing => reject(item.rule.shape.wait(*until, counts, missing, now)),
            }
        }
        (Shape::SlidingLog { max, period }, Found::Log { used, leaves, .. }) => {
            match cost <= max.saturating_sub(*used) {
                true => admit,
                false => reject(leaves.saturating_add(period).saturating_sub(now)),
            }
        }
        (Shape::Concurrency { max }, Found::Slots(Some(others))) => {
            match others.saturating_add(item.held.slots) <= max {
                true => admit,
                false => reject(u64::MAX),
            }
        }
        _ => admit,
    }
}

fn answer(item: &Item<'_>, found: &Found, numbers: &Numbers, now: u64, charged: bool) -> Answer {
    let rest = rest(item, found, now, charged);
    let decision = Decision {
        outcome: numbers.outcome,
        remaining: rest.remaining,
        reset_ns: rest.reset_us.saturating_mul(1_000),
        retry_after_ns: numbers.retry_us.saturating_mul(1_000),
        wait_ns: numbers.wait_us.saturating_mul(1_000),
    };
    let skipped = matches!(found, Found::Slots(None));
    let window_ns = rest.window_us.map(|us| us.saturating_mul(1_000));
    Answer { decision, mark: if charged && !skipped { rest.mark } else { 0 }, skipped, window_ns }
}

fn rest(item: &Item<'_>, found: &Found, now: u64, charged: bool) -> Rest {
    let cost = if charged { item.cost } else { 0 };
    match (item.rule.shape, found) {
        (Shape::TokenBucket { num, unit, burst }, Found::Level(level)) => {
            let level = level.saturating_add(cost.saturating_mul(unit));
            Rest { mark: now, ..in_bucket(num, unit, burst.saturating_mul(unit), level) }
        }
        (Shape::LeakyBucket { num, unit, queue }, Found::Level(level)) => {
            let level = level.saturating_add(cost.saturating_mul(unit));
            Rest { mark: now.saturating_add(level / num), ..in_bucket(num, unit, queue.depth, level) }
        }
        (Shape::FixedWindow { max, period, align }, Found::Window(end, used)) => {
            let end = match (*end, align) {
                (0, _) if !charged => now,
                (0, Align::First) => now.saturating_add(period),
                (0, Align::Clock) => now.saturating_add(period - now % period),
                (end, _) => end,
            };
            let remaining = max.saturating_sub(used.saturating_add(cost));
            let left = end.saturating_sub(now);
            let reset_us = if remaining == 0 { left } else { 0 };
            Rest { remaining, reset_us, mark: end, window_us: Some(left) }
        }
        (Shape::SlidingWindow { max, .. }, Found::Counts(until, counts)) => {
            let shape = item.rule.shape;
            let (mut until, mut counts) = (*until, counts.clone());
            if charged {
                until = shape.advance(until, &mut counts, now);
                counts[0] = counts[0].saturating_add(cost);
            }
            let used = sum(&counts, shape.live(until, now)).saturating_add(item.owed);
            let remaining = max.saturating_sub(used);
            let reset_us = if remaining == 0 { shape.wait(until, &counts, 1, now) } else { 0 };
            Rest { remaining, reset_us, mark: until, window_us: None }
        }
        (Shape::SlidingLog { max, period }, Found::Log { used, at, oldest, .. }) => {
            let remaining = max.saturating_sub(used.saturating_add(cost));
            let oldest = if *used == 0 { at } else { oldest };
            let reset_us = oldest.saturating_add(period).saturating_sub(now);
            let reset_us = if remaining == 0 { reset_us } else { 0 };
            Rest { remaining, reset_us, mark: *at, window_us: None }
        }
        (Shape::Concurrency { max }, Found::Slots(Some(others))) => {
            let own = item.held.slots.saturating_sub(item.cost).saturating_add(cost);
            let remaining = max.saturating_sub(others.saturating_add(own));
            Rest { remaining, reset_us: 0, mark: 0, window_us: None }
        }
        _ => Rest { remaining: 0, reset_us: 0, mark: 0, window_us: None },
    }
}

fn in_bucket(num: u64, unit: u64, depth: u64, level: u64) -> Rest {
    let remaining = depth.saturating_sub(level) / unit;
    let reset_us = match remaining {
        0 => us_up(level.saturating_add(unit).saturating_sub(depth), num),
        _ => 0,
    };
    Rest { remaining, reset_us, mark: 0, window_us: None }
}

fn sum(counts: &[u64], live: usize) -> u64 {
    counts[..live].iter().sum()
}

// === impl Shape ===

impl Shape {
    /// Of a sub-window.
    pub(crate) fn width(self) -> u64 {
        match self {
            Shape::SlidingWindow { period, buckets, .. } => period.div_ceil(u64::from(buckets).max(1)),
            _ => 1,
        }
    }

    /// How many sub-windows have not left.
    fn live(self, until: u64, now: u64) -> usize {
        let left = until.saturating_sub(now).div_ceil(self.width());
        usize::try_from(left).unwrap_or(usize::MAX).min(self.counts())
    }

    /// Makes the sub-window of `now` the newest, unless a newer one is there; answers when the newest leaves.
    fn advance(self, until: u64, counts: &mut [u64], now: u64) -> u64 {
        let Shape::SlidingWindow { period, .. } = self else { return until };
        let live = self.live(until, now);
        counts[live..].fill(0);
        let newest = (now / self.width() + 1).saturating_mul(self.width()).saturating_add(period);
        let Some(later) = newest.checked_sub(until).filter(|later| *later > 0) else { return until };
        let shift = usize::try_from(later / self.width()).unwrap_or(usize::MAX).min(counts.len());
        counts.rotate_right(shift);
        counts[..shift].fill(0);
        newest
    }

    /// Microseconds until `missing` more units have left than now.
    fn wait(self, until: u64, counts: &[u64], missing: u64, now: u64) -> u64 {
        let mut left = 0;
        let age = (1..self.live(until, now)).rev().find(|&age| {
            left += counts[age];
            left >= missing
        });
        let earlier = (age.unwrap_or(0) as u64).saturating_mul(self.width());
        until.saturating_sub(earlier).saturating_sub(now)
    }
}
