//! The descriptors of a domain, as a file of envoyproxy/ratelimit nests them.

use std::fmt;

use crate::ImportedLine;

/// A domain with its tree of descriptors.
#[derive(Debug)]
pub(super) struct ImportedDomain {
    pub name: String,
    pub at: ImportedLine,
    pub descriptors: Vec<ImportedDescriptor>,
}

/// One level of a descriptor: an entry, perhaps with a limit, and the entries that may follow it.
#[derive(Debug)]
pub(super) struct ImportedDescriptor {
    pub at: ImportedLine,
    pub key: String,
    pub pattern: EntryPattern,
    /// An entry without a value, so that siblings with a value come first.
    pub is_default: bool,
    /// All values of a prefix share one counter.
    pub share_threshold: bool,
    pub shadow_mode: bool,
    pub quota_mode: bool,
    pub limit: Option<ImportedRate>,
    pub children: Vec<ImportedDescriptor>,
}

/// The values of an entry that a descriptor stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum EntryPattern {
    /// No value, or `*`.
    Any,
    /// `prefix*`, without the asterisk.
    Prefix(String),
    Value(String),
    /// An asterisk in another place than the end, as it is written.
    Scattered(String),
}

/// A `rate_limit`.
#[derive(Debug)]
pub(super) struct ImportedRate {
    pub name: Option<String>,
    pub replaces: Vec<String>,
    /// `None` = unlimited.
    pub numbers: Option<CallsPerWindow>,
}

/// Calls in each window of so many units.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallsPerWindow {
    pub requests: u32,
    pub unit: &'static WindowUnit,
    pub units: u32,
}

/// A unit of envoyproxy/ratelimit: its name, and the letter of a rate of gateway.yaml, so many of which it is.
type WindowUnit = (&'static str, &'static str, u32);

// === impl EntryPattern ===

impl EntryPattern {
    /// True if every value of `other` is one of these.
    pub(super) fn covers(&self, other: &EntryPattern) -> bool {
        match (self, other) {
            (EntryPattern::Any, _) => true,
            (EntryPattern::Prefix(prefix), EntryPattern::Prefix(text) | EntryPattern::Value(text)) => {
                text.starts_with(prefix.as_str())
            }
            (EntryPattern::Value(one), EntryPattern::Value(two)) => one == two,
            _ => false,
        }
    }

    /// True if the values are counted apart unless they share a threshold.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self, EntryPattern::Value(_))
    }

    /// The value as gateway.yaml writes it.
    pub(super) fn write(&self) -> String {
        match self {
            EntryPattern::Any => "*".to_owned(),
            EntryPattern::Prefix(prefix) => format!("{prefix}*"),
            EntryPattern::Value(value) | EntryPattern::Scattered(value) => value.clone(),
        }
    }
}

// === impl ImportedDescriptor ===

impl ImportedDescriptor {
    /// The entry as the report shows it.
    pub(super) fn show(&self) -> String {
        match &self.pattern {
            EntryPattern::Any => self.key.clone(),
            pattern => format!("{}={}", self.key, pattern.write()),
        }
    }
}

/// A month has 30 days and a year 365, as in `UnitToDivider` of envoyproxy/ratelimit.
static UNITS: [WindowUnit; 7] = [
    ("second", "s", 1),
    ("minute", "m", 1),
    ("hour", "h", 1),
    ("day", "d", 1),
    ("week", "d", 7),
    ("month", "d", 30),
    ("year", "d", 365),
];

/// The unit of a name in any case.
pub(super) fn parse_unit(name: &str) -> Option<&'static WindowUnit> {
    UNITS.iter().find(|(unit, ..)| unit.eq_ignore_ascii_case(name))
}

// === impl CallsPerWindow ===

impl CallsPerWindow {
    /// The rate of gateway.yaml, of at least one request.
    pub(super) fn write_rate(&self) -> String {
        let (_, letter, times) = self.unit;
        let requests = self.requests.max(1);
        match u64::from(*times) * u64::from(self.units) {
            1 => format!("{requests}/{letter}"),
            count => format!("{requests}/{count}{letter}"),
        }
    }
}

impl fmt::Display for CallsPerWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, ..) = self.unit;
        match self.units {
            1 => write!(f, "{} per {name}", self.requests),
            units => write!(f, "{} per {units} {name}s", self.requests),
        }
    }
}
