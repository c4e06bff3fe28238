//! Finds the most specific rule for a descriptor.
//!
//! A rule is listed under one of its patterns: a literal if it has one, else a prefix, else the name of an entry; of
//! several, under the one that the fewest rules share. A lookup visits the lists of the descriptor's own entries, so
//! its cost does not grow with rules for other values.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::Entries;
use sluicegate_model::{DescriptorRuleConfig, EntryRule, ValuePattern};

/// The rules of one domain.
pub struct DescriptorRules {
    /// The most specific first.
    rules: Vec<RankedRule>,
    /// The places in `rules` of those that any descriptor may match.
    always: Vec<usize>,
    by_name: HashMap<Box<str>, NameLists>,
}

struct RankedRule {
    entries: Box<[EntryRule]>,
    /// The entries that a descriptor must have altogether; `None` = it may have more.
    exact_count: Option<usize>,
    /// Index in the file.
    position: usize,
}

/// The rules that are listed under entries of one name; ascending places in [`DescriptorRules::rules`].
#[derive(Default)]
struct NameLists {
    any: Vec<usize>,
    literals: HashMap<Box<str>, Vec<usize>>,
    /// Values by the length of the prefix, in bytes.
    prefixes: BTreeMap<usize, HashMap<Box<str>, Vec<usize>>>,
}

// === impl DescriptorRules ===

impl DescriptorRules {
    /// Sorts the rules for the search; of equally specific ones the first in `rules` comes first.
    pub fn new(rules: &[DescriptorRuleConfig]) -> DescriptorRules {
        let mut order: Vec<usize> = (0..rules.len()).collect();
        order.sort_by_cached_key(|&position| (specificity(&rules[position]), position));
        let mut shares: HashMap<(&str, &ValuePattern), usize> = HashMap::new();
        for pattern in rules.iter().flat_map(patterns_of) {
            *shares.entry(pattern).or_default() += 1;
        }
        let mut found = DescriptorRules {
            rules: Vec::with_capacity(rules.len()),
            always: Vec::new(),
            by_name: HashMap::new(),
        };
        for (place, position) in order.into_iter().enumerate() {
            let rule = &rules[position];
            let listed =
                patterns_of(rule).min_by_key(|pattern| (pattern_rank(pattern.1), shares.get(pattern)));
            found.list_rule(place, listed);
            found.rules.push(RankedRule {
                entries: rule.entries.clone().into_boxed_slice(),
                exact_count: rule.exact.then(|| rule.entry_count()),
                position,
            });
        }
        found
    }

    fn list_rule(&mut self, place: usize, listed: Option<(&str, &ValuePattern)>) {
        let Some((name, pattern)) = listed else { return self.always.push(place) };
        let lists = self.by_name.entry(name.into()).or_default();
        let list = match pattern {
            ValuePattern::Any => &mut lists.any,
            ValuePattern::Literal(literal) => lists.literals.entry(literal.as_str().into()).or_default(),
            ValuePattern::Prefix(prefix) => {
                let same_length = lists.prefixes.entry(prefix.len()).or_default();
                same_length.entry(prefix.as_str().into()).or_default()
            }
        };
        list.push(place);
    }

    /// The index in the file of the most specific rule that matches.
    pub fn find_rule(&self, entries: &Entries<'_>) -> Option<usize> {
        let mut best = self.rules.len();
        self.try_list(&self.always, entries, &mut best);
        for (name, value) in entries {
            let Some(lists) = self.by_name.get(*name) else { continue };
            if let Some(list) = lists.literals.get(*value) {
                self.try_list(list, entries, &mut best);
            }
            for (&length, same_length) in lists.prefixes.range(..=value.len()) {
                if let Some(list) = value.get(..length).and_then(|prefix| same_length.get(prefix)) {
                    self.try_list(list, entries, &mut best);
                }
            }
            self.try_list(&lists.any, entries, &mut best);
        }
        self.rules.get(best).map(|rule| rule.position)
    }

    /// Lowers `best` to the first matching rule of a list.
    fn try_list(&self, list: &[usize], entries: &Entries<'_>, best: &mut usize) {
        let better = list.iter().take_while(|place| **place < *best);
        if let Some(&place) = { better }.find(|place| self.rules[**place].matches(entries)) {
            *best = place;
        }
    }
}

// === impl RankedRule ===

impl RankedRule {
    fn matches(&self, entries: &Entries<'_>) -> bool {
        self.exact_count.is_none_or(|count| count == entries.len())
            && self.entries.iter().all(|rule| has_in_order(rule, entries))
    }
}

/// True if the values of the rule occur in the descriptor, in this order.
fn has_in_order(rule: &EntryRule, entries: &Entries<'_>) -> bool {
    let mut values = entries.iter().filter(|(name, _)| *name == rule.name).map(|(_, value)| *value);
    rule.values.iter().all(|pattern| values.any(|value| pattern.accepts(value)))
}

fn patterns_of(rule: &DescriptorRuleConfig) -> impl Iterator<Item = (&str, &ValuePattern)> {
    rule.entries.iter().flat_map(|entry| entry.values.iter().map(|value| (entry.name.as_str(), value)))
}

/// Smaller is stricter: the kind of the pattern, then the length of its prefix.
type PatternRank = (u8, Reverse<usize>);

fn pattern_rank(pattern: &ValuePattern) -> PatternRank {
    match pattern {
        ValuePattern::Literal(_) => (0, Reverse(0)),
        ValuePattern::Prefix(prefix) => (1, Reverse(prefix.len())),
        ValuePattern::Any => (2, Reverse(0)),
    }
}

/// Smaller is more specific: more entries, then each pattern from the strictest on, then no room for other entries.
fn specificity(rule: &DescriptorRuleConfig) -> (Reverse<usize>, Vec<PatternRank>, bool) {
    let mut ranks: Vec<_> = patterns_of(rule).map(|(_, pattern)| pattern_rank(pattern)).collect();
    ranks.sort_unstable();
    (Reverse(rule.entry_count()), ranks, !rule.exact)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_config as config;

    fn rules(yaml: &str) -> DescriptorRules {
        let text = format!(
            "service: {{ listen: 127.0.0.1:1, domains: {{ d: [{yaml}] }} }}\nlimits: {{ l: 1/s }}\nlocations: []\n"
        );
        let loaded = config::parse(&text, "x").unwrap_or_else(|report| panic!("{report}"));
        DescriptorRules::new(&loaded.config.service.expect("a service").domains[0].rules)
    }

    fn find(rules: &DescriptorRules, entries: &[(&str, &str)]) -> Option<usize> {
        rules.find_rule(&entries.iter().copied().collect())
    }

    #[test]
    fn the_most_specific_rule_wins() {
        let found = rules(
            "{ match: { a: \"*\" }, limits: l }, { match: { a: \"x*\" }, limits: l }, \
             { match: { a: \"xy*\" }, limits: l }, { match: { a: xyz }, limits: l }, \
             { match: { a: \"*\", b: \"*\" }, limits: l }, { match: {}, limits: l }, \
             { match: { a: \"*\" }, exact: true, limits: l }, { match: { c: [\"1\", \"*\"] }, limits: l }",
        );
        for (entries, expected) in [
            (vec![("a", "xyz")], Some(3)),
            (vec![("a", "xyzz")], Some(2)),
            (vec![("a", "x")], Some(1)),
            (vec![("a", "q")], Some(6)),
            (vec![("a", "q"), ("c", "1")], Some(0)),
            // More entries come before better values.
            (vec![("a", "xyz"), ("b", "1")], Some(4)),
            (vec![("b", "1"), ("a", "xyz")], Some(4)),
            (vec![("b", "1")], Some(5)),
            (vec![], Some(5)),
            (vec![("c", "1"), ("c", "2")], Some(7)),
            (vec![("c", "2"), ("c", "1")], Some(5)),
            (vec![("c", "1")], Some(5)),
        ] {
            assert_eq!(find(&found, &entries), expected, "{entries:?}");
        }
    }

    #[test]
    fn an_exact_rule_leaves_no_room() {
        let found = rules(
            "{ match: { a: x }, exact: true, limits: l }, { match: { a: [x, x] }, exact: true, limits: l }",
        );
        assert_eq!(find(&found, &[("a", "x")]), Some(0));
        assert_eq!(find(&found, &[("a", "x"), ("a", "x")]), Some(1));
        assert_eq!(find(&found, &[("a", "x"), ("b", "")]), None);
        assert_eq!(find(&found, &[("a", "x"), ("a", "y")]), None);
        assert_eq!(find(&found, &[]), None);
    }

    /// The index must say what a search through all rules says.
    #[test]
    fn the_index_agrees_with_a_search_through_all() {
        let values = ["*", "a*", "ab*", "ab", "b", "ü*"];
        let mut yaml = Vec::new();
        for (x, y) in values.iter().flat_map(|x| values.iter().map(move |y| (x, y))) {
            yaml.push(format!("{{ match: {{ n: \"{x}\", m: \"{y}\" }}, limits: l }}"));
            yaml.push(format!("{{ match: {{ n: [\"{x}\", \"{y}\"] }}, limits: l }}"));
        }
        yaml.extend(values.iter().map(|x| format!("{{ match: {{ n: \"{x}\" }}, exact: true, limits: l }}")));
        let found = rules(&yaml.join(", "));
        let plain = |entries: &Entries<'_>| {
            found.rules.iter().find(|rule| rule.matches(entries)).map(|rule| rule.position)
        };
        let texts = ["", "a", "ab", "abc", "b", "üb"];
        for (x, y) in texts.iter().flat_map(|x| texts.iter().map(move |y| (*x, *y))) {
            for names in [["n", "m"], ["n", "n"], ["m", "n"], ["m", "m"]] {
                let entries: Entries<'_> = [(names[0], x), (names[1], y)].into_iter().collect();
                assert_eq!(found.find_rule(&entries), plain(&entries), "{entries:?}");
            }
            let one: Entries<'_> = [("n", x)].into_iter().collect();
            assert_eq!(found.find_rule(&one), plain(&one), "{one:?}");
        }
    }
}
