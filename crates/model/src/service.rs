//! The typed model of the rate-limit service and of its domains: the limits for the descriptors of Envoy's service.

use std::time::Duration;

use super::id::{LimitId, ViewId};
use crate::listen::ListenConfig;
use crate::value::scalars::Secret;

/// The time of a lease if its call names none.
pub const LEASE_TIME: Duration = Duration::from_secs(10);
/// The longest time of a lease; a holder that needs more renews it.
pub const LEASE_TIME_MAX: Duration = Duration::from_secs(3_600);

/// The service has one listener or more, of either kind.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Listeners for HTTP; each is for [`ListenerPurpose::Calls`](super::listen::ListenerPurpose).
    pub listen: Vec<ListenConfig>,
    /// Listeners for the protocol of Redis; each is for [`ListenerPurpose::Resp`](super::listen::ListenerPurpose).
    pub resp: Vec<ListenConfig>,
    /// Any of them opens the service. Empty = callers need none.
    pub tokens: Vec<Secret>,
    /// The order is that of the file; each name occurs once.
    pub domains: Vec<DomainConfig>,
}

/// The rules of one domain.
#[derive(Debug, Clone)]
pub struct DomainConfig {
    /// The name of the domain; unique.
    pub name: String,
    /// The rules in the order of the file; the most specific one that matches gives a descriptor its limits.
    pub rules: Vec<DescriptorRuleConfig>,
}

/// One rule: the descriptors that it matches, and their limits.
#[derive(Debug, Clone)]
pub struct DescriptorRuleConfig {
    /// Every one of them must be in the descriptor; sorted by their names.
    pub entries: Vec<EntryRule>,
    /// The descriptor has no other entries.
    pub exact: bool,
    /// The name that `replaces` of other rules refers to; `None` = none.
    pub name: Option<String>,
    /// Names of rules that are not applied when this one matches another descriptor of the same call.
    pub replaces: Vec<String>,
    /// Indices into [`super::Config::limits`]; empty = unlimited.
    pub limits: Vec<LimitId>,
    /// The limits of this chain that are used with other numbers.
    pub views: Vec<(LimitId, ViewId)>,
}

/// The values that a rule accepts for an entry of one name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryRule {
    /// The name of the entry.
    pub name: String,
    /// Usually one; several are values of an entry that occurs several times, in their order.
    pub values: Vec<ValuePattern>,
}

/// The values that match an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValuePattern {
    /// `*`
    Any,
    /// `prefix*`, without its asterisk.
    Prefix(String),
    /// This value alone.
    Literal(String),
}

// === impl DescriptorRuleConfig ===

impl DescriptorRuleConfig {
    /// The number of entries that the rule needs.
    pub fn entry_count(&self) -> usize {
        self.entries.iter().map(|entry| entry.values.len()).sum()
    }
}

// === impl ValuePattern ===

impl ValuePattern {
    /// True if the pattern matches this value.
    pub fn accepts(&self, value: &str) -> bool {
        match self {
            ValuePattern::Any => true,
            ValuePattern::Prefix(prefix) => value.starts_with(prefix.as_str()),
            ValuePattern::Literal(literal) => value == literal,
        }
    }
}

impl std::fmt::Display for ValuePattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ValuePattern::Any => f.write_str("*"),
            ValuePattern::Prefix(prefix) => write!(f, "{prefix}*"),
            ValuePattern::Literal(literal) => f.write_str(literal),
        }
    }
}
