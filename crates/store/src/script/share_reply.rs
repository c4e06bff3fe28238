//! The numbers of answers about rates with guaranteed shares.

use super::RateRemainder;
use super::rule_shape::RuleShape;
use super::shares::{FoundShares, ShareRule, ShareTerms};
use crate::CallItem;
use sluicegate_limit::{Decision, LimitOutcome};
use sluicegate_model::WindowAlign;

// === impl ShareRule ===

impl ShareRule {
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
