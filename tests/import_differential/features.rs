//! The constructs that a random file is made of.

use std::collections::BTreeSet;

use crate::support::Dice;

/// Constructs of which the importer translates most forms.
const COMMON: [&str; 22] = [
    "maps",
    "geo",
    "numbers",
    "delays",
    "connections",
    "nested",
    "regex",
    "access",
    "returns",
    "pages",
    "sets",
    "includes",
    "statuses",
    "dry run",
    "servers",
    "methods",
    "odd paths",
    "forms",
    "prefixes",
    "upstreams",
    "debian",
    "sizes",
];

/// Constructs of which the importer loses many forms.
const LOSSY: [&str; 6] = ["odd maps", "odd keys", "mixed delays", "underscores", "slashes", "doubles"];

/// Constructs that the gateway mostly lacks, so that a file with them is seldom imported whole.
const RARE: [&str; 9] = [
    "satisfy",
    "passwords",
    "asks",
    "conditions",
    "rewrites",
    "regex inside",
    "files",
    "steps",
    "lookarounds",
];

/// What one file may hold.
#[derive(Debug)]
pub struct Features(BTreeSet<&'static str>);

impl Features {
    /// Three of four files have no rare constructs.
    pub fn roll(dice: &mut Dice) -> Features {
        let mut found = BTreeSet::new();
        found.extend(COMMON.iter().filter(|_| dice.one_in(3)));
        found.extend(LOSSY.iter().filter(|_| dice.one_in(10)));
        if dice.one_in(4) {
            found.extend(RARE.iter().filter(|_| dice.one_in(3)));
        }
        Features(found)
    }

    pub fn has(&self, name: &str) -> bool {
        debug_assert!([&COMMON[..], &LOSSY, &RARE].concat().contains(&name), "{name} is no feature");
        self.0.contains(name)
    }
}
