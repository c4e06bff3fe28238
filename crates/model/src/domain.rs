//! The typed model of `service.domains`: the limits for the descriptors of Envoy's rate limit service.

use super::id::{LimitId, ViewId};

/// The rules of one domain.
#[derive(Debug, Clone)]
pub struct DomainConfig {
    pub name: String,
    pub rules: Vec<DescriptorRuleConfig>,
}

/// One rule: the descriptors that it matches, and their limits.
#[derive(Debug, Clone)]
pub struct DescriptorRuleConfig {
    /// Every one of them must be in the descriptor; sorted by their names.
    pub entries: Vec<EntryRule>,
    /// The descriptor has no other entries.
    pub exact: bool,
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
    pub name: String,
    /// Usually one; several are values of an entry that occurs several times, in their order.
    pub values: Vec<ValuePattern>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValuePattern {
    /// `*`
    Any,
    /// `prefix*`, without its asterisk.
    Prefix(String),
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
    #[inline]
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
