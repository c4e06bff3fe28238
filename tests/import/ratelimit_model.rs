//! A model of how envoyproxy/ratelimit finds limits and counts (`GetLimit` in src/config/config_impl.go, and
//! `GenerateCacheKey` in src/limiter/cache_key.go), and random files for it.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::random_site::Dice;

/// One level of a descriptor in a file.
#[derive(Debug, Default)]
pub struct ModelNode {
    key: String,
    value: Option<String>,
    share_threshold: bool,
    shadow_mode: bool,
    limit: Option<ModelLimit>,
    children: Vec<ModelNode>,
    /// In the written file.
    pub line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelLimit {
    Unlimited,
    /// Requests in a year of 365 days, so that no window ends during a test. Every limit of a file has a number of its
    /// own, unless it is 0.
    PerYear(u32),
}

/// What a descriptor finds.
#[derive(Debug, PartialEq, Eq)]
pub struct FoundLimit {
    pub limit: ModelLimit,
    pub shadow_mode: bool,
    /// The name of its counter, without the window.
    pub counter: String,
}

pub type Descriptor = Vec<(&'static str, &'static str)>;

/// The tree of a domain.
#[derive(Debug, Default)]
pub struct ModelTree {
    pub children: Vec<ModelNode>,
}

/// The keys of each level. No order of keys is one of another order, which the gateway does not tell apart.
const KEYS: [&[&str]; 3] = [&["a", "b"], &["a", "c", "d"], &["a", "e"]];
const PATTERNS: [Option<&str>; 9] =
    [None, None, Some("*"), Some("x*"), Some("xy*"), Some("x"), Some("xy"), Some("xyz"), Some("y")];
const VALUES: [&str; 7] = ["x", "xy", "xyz", "xyzz", "y", "z", ""];

impl ModelTree {
    pub fn random(dice: &mut Dice, numbers_max: u32) -> ModelTree {
        let mut numbers = 0..numbers_max;
        ModelTree { children: random_level(dice, 0, &mut numbers) }
    }

    /// The file; the lines of its descriptors are set.
    pub fn write(&mut self, domain: &str) -> String {
        let mut text = format!("domain: {domain}\ndescriptors:\n");
        write_level(&mut self.children, 1, &mut text);
        text
    }

    /// The limit that a descriptor finds.
    pub fn find(&self, descriptor: &Descriptor) -> Option<FoundLimit> {
        let (mut level, mut counter) = (&self.children, String::new());
        for (index, (key, value)) in descriptor.iter().enumerate() {
            let by_text: HashMap<String, &ModelNode> =
                level.iter().map(|node| (node.composite(), node)).collect();
            let composite = format!("{key}_{value}");
            let has_asterisk = |node: &&ModelNode| node.composite().ends_with('*');
            let wildcard = || {
                level
                    .iter()
                    .filter(has_asterisk)
                    .find(|node| composite.starts_with(node.composite().trim_end_matches('*')))
            };
            let node =
                by_text.get(&composite).copied().or_else(wildcard).or_else(|| by_text.get(*key).copied())?;
            let counted = match &node.value {
                Some(pattern) if node.share_threshold && pattern.ends_with('*') => pattern,
                _ => *value,
            };
            write!(counter, "{key}_{counted}_").expect("a String");
            if index + 1 == descriptor.len() {
                let limit = node.limit?;
                return Some(FoundLimit { limit, shadow_mode: node.shadow_mode, counter });
            }
            level = &node.children;
        }
        None
    }

    /// Every node with a limit.
    pub fn limited(&self) -> Vec<&ModelNode> {
        fn collect<'n>(level: &'n [ModelNode], found: &mut Vec<&'n ModelNode>) {
            for node in level {
                found.extend(node.limit.is_some().then_some(node));
                collect(&node.children, found);
            }
        }
        let mut found = Vec::new();
        collect(&self.children, &mut found);
        found
    }
}

impl ModelNode {
    fn composite(&self) -> String {
        self.value.as_ref().map_or_else(|| self.key.clone(), |value| format!("{}_{value}", self.key))
    }
}

pub fn random_descriptor(dice: &mut Dice) -> Descriptor {
    let depth = 1 + dice.below(3) as usize;
    let pick = |dice: &mut Dice, from: &[&'static str]| from[dice.below(from.len() as u64) as usize];
    KEYS[..depth].iter().map(|keys| (pick(dice, keys), pick(dice, &VALUES))).collect()
}

fn random_level(dice: &mut Dice, depth: usize, numbers: &mut std::ops::Range<u32>) -> Vec<ModelNode> {
    let mut level: Vec<ModelNode> = Vec::new();
    let count = [2 + dice.below(6), dice.below(5), dice.below(4)][depth];
    for _ in 0..count {
        let key = KEYS[depth][dice.below(KEYS[depth].len() as u64) as usize].to_owned();
        let value = PATTERNS[dice.below(PATTERNS.len() as u64) as usize].map(str::to_owned);
        let mut node = ModelNode { key, value, ..ModelNode::default() };
        if level.iter().any(|other| other.composite() == node.composite()) {
            continue;
        }
        let has_asterisk = node.value.as_ref().is_some_and(|value| value.ends_with('*'));
        node.share_threshold = has_asterisk && dice.one_in(3);
        node.shadow_mode = dice.one_in(6);
        node.limit = match dice.below(8) {
            0 | 1 => None,
            2 => Some(ModelLimit::Unlimited),
            3 if dice.one_in(2) => Some(ModelLimit::PerYear(0)),
            _ => numbers.next().map(|number| ModelLimit::PerYear(number + 1)),
        };
        if depth < 2 {
            node.children = random_level(dice, depth + 1, numbers);
        }
        level.push(node);
    }
    level
}

fn write_level(level: &mut [ModelNode], depth: usize, text: &mut String) {
    let indent = "    ".repeat(depth);
    for node in level {
        node.line = text.lines().count() + 1;
        writeln!(text, "{indent}- key: {}", node.key).expect("a String");
        if let Some(value) = &node.value {
            writeln!(text, "{indent}  value: \"{value}\"").expect("a String");
        }
        for (name, is_set) in [("share_threshold", node.share_threshold), ("shadow_mode", node.shadow_mode)] {
            if is_set {
                writeln!(text, "{indent}  {name}: true").expect("a String");
            }
        }
        match node.limit {
            None => {}
            Some(ModelLimit::Unlimited) => {
                writeln!(text, "{indent}  rate_limit: {{ unlimited: true }}").expect("a String");
            }
            Some(ModelLimit::PerYear(number)) => {
                writeln!(text, "{indent}  rate_limit: {{ unit: year, requests_per_unit: {number} }}")
                    .expect("a String");
            }
        }
        if !node.children.is_empty() {
            writeln!(text, "{indent}  descriptors:").expect("a String");
            write_level(&mut node.children, depth + 1, text);
        }
    }
}
