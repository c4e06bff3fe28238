//! token_bucket with shares: a bucket of which each class has a part for itself.
//!
//! Class c has a bucket of its own with the rate fᶜ·r and the depth fᶜ·B/2. What overflows it flows into a common bucket
//! for all, which holds the rest of the depth and gets the rest of the rate. A request takes from its own bucket, then
//! from the common one; the latter only while its class is within `most`, a bucket of mᶜ·r and mᶜ·B that is charged by
//! all that the class takes. The depths add up to B, so at most B + r·Δ units pass in any span Δ, and a class within its
//! own part is never refused because of others. Classes meet in the common bucket alone, so a refill needs no order of
//! them: common += Σ max(0, ownᶜ + fᶜ·r·Δ − depthᶜ). All numbers are exact.

use std::sync::Arc;
use std::task::Waker;

use crate::algorithm::meter::{Charged, Locked, MeterParams, MeterSpec, RateParams, SettleTerms};
use crate::algorithm::open_charges::{ChargedSpan, OpenUnits, ShardCharges};
use crate::algorithm::queue::NO_NODE;
use crate::algorithm::rate::{Level, TickRate};
use crate::algorithm::settle::{ForcedUnits, GivenBack, SettleParams};
use crate::algorithm::slab::Slab;
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{CounterKey, TableEntry, TableParams};
use crate::{ChargeRecord, Decision, Epoch, LimitOutcome, Units};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_model::{CLASSES_MAX, Rate, ShareClass, Shares};

/// Bits of precision with which a changed bucket is dealt out anew.
const DEAL_BITS: u32 = 20;

pub(crate) struct ShareBucketParams {
    rate: TickRate,
    burst: u64,
    shares: Arc<Shares>,
    /// Tokens of a tick, so that half of each part is a whole number of them.
    scale: i128,
    /// Tokens of one unit, and of the whole bucket.
    unit: i128,
    whole: i128,
    classes: Box<[ClassTerms]>,
    common_depth: i128,
    /// Tokens per nanosecond that no class has for itself.
    free_rate: u64,
    /// Nanoseconds after which a counter that is not used any more is full.
    refill_ns: u64,
    epoch: Epoch,
    settle_terms: SettleTerms,
}

/// The numbers of a class; rates are tokens per nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClassTerms {
    own_depth: i128,
    own_rate: u64,
    /// `None` = the class may use the whole limit.
    most: Option<(i128, u64)>,
}

/// The counter of a key.
#[derive(Clone, Copy, Default)]
pub(crate) struct ShareEntry {
    /// The use of the whole bucket, by which late give-backs are bounded.
    level: Level,
    /// The moment of the tokens, and the one from which they say no more than a fresh bucket, ns.
    at: u64,
    idle_from: u64,
    /// One more than the index of its tokens; 0 = it is full.
    tokens: u32,
}

/// The counters of a shard beside its entries.
#[derive(Default)]
pub(crate) struct ShareShard {
    charges: ShardCharges,
    tokens: Slab<Tokens>,
}

/// The tokens of a key. Those of the common bucket are below zero after a response that used more than was there.
#[derive(Debug, Clone, Default, PartialEq)]
struct Tokens {
    common: i128,
    classes: Box<[ClassTokens]>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ClassTokens {
    own: i128,
    most: i128,
}

// === impl ShareBucketParams ===

impl ShareBucketParams {
    pub(crate) fn new(
        rate: Rate,
        burst: u64,
        shares: &Arc<Shares>,
        spec: &MeterSpec<'_, ShareBucketParams>,
    ) -> ShareBucketParams {
        let rate = TickRate::new(rate);
        let burst = rate.units_within_reach(burst);
        let depth = rate.units_to_ticks(burst) as i128;
        // 32 bits, and the parts have 20 bits.
        let per_ns = rate.ns_to_ticks(1) as u64;
        let parts = shares.classes.iter().flat_map(|class| [class.least, class.most]);
        // Numbers that fit 64 bits are divided much faster.
        let step = parts.fold(Shares::WHOLE, greatest_divisor);
        let (scale, halves) = (i128::from(2 * Shares::WHOLE / step), |part: u32| u64::from(2 * part / step));
        let terms = |class: &ShareClass| ClassTerms {
            own_depth: depth * i128::from(class.least / step),
            own_rate: per_ns * halves(class.least),
            most: (class.most < Shares::WHOLE)
                .then(|| (depth * i128::from(halves(class.most)), per_ns * halves(class.most))),
        };
        let (whole, classes) = (depth * scale, shares.classes.iter().map(terms).collect::<Box<[_]>>());
        let common_depth = whole - classes.iter().map(|class| class.own_depth).sum::<i128>();
        let epoch =
            spec.next_epoch(|before| (before.rate, before.burst, &before.shares) == (rate, burst, shares));
        ShareBucketParams {
            rate,
            burst,
            shares: shares.clone(),
            scale,
            unit: i128::from(rate.unit_ticks()) * scale,
            whole,
            classes,
            common_depth,
            free_rate: per_ns * halves(shares.free()),
            // From a debt of a whole bucket: the debt, the parts of the classes, the common bucket.
            refill_ns: rate.ticks_to_ns(depth as u128).saturating_mul(3),
            epoch,
            settle_terms: spec.settle_terms,
        }
    }

    /// A request of before a reload may be of a class that is gone.
    #[inline]
    fn index(&self, class: u8) -> usize {
        usize::from(class).min(self.classes.len() - 1)
    }

    /// Full buckets.
    fn fresh_tokens(&self) -> Tokens {
        let full = |class: &ClassTerms| ClassTokens {
            own: class.own_depth,
            most: class.most.map_or(0, |(depth, _)| depth),
        };
        Tokens { common: self.common_depth, classes: self.classes.iter().map(full).collect() }
    }

    /// The tokens of a counter as of now.
    #[inline]
    fn refilled<'t>(&self, entry: &mut ShareEntry, shard: &'t mut Slab<Tokens>, now: Now) -> &'t mut Tokens {
        if entry.tokens == 0 {
            entry.tokens = shard.insert(self.fresh_tokens()) + 1;
            entry.at = now.0;
        }
        let elapsed = now.0.saturating_sub(entry.at);
        entry.at = entry.at.max(now.0);
        // Cannot fail: an entry has tokens until it is released.
        let tokens = shard.get_mut(entry.tokens - 1).expect("the counter has tokens");
        if elapsed > 0 {
            self.refill(tokens, elapsed);
        }
        tokens
    }

    #[inline]
    fn refill(&self, tokens: &mut Tokens, ns: u64) {
        let in_time = |rate: u64| i128::from(rate) * i128::from(ns);
        let mut spilled = in_time(self.free_rate);
        for (class, terms) in tokens.classes.iter_mut().zip(&self.classes) {
            let own = class.own + in_time(terms.own_rate);
            class.own = own.min(terms.own_depth);
            spilled += own - class.own;
            if let Some((depth, rate)) = terms.most {
                class.most = (class.most + in_time(rate)).min(depth);
            }
        }
        tokens.common = (tokens.common + spilled).min(self.common_depth);
    }

    /// The tokens that the class can take now.
    #[inline]
    fn reach(&self, tokens: &Tokens, class: usize) -> i128 {
        let ClassTokens { own, most } = tokens.classes[class];
        let reach = own + tokens.common.max(0);
        if self.classes[class].most.is_some() { reach.min(most).max(own) } else { reach }
    }

    /// Takes tokens of the class, and the rest from the common bucket.
    #[inline]
    fn take(&self, tokens: &mut Tokens, class: usize, amount: i128) {
        let from_own = amount.min(tokens.classes[class].own);
        tokens.classes[class].own -= from_own;
        tokens.classes[class].most -= amount;
        tokens.common -= amount - from_own;
    }

    /// Lets tokens flow into the buckets of a class, and what overflows into the common one.
    fn give(&self, tokens: &mut Tokens, class: usize, amount: i128) {
        let terms = &self.classes[class];
        let one = &mut tokens.classes[class];
        let own = one.own + amount;
        one.own = own.min(terms.own_depth);
        tokens.common = (tokens.common + own - one.own).min(self.common_depth);
        one.most = (one.most + amount).min(terms.most.map_or(0, |(depth, _)| depth));
    }

    /// Nanoseconds until the class can take `amount` if nothing else is taken; `u64::MAX` = never.
    #[cold]
    fn wait_ns(&self, tokens: &Tokens, class: usize, amount: i128) -> u64 {
        let (ClassTerms { own_depth, own_rate, most }, one) = (self.classes[class], tokens.classes[class]);
        let by_own = if amount <= own_depth { time_for(amount - one.own, own_rate) } else { u64::MAX };
        let by_most = match most {
            Some((depth, _)) if amount > depth => u64::MAX,
            Some((_, rate)) => time_for(amount - one.most, rate),
            None => 0,
        };
        // The common bucket holds no more than its depth, so the rest has to be in the own one.
        let rest = amount - self.common_depth;
        let by_rest = if rest <= own_depth { time_for(rest - one.own, own_rate) } else { u64::MAX };
        let by_flow = self.flow_ns(tokens, amount - one.own - tokens.common, Some(class));
        by_own.min(by_most.max(by_rest).max(by_flow))
    }

    /// Nanoseconds until so many tokens have flowed into the common bucket, or into it and that of class `with`.
    ///
    /// The inflow Σ max(0, ownᶜ + fᶜ·r·t − depthᶜ) is convex in t, so that Newton's method, begun above the root, comes
    /// down to it in as many steps as there are classes.
    fn flow_ns(&self, tokens: &Tokens, missing: i128, with: Option<usize>) -> u64 {
        if missing <= 0 {
            return 0;
        }
        let mut at = u64::MAX;
        for _ in 0..=self.classes.len() {
            let (mut rate, mut gap) = (self.free_rate, missing);
            for (index, (class, terms)) in tokens.classes.iter().zip(&self.classes).enumerate() {
                let until_full = if with == Some(index) { 0 } else { terms.own_depth - class.own };
                if at == u64::MAX || i128::from(terms.own_rate) * i128::from(at) > until_full {
                    (rate, gap) = (rate + terms.own_rate, gap + until_full);
                }
            }
            match time_for(gap, rate) {
                next if next < at => at = next,
                _ => break,
            }
        }
        at
    }

    /// Nanoseconds until the buckets of a class are full, at most: by what comes now.
    #[inline]
    fn full_ns(&self, tokens: &Tokens, class: usize) -> u64 {
        let (ClassTerms { own_depth, own_rate, .. }, own) = (self.classes[class], tokens.classes[class].own);
        let missing = self.common_depth - tokens.common;
        let own_ns = time_for(own_depth - own, own_rate);
        if missing <= 0 {
            return own_ns;
        }
        let full = tokens.classes.iter().zip(&self.classes).filter(|(one, terms)| one.own == terms.own_depth);
        match full.fold(self.free_rate, |rate, (_, terms)| rate + terms.own_rate) {
            0 => own_ns.max(self.flow_ns(tokens, missing, None)),
            inflow => own_ns.max(time_for(missing, inflow)),
        }
    }

    /// The decision of a class that can still take `reach` tokens, on `rejected` ones or on those that it has taken.
    fn build_decision(&self, tokens: &Tokens, class: usize, reach: i128, rejected: Option<i128>) -> Decision {
        let remaining = whole_units(reach, self.unit);
        let (outcome, retry_after_ns) = match rejected {
            None => (LimitOutcome::Admit, 0),
            Some(amount) => (LimitOutcome::Reject, self.wait_ns(tokens, class, amount)),
        };
        let reset_ns = match remaining {
            0 if rejected == Some(self.unit) => retry_after_ns,
            0 => self.wait_ns(tokens, class, self.unit),
            _ => 0,
        };
        let full_ns = self.full_ns(tokens, class);
        Decision { remaining, reset_ns, retry_after_ns, full_ns, ..Decision::without_numbers(outcome) }
    }
}

/// Nanoseconds until `tokens` have come at a rate; `u64::MAX` = never.
#[inline]
fn time_for(tokens: i128, per_ns: u64) -> u64 {
    match u64::try_from(tokens) {
        _ if tokens <= 0 => 0,
        _ if per_ns == 0 => u64::MAX,
        Ok(tokens) => tokens.div_ceil(per_ns),
        Err(_) => u64::try_from((tokens - 1) / i128::from(per_ns) + 1).unwrap_or(u64::MAX),
    }
}

/// The units in `tokens`, which are not below zero.
#[inline]
fn whole_units(tokens: i128, unit: i128) -> u64 {
    match (u64::try_from(tokens), u64::try_from(unit)) {
        (Ok(tokens), Ok(unit)) => tokens / unit,
        _ => u64::try_from(tokens / unit).unwrap_or(u64::MAX),
    }
}

fn greatest_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_divisor(other, one % other) }
}

impl MeterParams for ShareBucketParams {
    type Entry = ShareEntry;

    fn max_units(&self, class: u8) -> u64 {
        let ClassTerms { own_depth, most, .. } = self.classes[self.index(class)];
        let reach = own_depth + self.common_depth;
        let reach = most.map_or(reach, |(depth, _)| reach.min(depth).max(own_depth));
        whole_units(reach, self.unit)
    }
}

impl RateParams for ShareBucketParams {
    type Wakers = [Waker; 0];

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    #[inline]
    fn advance_entry(&self, _: Locked<'_, Self>, _: Now, _: &mut [Waker; 0]) {}

    #[inline]
    fn charge_entry(
        &self,
        (entry, shard): Locked<'_, Self>,
        units: &Units,
        now: Now,
        overflow: bool,
    ) -> Charged {
        let (class, amount) = (self.index(units.key.class), i128::from(units.cost) * self.unit);
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        let reach = self.reach(tokens, class);
        if amount > reach {
            return (self.build_decision(tokens, class, reach, Some(amount)), None);
        }
        self.take(tokens, class, amount);
        let decision = self.build_decision(tokens, class, reach - amount, None);
        let span = self.rate.split_ticks(self.rate.units_to_ticks(units.cost));
        let present = entry.level.clamp_now(Now(entry.at));
        let since = self.rate.advance_tat(&mut entry.level, present, span);
        entry.idle_from = entry.at.saturating_add(self.refill_ns);
        let epoch = shard.charges.charge_epoch(self.epoch);
        let charge = ChargeRecord { since, node: NO_NODE, overflow, displaces: false, epoch };
        if self.settle_terms.clears && !overflow {
            shard.charges.open_charge(&units.key, units.cost, &charge);
        }
        (decision, Some(charge))
    }

    fn peek_entry(&self, (entry, shard): Locked<'_, Self>, units: &Units, now: Now) -> Decision {
        let (class, amount) = (self.index(units.key.class), i128::from(units.cost) * self.unit);
        let judge = |tokens: &Tokens| {
            let reach = self.reach(tokens, class);
            self.build_decision(tokens, class, reach, Some(amount).filter(|amount| *amount > reach))
        };
        match entry.tokens {
            0 => judge(&self.fresh_tokens()),
            _ => judge(self.refilled(entry, &mut shard.tokens, now)),
        }
    }

    fn reset_entry(&self, (entry, shard): Locked<'_, Self>, _: Now, _: &mut [Waker; 0]) -> u64 {
        std::mem::take(entry).release_extra(shard);
        0
    }
}

impl SettleParams for ShareBucketParams {
    fn give_back(&self, (entry, shard): Locked<'_, Self>, given: &GivenBack<'_>, now: Now) {
        let GivenBack { key, charge, units } = *given;
        let span = self.rate.units_to_ticks(units);
        let regained = self.rate.regained_ticks(&entry.level, self.rate.unit_ticks(), charge.since);
        self.rate.retreat_tat(&mut entry.level, units, span, regained);
        let amount = span.saturating_sub(regained) as i128 * self.scale;
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        self.give(tokens, self.index(key.class), amount);
    }

    fn credit_units(&self, (entry, shard): Locked<'_, Self>, key: &CounterKey, units: u64, now: Now) {
        let present = entry.level.clamp_now(now);
        let backlog = self.rate.backlog_ticks(&entry.level, present);
        let span = self.rate.units_to_ticks(units).min(backlog);
        self.rate.retreat_tat(&mut entry.level, units, span, 0);
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        self.give(tokens, self.index(key.class), span as i128 * self.scale);
    }

    /// Takes the class's own tokens, then common ones down to a whole bucket below zero.
    fn force_units(&self, (entry, shard): Locked<'_, Self>, forced: &ForcedUnits<'_>, now: Now) -> u64 {
        let class = self.index(forced.key.class);
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        let debt_max = if self.settle_terms.settles { self.whole } else { 0 };
        let room = tokens.classes[class].own + tokens.common + debt_max;
        let taken = forced.units.min(whole_units(room.max(0), self.unit));
        if taken > 0 {
            self.take(tokens, class, i128::from(taken) * self.unit);
            let span = self.rate.split_ticks(self.rate.units_to_ticks(taken));
            let present = entry.level.clamp_now(Now(entry.at));
            self.rate.advance_tat(&mut entry.level, present, span);
            entry.idle_from = entry.at.saturating_add(self.refill_ns);
        }
        forced.units - taken
    }

    /// The classes of the open reservations are not known, so that all of them stay in the common bucket.
    fn keep_open_units(
        &self,
        (entry, shard): Locked<'_, Self>,
        _: &CounterKey,
        open: &[OpenUnits],
        now: Now,
    ) {
        let present = entry.level.clamp_now(now);
        let kept = open.iter().fold(ChargedSpan::default(), |kept, open| {
            let (at_ns, ticks) = (open.at_ns.unwrap_or(present.0), self.rate.units_to_ticks(open.units));
            kept.followed_by(ChargedSpan { tat: self.rate.ns_to_ticks(at_ns) + ticks, ticks })
        });
        self.rate.forget_usage(&mut entry.level, kept.tat);
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        *tokens = self.fresh_tokens();
        tokens.common -= (kept.ticks as i128 * self.scale).min(self.common_depth + self.whole);
    }
}

impl TableParams<ShareEntry> for ShareBucketParams {
    /// Keeps the number of used units, and deals the rest out among the classes as the depths of their buckets are.
    fn convert_entry(&self, (entry, shard): Locked<'_, Self>, before: &Self, now: Now, _: &mut Vec<Waker>) {
        if self.epoch == before.epoch || entry.tokens == 0 {
            return;
        }
        if entry.is_idle(now) {
            std::mem::take(entry).release_extra(shard);
            return;
        }
        let tokens = before.refilled(entry, &mut shard.tokens, now);
        let left = tokens.common + tokens.classes.iter().map(|class| class.own).sum::<i128>();
        let used = (before.whole - left).max(0);
        // Divided first, because the product would not fit.
        let (units, rest) = (used / before.unit, used % before.unit);
        let rest = rest.checked_mul(self.unit).map_or(self.unit, |rest| rest / before.unit);
        let used = (units * self.unit + rest).min(2 * self.whole);
        let left = self.whole - used;
        let part = left.max(0) / (self.whole >> DEAL_BITS).max(1);
        *tokens = self.fresh_tokens();
        for class in &mut *tokens.classes {
            class.own = (class.own >> DEAL_BITS) * part;
            class.most = (class.most >> DEAL_BITS) * part;
        }
        tokens.common = left - tokens.classes.iter().map(|class| class.own).sum::<i128>();
        let present = entry.level.clamp_now(now);
        self.rate.set_backlog(&mut entry.level, present, (used / self.scale) as u128);
        entry.idle_from = entry.at.saturating_add(self.refill_ns);
    }
}

// === impl ShareEntry ===

impl TableEntry for ShareEntry {
    type Extra = ShareShard;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.idle_from <= now.0
    }

    /// The tokens of an overflow counter are of another shard.
    fn inherit_overflow(&self) -> Option<ShareEntry> {
        (self.tokens == 0).then(ShareEntry::default)
    }

    fn release_extra(self, shard: &mut ShareShard) {
        if let Some(index) = self.tokens.checked_sub(1) {
            shard.tokens.remove(index);
        }
    }
}

impl PersistentEntry for ShareEntry {
    fn encode_entry(&self, shard: &ShareShard, out: &mut Vec<u8>) {
        self.level.encode_entry(&shard.charges, out);
        [self.at, self.idle_from].iter().for_each(|at| out.extend(at.to_le_bytes()));
        let tokens = shard.tokens.get(self.tokens.wrapping_sub(1)).cloned().unwrap_or_default();
        out.push(tokens.classes.len() as u8);
        out.extend(tokens.common.to_le_bytes());
        for class in &*tokens.classes {
            out.extend(class.own.to_le_bytes());
            out.extend(class.most.to_le_bytes());
        }
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, shard: &mut ShareShard) -> Option<ShareEntry> {
        let level = Level::decode_entry(bytes, shift, &mut shard.charges)?;
        let mut moment = || Some(shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?)));
        let (at, idle_from) = (moment()?, moment()?);
        let [count] = take_bytes(bytes)?;
        let mut number = || Some(i128::from_le_bytes(take_bytes(bytes)?));
        let common = number()?;
        if usize::from(count) > CLASSES_MAX + 1 {
            return None;
        }
        let classes = (0..count).map(|_| Some(ClassTokens { own: number()?, most: number()? }));
        let classes = classes.collect::<Option<Box<[ClassTokens]>>>()?;
        let tokens = if count > 0 { shard.tokens.insert(Tokens { common, classes }) + 1 } else { 0 };
        Some(ShareEntry { level, at, idle_from, tokens })
    }
}

// === impl ShareShard ===

impl AsMut<ShardCharges> for ShareShard {
    fn as_mut(&mut self) -> &mut ShardCharges {
        &mut self.charges
    }
}
