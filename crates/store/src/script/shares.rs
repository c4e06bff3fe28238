//! Rates with guaranteed shares, as the script judges them.

use aws_lc_rs::digest;

use super::rule_shape::RuleShape;
use super::{EXACT_MAX, read_double, read_number};
use sluicegate_limit::algorithm::shares::{BucketTerms, ClassTerms, ClassTokens, Tokens, WindowTerms};
use sluicegate_model::{ShareClass, Shares};

/// The shares of one rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShareRule {
    pub(super) terms: ShareTerms,
    /// The numbers of its classes, as the script reads them.
    numbers: Box<[u8]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShareTerms {
    Bucket(BucketTerms),
    /// The last class is of units whose class is not known.
    Window(WindowTerms),
    /// For each class the most slots that it can ever take.
    Slots(Box<[u64]>),
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
                (ShareTerms::Bucket(terms), head.map(|number| number as f64).to_vec())
            }
            RuleShape::FixedWindow { max, period, .. } | RuleShape::SlidingWindow { max, period, .. } => {
                let (width, slots) = match shape {
                    RuleShape::SlidingWindow { .. } => (shape.bucket_width(), shape.window_counts()),
                    _ => (period, 1),
                };
                let terms = WindowTerms::new(max, (width, slots), shares);
                let parts: Box<[(u64, u64)]> = terms.parts.iter().copied().chain([(0, 0)]).collect();
                classes.extend(parts.iter().flat_map(|(least, most)| [*least as f64, *most as f64]));
                let head = vec![period as f64, slots as f64, terms.common as f64, width as f64];
                (ShareTerms::Window(WindowTerms { parts, ..terms }), head)
            }
            RuleShape::Concurrency { max } => {
                let (reach, terms) = slot_terms(max, shares);
                classes.extend(terms.iter().flatten().map(|number| *number as f64));
                (ShareTerms::Slots(reach), Vec::new())
            }
            _ => return None,
        };
        let mut numbers: Vec<u8> = head.iter().chain(&classes).flat_map(|one| one.to_le_bytes()).collect();
        // Tokens depend on all numbers, and the units of a window and slots on the classes alone.
        let list = match terms {
            ShareTerms::Bucket(_) => [&names, &numbers[..]].concat(),
            ShareTerms::Window(_) | ShareTerms::Slots(_) => names,
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
            ShareTerms::Slots(reach) => reach[self.terms.index(class)],
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
            ShareTerms::Slots(_) => None,
        }
    }
}

impl ShareTerms {
    fn class_count(&self) -> usize {
        match self {
            ShareTerms::Bucket(terms) => terms.classes.len(),
            ShareTerms::Window(terms) => terms.parts.len(),
            ShareTerms::Slots(reach) => reach.len(),
        }
    }

    /// A request of before a reload may be of a class that is gone.
    pub(super) fn index(&self, class: u8) -> usize {
        match self {
            ShareTerms::Bucket(terms) => terms.index(class),
            ShareTerms::Window(terms) => usize::from(class).min(terms.parts.len() - 2),
            ShareTerms::Slots(reach) => usize::from(class).min(reach.len() - 1),
        }
    }
}

/// For each class the most slots that it can ever take; and its floor, the part of it that is not lent, and its `most`.
fn slot_terms(max: u64, shares: &Shares) -> (Box<[u64]>, Vec<[u64; 3]>) {
    let own = |class: &ShareClass| {
        let floor = class.least_of(max);
        [floor, floor - floor * u64::from(shares.lend) / u64::from(Shares::WHOLE), class.most_of(max)]
    };
    let terms: Vec<[u64; 3]> = shares.classes.iter().map(own).collect();
    let not_lent: u64 = terms.iter().map(|[_, not_lent, _]| not_lent).sum();
    let reach = terms.iter().map(|[_, own, most]| (*most).min(max.saturating_sub(not_lent - own)));
    (reach.collect(), terms)
}
