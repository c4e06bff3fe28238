//! The regular expressions of one host rule, found by the literals that their matches begin or end with.
//!
//! The index only leaves out expressions that cannot match. The others are tried in file order.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::LocationRule;
use super::prefix_table::PrefixTable;
use sluicegate_model::PathRegex;

/// Expressions and their rules, in file order.
#[derive(Debug)]
pub(super) struct RegexRules {
    rules: Vec<(PathRegex, LocationRule)>,
    /// Indices, ascending; expressions without a literal have the empty one.
    by_prefix: PrefixTable<Box<[u32]>>,
    /// The same by reversed literals, so that the end of a path is found as its beginning is.
    by_suffix: PrefixTable<Box<[u32]>>,
}

type IndicesByLiteral = HashMap<Box<[u8]>, Vec<u32>>;

impl RegexRules {
    pub(super) fn new(rules: Vec<(PathRegex, LocationRule)>) -> RegexRules {
        let (prefixes, suffixes) =
            (count_uses(&rules, |regex| regex.prefixes()), count_uses(&rules, |regex| regex.suffixes()));
        let (mut by_prefix, mut by_suffix) = (IndicesByLiteral::new(), IndicesByLiteral::new());
        for (index, (regex, _)) in (0_u32..).zip(&rules) {
            // The end that fewer expressions share leaves fewer of them to try.
            let prefix_uses = regex.prefixes().map(|all| max_uses(&prefixes, all));
            let suffix_uses = regex.suffixes().map(|all| max_uses(&suffixes, all));
            match (regex.prefixes(), regex.suffixes()) {
                (_, Some(all)) if suffix_uses < prefix_uses || prefix_uses.is_none() => {
                    let reversed = all.iter().map(|literal| literal.iter().rev().copied().collect());
                    reversed.for_each(|literal| by_suffix.entry(literal).or_default().push(index));
                }
                (Some(all), _) => {
                    all.iter().for_each(|literal| by_prefix.entry(literal.clone()).or_default().push(index));
                }
                (None, _) => by_prefix.entry(Box::default()).or_default().push(index),
            }
        }
        let table = |indices: IndicesByLiteral| {
            PrefixTable::new(indices.into_iter().map(|(literal, indices)| (literal, indices.into())))
        };
        RegexRules { rules, by_prefix: table(by_prefix), by_suffix: table(by_suffix) }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// All expressions, in file order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(PathRegex, LocationRule)> {
        self.rules.iter()
    }

    /// The rules of the expressions that match `path` or its text, in file order.
    pub(super) fn find_matching(&self, path: &[u8], lossy: &str) -> impl Iterator<Item = &LocationRule> {
        let mut lists = self.find_candidates(path);
        std::iter::from_fn(move || {
            loop {
                let index = *lists.iter().filter_map(|list| list.first()).min()?;
                for list in &mut lists {
                    *list = list.strip_prefix(&[index]).unwrap_or(list);
                }
                let (regex, rule) = &self.rules[index as usize];
                if regex.is_match(path, lossy) {
                    return Some(rule);
                }
            }
        })
    }

    /// The indices of the expressions that may match, in ascending lists.
    fn find_candidates(&self, text: &[u8]) -> SmallVec<[&[u32]; 8]> {
        let mut lists: SmallVec<[&[u32]; 8]> =
            self.by_prefix.find_prefixes(text).map(|list| &**list).collect();
        if !self.by_suffix.is_empty() {
            let reversed: SmallVec<[u8; 128]> = text.iter().rev().copied().collect();
            lists.extend(self.by_suffix.find_prefixes(&reversed).map(|list| &**list));
        }
        lists
    }
}

/// The number of expressions with each literal.
fn count_uses<'r>(
    rules: &'r [(PathRegex, LocationRule)],
    literals: impl Fn(&'r PathRegex) -> Option<&'r [Box<[u8]>]>,
) -> HashMap<&'r [u8], usize> {
    let mut uses = HashMap::new();
    for literal in rules.iter().filter_map(|(regex, _)| literals(regex)).flatten() {
        *uses.entry(&**literal).or_default() += 1;
    }
    uses
}

fn max_uses(uses: &HashMap<&[u8], usize>, literals: &[Box<[u8]>]) -> usize {
    literals.iter().filter_map(|literal| uses.get(&**literal)).copied().max().unwrap_or(0)
}
