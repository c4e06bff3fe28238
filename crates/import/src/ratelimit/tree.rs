//! The descriptors of a domain as a tree, and how envoyproxy/ratelimit goes down in it (`GetLimit`).
//!
//! At each level it takes one branch and never goes back: a descriptor with the very value, else the first one with a
//! matching asterisk, else the one without a value. The limit counts if the descriptor of the call ends there.

use std::collections::{BTreeMap, HashMap};

use super::descriptor::{EntryPattern, ImportedDescriptor, ImportedDomain};
use crate::ImportReport;

/// An entry that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MatchedEntry<'d> {
    pub key: &'d str,
    pub pattern: EntryPattern,
}

#[derive(Debug)]
pub(super) struct DescriptorTree<'d> {
    pub nodes: Vec<DescriptorNode<'d>>,
    root: NextEntries<'d>,
}

#[derive(Debug)]
pub(super) struct DescriptorNode<'d> {
    pub descriptor: &'d ImportedDescriptor,
    parent: Option<usize>,
    next: NextEntries<'d>,
    /// No rule can stand for it or for the nodes below it.
    pub is_lost: bool,
}

/// The nodes that may follow, by their keys.
type NextEntries<'d> = HashMap<&'d str, Siblings<'d>>;

/// Nodes with one key, without those that no rule can stand for.
#[derive(Debug, Default)]
struct Siblings<'d> {
    values: BTreeMap<&'d str, usize>,
    /// Nodes with an asterisk, in file order.
    wildcards: Vec<usize>,
    default: Option<usize>,
}

/// How entries go down the tree.
#[derive(Debug, Default)]
pub(super) struct TreeWalk {
    /// The last node that was taken.
    pub last: Option<usize>,
    /// All entries found a node.
    pub is_complete: bool,
    /// Levels at which some of the values take another branch, with the node of the branch.
    pub forks: Vec<(usize, usize)>,
}

// === impl DescriptorTree ===

impl<'d> DescriptorTree<'d> {
    pub(super) fn new(domain: &'d ImportedDomain) -> DescriptorTree<'d> {
        let mut tree = DescriptorTree { nodes: Vec::new(), root: NextEntries::new() };
        tree.root = tree.add_level(&domain.descriptors, None, false);
        tree
    }

    fn add_level(
        &mut self,
        descriptors: &'d [ImportedDescriptor],
        parent: Option<usize>,
        is_lost: bool,
    ) -> NextEntries<'d> {
        let mut level = NextEntries::new();
        for descriptor in descriptors {
            let index = self.nodes.len();
            let is_scattered = matches!(descriptor.pattern, EntryPattern::Scattered(_));
            let is_lost = is_lost || is_scattered || descriptor.key.contains('*');
            self.nodes.push(DescriptorNode { descriptor, parent, next: NextEntries::new(), is_lost });
            self.nodes[index].next = self.add_level(&descriptor.children, Some(index), is_lost);
            if is_lost {
                continue;
            }
            let siblings = level.entry(descriptor.key.as_str()).or_default();
            match &descriptor.pattern {
                EntryPattern::Value(value) => {
                    siblings.values.insert(value, index);
                }
                _ if descriptor.is_default => siblings.default = Some(index),
                _ => siblings.wildcards.push(index),
            }
        }
        level
    }

    /// The nodes from the top down to this one.
    pub(super) fn path(&self, node: usize) -> Vec<&'d ImportedDescriptor> {
        let above = std::iter::successors(Some(node), |&node| self.nodes[node].parent);
        let mut path: Vec<_> = above.map(|node| self.nodes[node].descriptor).collect();
        path.reverse();
        path
    }

    pub(super) fn entries(&self, node: usize) -> Vec<MatchedEntry<'d>> {
        let entry = |descriptor: &&'d ImportedDescriptor| MatchedEntry {
            key: &descriptor.key,
            pattern: descriptor.pattern.clone(),
        };
        self.path(node).iter().map(entry).collect()
    }

    /// Goes down with entries that stand for all of their values, except for those that take a fork.
    pub(super) fn walk(&self, entries: &[MatchedEntry<'d>]) -> TreeWalk {
        let mut walk = TreeWalk::default();
        let mut next = &self.root;
        for (level, MatchedEntry { key, pattern }) in entries.iter().enumerate() {
            let Some(siblings) = next.get(key) else { return walk };
            let taken = self.find_branch(siblings, pattern);
            let before = siblings.wildcards.iter().take_while(|node| Some(**node) != taken);
            let is_fork = |node: &&usize| {
                let other = &self.nodes[**node].descriptor.pattern;
                pattern.is_open() && other != pattern && pattern.covers(other)
            };
            let forks = siblings.values.values().chain(before).filter(is_fork);
            walk.forks.extend(forks.map(|node| (level, *node)));
            let Some(taken) = taken else { return walk };
            walk.last = Some(taken);
            next = &self.nodes[taken].next;
        }
        walk.is_complete = true;
        walk
    }

    fn find_branch(&self, siblings: &Siblings<'d>, pattern: &EntryPattern) -> Option<usize> {
        let exact = match pattern {
            EntryPattern::Value(value) => siblings.values.get(value.as_str()).copied(),
            _ => None,
        };
        let covers = |node: &&usize| self.nodes[**node].descriptor.pattern.covers(pattern);
        exact.or_else(|| siblings.wildcards.iter().find(covers).copied()).or(siblings.default)
    }
}

/// Reports on all levels the descriptors that envoyproxy/ratelimit hides behind another one, because it compares keys
/// and values joined by `_`: `path: "*"` stands for everything that begins with `path_`, so also for entries of the key
/// `path_prefix`.
pub(super) fn note_joined(level: &[ImportedDescriptor], report: &mut ImportReport) {
    let start_of = |descriptor: &ImportedDescriptor| match &descriptor.pattern {
        // The very value is looked up before wildcards.
        EntryPattern::Value(_) | EntryPattern::Scattered(_) => None,
        EntryPattern::Prefix(prefix) => Some(format!("{}_{prefix}", descriptor.key)),
        EntryPattern::Any => Some(format!("{}_", descriptor.key)),
    };
    let wildcards = level.iter().enumerate().filter(|(_, descriptor)| !descriptor.is_default);
    let wildcards = wildcards.filter_map(|(index, other)| Some((index, other, start_of(other)?)));
    let wildcards: Vec<(usize, &ImportedDescriptor, String)> = wildcards.collect();
    for (index, descriptor) in level.iter().enumerate() {
        note_joined(&descriptor.children, report);
        let Some(own) = start_of(descriptor) else { continue };
        let first = wildcards.iter().find(|(position, other, start)| {
            let is_before = descriptor.is_default || *position < index;
            let meets = own.starts_with(start.as_str()) || start.starts_with(&own);
            is_before && other.key != descriptor.key && meets
        });
        if let Some((_, other, _)) = first {
            let says = format!(
                "envoyproxy/ratelimit joins keys and values by `_`, and finds line {} for some of its calls",
                other.at.line
            );
            report.differs(&descriptor.at, &descriptor.show(), says);
        }
    }
}
