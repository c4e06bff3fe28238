//! The rules of a domain that find the same limits as envoyproxy/ratelimit.
//!
//! The gateway takes the most specific rule for a descriptor; envoyproxy/ratelimit takes one branch at each level of
//! its tree. So each path to a limit is a rule, and where some of its values take another branch, there is another rule
//! for those: with the limit that they find there, or without one. Narrowing an entry makes a rule more specific, so
//! that the most specific rule for a descriptor is always one without such a fork.

use std::collections::{HashMap, HashSet};

use super::descriptor::ImportedDomain;
use super::tree::{DescriptorTree, MatchedEntry};

/// The most rules of all domains that a service may have.
pub(super) const RULES_MAX: usize = 10_000;

/// The rules for the paths of a tree.
#[derive(Debug)]
pub(super) struct DomainRules<'d> {
    pub tree: DescriptorTree<'d>,
    pub rules: Vec<TreeRule<'d>>,
    /// Nodes with a limit that no call finds, with those that are found in their place.
    pub hidden: Vec<(usize, Option<usize>)>,
}

/// The entries that are matched, and the outcome.
#[derive(Debug)]
pub(super) struct TreeRule<'d> {
    pub entries: Vec<MatchedEntry<'d>>,
    /// The last node that is found.
    pub found: Option<usize>,
    /// The same node, if its `rate_limit` holds; `None` = it has none, or nothing below it is found.
    pub limit: Option<usize>,
}

impl<'d> DomainRules<'d> {
    /// The rules of a domain; `None` if they are more than a service may have.
    pub(super) fn find(domain: &'d ImportedDomain) -> Option<DomainRules<'d>> {
        let mut found =
            DomainRules { tree: DescriptorTree::new(domain), rules: Vec::new(), hidden: Vec::new() };
        let mut known: HashSet<Vec<MatchedEntry<'d>>> = HashSet::new();
        let mut pending = Vec::new();
        for node in 0..found.tree.nodes.len() {
            let is_limit = found.tree.nodes[node].descriptor.limit.is_some();
            if !is_limit || found.tree.nodes[node].is_lost {
                continue;
            }
            let entries = found.tree.entries(node);
            let walk = found.tree.walk(&entries);
            if walk.last != Some(node) {
                found.hidden.push((node, walk.last));
            } else if known.insert(entries.clone()) {
                pending.push(entries);
            }
        }
        let mut next = 0;
        while let Some(entries) = pending.get(next).cloned() {
            next += 1;
            let walk = found.tree.walk(&entries);
            for (level, node) in walk.forks {
                let mut narrowed = entries.clone();
                narrowed[level].pattern = found.tree.nodes[node].descriptor.pattern.clone();
                if known.insert(narrowed.clone()) {
                    pending.push(narrowed);
                }
            }
            if known.len() > RULES_MAX {
                return None;
            }
            let limit = walk
                .last
                .filter(|&node| walk.is_complete && found.tree.nodes[node].descriptor.limit.is_some());
            found.rules.push(TreeRule { entries, found: walk.last, limit });
        }
        Some(found)
    }

    /// Takes out rules with the entries of an earlier rule in another order, because the gateway does not tell them
    /// apart; returns each with the earlier one.
    pub(super) fn take_reordered(&mut self) -> Vec<(TreeRule<'d>, usize)> {
        let mut known: HashMap<Vec<MatchedEntry<'d>>, usize> = HashMap::new();
        let mut reordered = Vec::new();
        let mut kept = Vec::new();
        for rule in self.rules.drain(..) {
            match known.get(&sort_entries(&rule.entries)) {
                Some(&earlier) => reordered.push((rule, earlier)),
                None => {
                    known.insert(sort_entries(&rule.entries), kept.len());
                    kept.push(rule);
                }
            }
        }
        self.rules = kept;
        reordered
    }

    /// The first rule for each rule that has the same keys in another order.
    pub(super) fn find_other_orders(&self) -> Vec<(usize, usize)> {
        let mut first: HashMap<Vec<&str>, usize> = HashMap::new();
        let mut found = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let keys: Vec<&str> = rule.entries.iter().map(|entry| entry.key).collect();
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            let earlier = *first.entry(sorted).or_insert(index);
            if self.rules[earlier].entries.iter().map(|entry| entry.key).ne(keys) {
                found.push((index, earlier));
            }
        }
        found
    }
}

/// Entries by their keys; those with one key keep their order.
fn sort_entries<'d>(entries: &[MatchedEntry<'d>]) -> Vec<MatchedEntry<'d>> {
    let mut sorted = entries.to_vec();
    sorted.sort_by_key(|entry| entry.key);
    sorted
}
