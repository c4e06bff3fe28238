//! Rates with guaranteed shares, as the script judges them.

use aws_lc_rs::digest;

use super::call::{BY_CLOCK, PackedCall, SETTLES};
use super::rule::RuleShape;
use super::{EXACT_MAX, RateRemainder, read_double, read_number};
use crate::{CallItem, RateRule, ScriptOp};
use sluicegate_limit::algorithm::shares::{BucketTerms, ClassTerms, ClassTokens, Tokens, WindowTerms};
use sluicegate_limit::{Decision, LimitOutcome};
use sluicegate_model::{Shares, WindowAlign};

/// The shares of one rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShareRule {
    terms: ShareTerms,
    /// The numbers of its classes, as the script reads them.
    numbers: Box<[u8]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ShareTerms {
    Bucket(BucketTerms),
    /// The last class is of units whose class is not known.
    Window(WindowTerms),
}

/// The state that the script found, before any charge and without owed units.
pub(super) enum FoundShares {
    /// The tokens, and whether some of them are reserved.
    Bucket(Tokens, bool),
    /// When the newest units leave, and the units of each class in each sub-window.
    Window(u64, Vec<u64>),
}

// === impl ShareRule ===

impl ShareRule {
    /// The shares of a rate; `None` if the script does not know its classes.
    pub(super) fn new(shape: RuleShape, shares: &Shares) -> Option<ShareRule> {
        let mut names = Vec::new();
        for class in &shares.classes {
            names.push(class.name.len() as u8);
            names.extend(class.name.as_bytes());
        }
        let mut classes: Vec<f64> = Vec::new();
        let (terms, head) = match shape {
            RuleShape::TokenBucket { num, unit, burst } => {
                let depth = i128::from(burst) * i128::from(unit);
                let terms = BucketTerms::new(depth, unit.into(), num, shares);
                for class in &terms.classes {
                    let (depth, rate) =
                        class.most.map_or((f64::INFINITY, 0.0), |(depth, rate)| (depth as f64, rate as f64));
                    classes.extend([class.own_depth as f64, class.own_rate as f64, depth, rate]);
                }
                let head = [terms.unit, terms.whole, terms.common_depth, terms.free_rate.into()];
                (ShareTerms::Bucket(terms), head.map(|number| number as f64))
            }
            RuleShape::FixedWindow { max, period, .. } | RuleShape::SlidingWindow { max, period, .. } => {
                let (width, slots) = match shape {
                    RuleShape::SlidingWindow { .. } => (shape.bucket_width(), shape.window_counts()),
                    _ => (period, 1),
                };
                let terms = WindowTerms::new(max, (width, slots), shares);
                let parts: Box<[(u64, u64)]> = terms.parts.iter().copied().chain([(0, 0)]).collect();
                classes.extend(parts.iter().flat_map(|(least, most)| [*least as f64, *most as f64]));
                let head = [period as f64, slots as f64, terms.common as f64, width as f64];
                (ShareTerms::Window(WindowTerms { parts, ..terms }), head)
            }
            _ => return None,
        };
        let mut numbers: Vec<u8> = head.iter().chain(&classes).flat_map(|one| one.to_le_bytes()).collect();
        // Tokens depend on all numbers, and the units of a window on the classes alone.
        let list = match terms {
            ShareTerms::Bucket(_) => [&names, &numbers[..]].concat(),
            ShareTerms::Window(_) => names,
        };
        let list = digest::digest(&digest::SHA256, &list);
        numbers.splice(..0, list.as_ref()[..8].iter().copied());
        numbers.insert(0, terms.class_count() as u8);
        Some(ShareRule { terms, numbers: numbers.into() })
    }

    /// An encoding of the numbers, for comparison.
    pub(super) fn numbers(&self) -> &[u8] {
        &self.numbers
    }

    /// The greatest cost of a class that can ever be accepted.
    pub(super) fn max_units(&self, class: u8) -> u64 {
        match &self.terms {
            ShareTerms::Bucket(terms) => terms.max_units(class),
            ShareTerms::Window(terms) => terms.max_units(self.terms.index(class)),
        }
    }

    /// `None` if the state is impossible.
    pub(super) fn read_state(&self, bytes: &mut &[u8], now: u64) -> Option<FoundShares> {
        let whole = |bytes: &mut &[u8]| read_double(bytes).filter(|number| number.abs() < EXACT_MAX);
        match &self.terms {
            ShareTerms::Bucket(terms) => {
                let common = whole(bytes)? as i128;
                let has_reserved = read_double(bytes)? > 0.0;
                let mut read_class = |class: &ClassTerms| {
                    let own = read_number(bytes)?.into();
                    let most =
                        if class.most.is_some() { whole(bytes)? } else { read_double(bytes).map(|_| 0.0)? };
                    Some(ClassTokens { own, most: most as i128 })
                };
                let classes = terms.classes.iter().map(&mut read_class).collect::<Option<_>>()?;
                Some(FoundShares::Bucket(Tokens { common, classes }, has_reserved))
            }
            ShareTerms::Window(terms) => {
                let until = read_number(bytes)?;
                let mut counts = vec![0; terms.slots * terms.parts.len()];
                for units in counts.iter_mut().take(terms.live_windows(until, now) * terms.parts.len()) {
                    *units = read_number(bytes)?;
                }
                Some(FoundShares::Window(until, counts))
            }
        }
    }

    /// The decision on an item, or on what is left after its charge, with times in microseconds; and the mark.
    fn decide(&self, item: &CallItem<'_>, found: &FoundShares, now: u64, charged: bool) -> (Decision, u64) {
        let class = self.terms.index(item.class);
        match (&self.terms, found) {
            (ShareTerms::Bucket(terms), FoundShares::Bucket(tokens, _)) => {
                let tokens_of = |units: u64| i128::from(units) * terms.unit;
                let mut tokens = tokens.clone();
                terms.take(&mut tokens, class, tokens_of(item.owed));
                tokens.common -= tokens_of(item.owed_by_others);
                let cost = tokens_of(item.cost);
                if charged {
                    terms.take(&mut tokens, class, cost);
                }
                let reach = terms.reach(&tokens, class);
                let rejected = Some(cost).filter(|cost| !charged && *cost > reach);
                (terms.build_decision(&tokens, class, reach, rejected), now)
            }
            (ShareTerms::Window(terms), FoundShares::Window(until, counts)) => {
                let (mut until, mut counts, added) =
                    (*until, counts.clone(), if charged { item.cost } else { 0 });
                if item.owed.saturating_add(item.owed_by_others).saturating_add(added) > 0 {
                    until = match item.rule.shape {
                        RuleShape::FixedWindow { .. } if until > 0 => until,
                        RuleShape::FixedWindow { period, align: WindowAlign::Clock, .. } => {
                            now - now % period + period
                        }
                        RuleShape::SlidingWindow { period, .. } => {
                            terms.slide(until, &mut counts, now, period)
                        }
                        _ => now.saturating_add(terms.width),
                    };
                    counts[class] = counts[class].saturating_add(item.owed.saturating_add(added));
                    let nobody = terms.parts.len() - 1;
                    counts[nobody] = counts[nobody].saturating_add(item.owed_by_others);
                }
                let cost = if charged { 0 } else { item.cost };
                (terms.build_decision((until, &counts), class, cost, now), until)
            }
            // `read_state` makes no other pair.
            _ => (Decision::without_numbers(LimitOutcome::Admit), 0),
        }
    }

    /// Microseconds until an item fits; `None` if it does now.
    pub(super) fn retry_us(&self, item: &CallItem<'_>, found: &FoundShares, now: u64) -> Option<u64> {
        let (decision, _) = self.decide(item, found, now, false);
        (decision.outcome == LimitOutcome::Reject).then_some(decision.retry_after_ns)
    }

    pub(super) fn compute_remainder(
        &self,
        item: &CallItem<'_>,
        found: &FoundShares,
        now: u64,
        charged: bool,
    ) -> RateRemainder {
        let (Decision { remaining, reset_ns, full_ns, .. }, mark) = self.decide(item, found, now, charged);
        let window_us = item.rule.window_ns().map(|_| mark.saturating_sub(now));
        RateRemainder { remaining, reset_us: reset_ns, mark, window_us, full_us: full_ns }
    }
}

impl FoundShares {
    pub(super) fn has_reserved(&self) -> bool {
        matches!(self, FoundShares::Bucket(_, true))
    }
}

impl ShareTerms {
    fn class_count(&self) -> usize {
        match self {
            ShareTerms::Bucket(terms) => terms.classes.len(),
            ShareTerms::Window(terms) => terms.parts.len(),
        }
    }

    /// A request of before a reload may be of a class that is gone.
    fn index(&self, class: u8) -> usize {
        match self {
            ShareTerms::Bucket(terms) => terms.index(class),
            ShareTerms::Window(terms) => usize::from(class).min(terms.parts.len() - 2),
        }
    }
}

// === impl PackedCall ===

impl PackedCall {
    /// What the items of a group have in common.
    pub(super) fn push_shares(&mut self, rule: &RateRule, flags: u8, shares: &ShareRule) {
        let own = match rule.shape {
            RuleShape::FixedWindow { align: WindowAlign::Clock, .. } => BY_CLOCK,
            _ if rule.settles => SETTLES,
            _ => 0,
        };
        self.body.extend([rule.shape.algorithm_code(), flags | own]);
        self.body.extend(&*shares.numbers);
    }

    /// The class, and the units that are judged, charged or given back.
    pub(super) fn push_class_units(&mut self, op: ScriptOp, shares: &ShareRule, item: &CallItem<'_>) {
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
}
