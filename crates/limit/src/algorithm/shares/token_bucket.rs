//! token_bucket with shares: a bucket of which each class has a part for itself.
//!
//! Class c has a bucket of its own with the rate fᶜ·r and the depth fᶜ·B/2. What overflows it flows into a common
//! bucket for all, which holds the rest of the depth and gets the rest of the rate. A request takes from its own
//! bucket, then from the common one; the latter only while its class is within `most`, a bucket of mᶜ·r and mᶜ·B that
//! is charged by all that the class takes. The depths add up to B, so at most B + r·Δ units pass in any span Δ, and a
//! class within its own part is never refused because of others. Classes meet in the common bucket alone, so a refill
//! needs no order of them: common += Σ max(0, ownᶜ + fᶜ·r·Δ − depthᶜ). All numbers are exact.

use std::sync::Arc;
use std::task::Waker;

use super::bucket_terms::{BucketTerms, ClassTokens, Tokens, whole_units};
use crate::algorithm::meter::{Charged, Locked, MeterParams, MeterSpec, RateParams, SettleTerms};
use crate::algorithm::open_charges::{ChargedSpan, OpenUnits, ShardCharges};
use crate::algorithm::queue::NO_NODE;
use crate::algorithm::rate::{Level, TickRate};
use crate::algorithm::settle::{ForcedUnits, GivenBack, SettleParams};
use crate::algorithm::slab::Slab;
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{CounterKey, TableEntry, TableParams};
use crate::{ChargeRecord, Decision, Epoch, Units};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_model::{CLASSES_MAX, Rate, Shares};

pub(crate) struct ShareBucketParams {
    rate: TickRate,
    burst: u64,
    shares: Arc<Shares>,
    terms: BucketTerms,
    /// Nanoseconds after which a counter that is not used any more is full.
    refill_ns: u64,
    epoch: Epoch,
    settle_terms: SettleTerms,
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
        // A rate has at most 32 bits of ticks per nanosecond.
        let per_ns = rate.ns_to_ticks(1) as u64;
        // From a debt of a whole bucket: the debt, the parts of the classes, the common bucket; or the smallest `most`.
        let least_most = shares.classes.iter().map(|class| class.most).min().unwrap_or(Shares::WHOLE);
        let refills = 3.max(1 + Shares::WHOLE.div_ceil(least_most.max(1)));
        let terms = BucketTerms::new(depth, rate.unit_ticks().into(), per_ns, shares);
        let epoch =
            spec.next_epoch(|before| (before.rate, before.burst, &before.shares) == (rate, burst, shares));
        ShareBucketParams {
            rate,
            burst,
            shares: shares.clone(),
            terms,
            refill_ns: rate.ticks_to_ns(depth as u128).saturating_mul(refills.into()),
            epoch,
            settle_terms: spec.settle_terms,
        }
    }

    /// The tokens that a request asks for; what costs more than the bucket holds is beyond any reach all the same.
    #[inline]
    fn amount(&self, units: &Units) -> i128 {
        i128::from(units.cost.min(self.burst.saturating_add(1))) * self.terms.unit
    }

    /// The tokens of a counter as of now.
    #[inline]
    fn refilled<'t>(&self, entry: &mut ShareEntry, shard: &'t mut Slab<Tokens>, now: Now) -> &'t mut Tokens {
        if entry.tokens == 0 {
            entry.tokens = shard.insert(self.terms.fresh_tokens()) + 1;
            entry.at = now.0;
        }
        let elapsed = now.0.saturating_sub(entry.at);
        entry.at = entry.at.max(now.0);
        // Cannot fail: an entry has tokens until it is released.
        let tokens = shard.get_mut(entry.tokens - 1).expect("the counter has tokens");
        if elapsed > 0 {
            self.terms.refill(tokens, elapsed);
        }
        tokens
    }
}

impl MeterParams for ShareBucketParams {
    type Entry = ShareEntry;

    fn max_units(&self, class: u8) -> u64 {
        self.terms.max_units(class)
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
        let (class, amount) = (self.terms.index(units.key.class), self.amount(units));
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        let reach = self.terms.reach(tokens, class);
        if amount > reach {
            return (self.terms.build_decision(tokens, class, reach, Some(amount)), None);
        }
        self.terms.take(tokens, class, amount);
        let decision = self.terms.build_decision(tokens, class, reach - amount, None);
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
        let (class, amount) = (self.terms.index(units.key.class), self.amount(units));
        let judge = |tokens: &Tokens| {
            let reach = self.terms.reach(tokens, class);
            self.terms.build_decision(tokens, class, reach, Some(amount).filter(|amount| *amount > reach))
        };
        match entry.tokens {
            0 => judge(&self.terms.fresh_tokens()),
            _ => judge(self.refilled(entry, &mut shard.tokens, now)),
        }
    }

    fn own_units(&self, (entry, shard): Locked<'_, Self>, class: u8, now: Now) -> Option<u64> {
        let own = |tokens: &Tokens| (tokens.classes[self.terms.index(class)].own / self.terms.unit) as u64;
        Some(match entry.tokens {
            0 => own(&self.terms.fresh_tokens()),
            _ => own(self.refilled(entry, &mut shard.tokens, now)),
        })
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
        let amount = span.saturating_sub(regained) as i128 * self.terms.scale;
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        self.terms.give(tokens, self.terms.index(key.class), amount);
    }

    fn credit_units(&self, (entry, shard): Locked<'_, Self>, key: &CounterKey, units: u64, now: Now) {
        let present = entry.level.clamp_now(now);
        let backlog = self.rate.backlog_ticks(&entry.level, present);
        let span = self.rate.units_to_ticks(units).min(backlog);
        self.rate.retreat_tat(&mut entry.level, units, span, 0);
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        self.terms.give(tokens, self.terms.index(key.class), span as i128 * self.terms.scale);
    }

    /// Takes the class's own tokens, then common ones down to a whole bucket below zero.
    fn force_units(&self, (entry, shard): Locked<'_, Self>, forced: &ForcedUnits<'_>, now: Now) -> u64 {
        let class = self.terms.index(forced.key.class);
        let tokens = self.refilled(entry, &mut shard.tokens, now);
        let debt_max = if self.settle_terms.settles { self.terms.whole } else { 0 };
        let room = tokens.classes[class].own + tokens.common + debt_max;
        let taken = forced.units.min(whole_units(room.max(0), self.terms.unit));
        if taken > 0 {
            self.terms.take(tokens, class, i128::from(taken) * self.terms.unit);
            // Excess after excess would lead it ever further away.
            tokens.classes[class].most = tokens.classes[class].most.max(-self.terms.whole);
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
        *tokens = self.terms.fresh_tokens();
        tokens.common -=
            (kept.ticks as i128 * self.terms.scale).min(self.terms.common_depth + self.terms.whole);
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
        let used = (before.terms.whole - left).max(0);
        // Divided first, because the product would not fit.
        let (units, rest) = (used / before.terms.unit, used % before.terms.unit);
        let rest = rest.checked_mul(self.terms.unit).map_or(self.terms.unit, |rest| rest / before.terms.unit);
        let used = units.saturating_mul(self.terms.unit).saturating_add(rest).min(2 * self.terms.whole);
        let (whole, left) = (self.terms.whole, self.terms.whole - used);
        // As many bits less as the product needs to fit.
        let bits = (i128::BITS - whole.leading_zeros()).saturating_sub(62);
        let part = |tokens: i128| ((tokens >> bits) * (left.max(0) >> bits) / (whole >> bits).max(1)) << bits;
        *tokens = self.terms.fresh_tokens();
        for class in &mut *tokens.classes {
            (class.own, class.most) = (part(class.own), part(class.most));
        }
        tokens.common = left - tokens.classes.iter().map(|class| class.own).sum::<i128>();
        let present = entry.level.clamp_now(now);
        self.rate.set_backlog(&mut entry.level, present, (used / self.terms.scale) as u128);
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
