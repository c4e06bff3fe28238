//! The arithmetic of a token bucket with shares, on plain numbers: in memory with nanoseconds, for the store with
//! microseconds.

use crate::{Decision, LimitOutcome};
use sluicegate_model::{ShareClass, Shares};

/// The numbers of a bucket in tokens, parts of a tick so small that the parts of all classes are whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketTerms {
    /// Tokens of a tick.
    pub scale: i128,
    /// Tokens of a unit.
    pub unit: i128,
    /// Tokens of the whole bucket.
    pub whole: i128,
    /// The numbers of each class.
    pub classes: Box<[ClassTerms]>,
    /// The tokens that the common bucket holds.
    pub common_depth: i128,
    /// Tokens per moment that no class has for itself.
    pub free_rate: u64,
}

/// The numbers of a class; rates are tokens per moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassTerms {
    /// The tokens that its own bucket holds.
    pub own_depth: i128,
    /// The rate of its own bucket.
    pub own_rate: u64,
    /// Depth and rate of the bucket for all that it takes; `None` = the class may use the whole limit.
    pub most: Option<(i128, u64)>,
}

/// The tokens of a key. Those of the common bucket are below zero after a response that used more than was there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tokens {
    /// Those in the common bucket.
    pub common: i128,
    /// Those of each class.
    pub classes: Box<[ClassTokens]>,
}

/// The tokens of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassTokens {
    /// Those in its own bucket.
    pub own: i128,
    /// Those that its `most` still allows.
    pub most: i128,
}

// === impl BucketTerms ===

impl BucketTerms {
    /// The terms of a bucket of `depth` ticks of which `unit` make a unit and `rate` come in a moment.
    pub fn new(depth: i128, unit: i128, rate: u64, shares: &Shares) -> BucketTerms {
        let (grain, scale) = (shares.grain(), i128::from(shares.token_scale()));
        // A reserve is the half of its class's part of the bucket, so that a token is the half of a grain.
        let parts = |part: u32| i128::from(part / grain);
        // The configuration has no rate beyond 64 bits.
        let paced = |part: u32| rate.saturating_mul(u64::from(2 * (part / grain)));
        let terms = |class: &ShareClass| ClassTerms {
            own_depth: depth * parts(class.least),
            own_rate: paced(class.least),
            most: (class.most < Shares::WHOLE).then(|| (depth * 2 * parts(class.most), paced(class.most))),
        };
        let classes: Box<[ClassTerms]> = shares.classes.iter().map(terms).collect();
        let whole = depth * scale;
        BucketTerms {
            scale,
            unit: unit * scale,
            whole,
            common_depth: whole - classes.iter().map(|class| class.own_depth).sum::<i128>(),
            classes,
            free_rate: paced(shares.free()),
        }
    }

    /// A request of before a reload may be of a class that is gone.
    #[inline]
    pub fn index(&self, class: u8) -> usize {
        usize::from(class).min(self.classes.len() - 1)
    }

    /// Full buckets.
    pub fn fresh_tokens(&self) -> Tokens {
        let full = |class: &ClassTerms| ClassTokens {
            own: class.own_depth,
            most: class.most.map_or(0, |(depth, _)| depth),
        };
        Tokens { common: self.common_depth, classes: self.classes.iter().map(full).collect() }
    }

    /// Lets tokens flow in for so many moments.
    #[inline]
    pub fn refill(&self, tokens: &mut Tokens, moments: u64) {
        let in_time = |rate: u64| i128::from(rate) * i128::from(moments);
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

    /// The greatest cost of a class that can ever be accepted.
    pub fn max_units(&self, class: u8) -> u64 {
        let ClassTerms { own_depth, most, .. } = self.classes[self.index(class)];
        let reach = own_depth + self.common_depth;
        let reach = most.map_or(reach, |(depth, _)| reach.min(depth).max(own_depth));
        whole_units(reach, self.unit)
    }

    /// The tokens that the class can take now.
    #[inline]
    pub fn reach(&self, tokens: &Tokens, class: usize) -> i128 {
        let ClassTokens { own, most } = tokens.classes[class];
        let reach = own + tokens.common.max(0);
        if self.classes[class].most.is_some() { reach.min(most).max(own) } else { reach }
    }

    /// Takes tokens of the class, and the rest from the common bucket.
    #[inline]
    pub fn take(&self, tokens: &mut Tokens, class: usize, amount: i128) {
        let from_own = amount.min(tokens.classes[class].own);
        tokens.classes[class].own -= from_own;
        tokens.classes[class].most -= amount;
        tokens.common -= amount - from_own;
    }

    /// Lets tokens flow into the buckets of a class, and what overflows into the common one.
    pub fn give(&self, tokens: &mut Tokens, class: usize, amount: i128) {
        let terms = &self.classes[class];
        let one = &mut tokens.classes[class];
        let own = one.own + amount;
        one.own = own.min(terms.own_depth);
        tokens.common = (tokens.common + own - one.own).min(self.common_depth);
        one.most = (one.most + amount).min(terms.most.map_or(0, |(depth, _)| depth));
    }

    /// Moments until the class can take `amount` if nothing else is taken; `u64::MAX` = never.
    #[cold]
    fn wait_for(&self, tokens: &Tokens, class: usize, amount: i128) -> u64 {
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
        let by_flow = self.flow_time(tokens, amount - one.own - tokens.common, Some(class));
        by_own.min(by_most.max(by_rest).max(by_flow))
    }

    /// Moments until so many tokens have flowed into the common bucket, or into it and that of class `with`.
    ///
    /// The inflow Σ max(0, ownᶜ + fᶜ·r·t − depthᶜ) is convex in t, so that Newton's method, begun above the root, comes
    /// down to it in as many steps as there are classes.
    fn flow_time(&self, tokens: &Tokens, missing: i128, with: Option<usize>) -> u64 {
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

    /// Moments until the buckets of a class are full, at most: by what comes now.
    #[inline]
    fn full_time(&self, tokens: &Tokens, class: usize) -> u64 {
        let (ClassTerms { own_depth, own_rate, .. }, own) = (self.classes[class], tokens.classes[class].own);
        let missing = self.common_depth - tokens.common;
        let own_time = time_for(own_depth - own, own_rate);
        if missing <= 0 {
            return own_time;
        }
        let full = tokens.classes.iter().zip(&self.classes).filter(|(one, terms)| one.own == terms.own_depth);
        match full.fold(self.free_rate, |rate, (_, terms)| rate + terms.own_rate) {
            0 => own_time.max(self.flow_time(tokens, missing, None)),
            inflow => own_time.max(time_for(missing, inflow)),
        }
    }

    /// The decision, with times in moments, of a class that can still take `reach` tokens: on `rejected` ones, or on
    /// those that it has taken.
    #[inline]
    pub fn build_decision(
        &self,
        tokens: &Tokens,
        class: usize,
        reach: i128,
        rejected: Option<i128>,
    ) -> Decision {
        let remaining = whole_units(reach, self.unit);
        let (outcome, retry_after_ns) = match rejected {
            None => (LimitOutcome::Admit, 0),
            Some(amount) => (LimitOutcome::Reject, self.wait_for(tokens, class, amount)),
        };
        let reset_ns = match remaining {
            0 if rejected == Some(self.unit) => retry_after_ns,
            0 => self.wait_for(tokens, class, self.unit),
            _ => 0,
        };
        let full_ns = self.full_time(tokens, class);
        Decision { remaining, reset_ns, retry_after_ns, full_ns, ..Decision::without_numbers(outcome) }
    }
}

/// Moments until `tokens` have come at a rate; `u64::MAX` = never. Numbers of 64 bits are divided much faster.
#[inline]
fn time_for(tokens: i128, rate: u64) -> u64 {
    match u64::try_from(tokens) {
        _ if tokens <= 0 => 0,
        _ if rate == 0 => u64::MAX,
        Ok(tokens) => tokens.div_ceil(rate),
        Err(_) => u64::try_from((tokens - 1) / i128::from(rate) + 1).unwrap_or(u64::MAX),
    }
}

/// The units in `tokens`, which are not below zero.
#[inline]
pub(super) fn whole_units(tokens: i128, unit: i128) -> u64 {
    match (u64::try_from(tokens), u64::try_from(unit)) {
        (Ok(tokens), Ok(unit)) => tokens / unit,
        _ => u64::try_from(tokens / unit).unwrap_or(u64::MAX),
    }
}
