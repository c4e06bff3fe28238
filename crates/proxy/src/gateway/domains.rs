//! The live form of `service.domains`: the rules of each domain with their chains.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderName;
use parking_lot::RwLock;
use smallvec::SmallVec;

use super::limit_chain::BuiltLimits;
use super::{Gateway, LimitChain};
use sluicegate_http::request::descriptor::{DescriptorRules, Entries};
use sluicegate_model::{Config, Cost, DescriptorRuleConfig, DomainConfig, KeyPart, LimitConfig, ValueSource};

/// The most chains of rules that are kept for calls with several descriptors.
const COMBINATIONS_MAX: usize = 1_024;

/// The domains of a gateway, by their names.
#[derive(Default)]
pub struct Domains(HashMap<String, Domain>);

/// One domain with its rules.
pub struct Domain {
    /// Index in [`Config::service`].
    index: usize,
    finder: DescriptorRules,
    /// The rules in file order.
    rules: Vec<DomainRule>,
    /// The chains of several rules, by their positions.
    combinations: RwLock<HashMap<RuleList, Arc<LimitChain>>>,
}

/// The rules of the descriptors of a call that have limits, in the order of the descriptors.
pub type RuleList = SmallVec<[u16; 6]>;

/// One rule of a domain.
pub struct DomainRule {
    /// The limits of the rule.
    pub chain: Arc<LimitChain>,
    /// The entries that its limits, the account and the tier read as headers.
    pub read_headers: Box<[HeaderName]>,
    /// The rules that are not applied beside it.
    pub replaces: Box<[u16]>,
}

// === impl Domains ===

impl Domains {
    pub(super) fn new(built: BuiltLimits<'_>) -> Domains {
        let domains = built.config.service.iter().flat_map(|service| &service.domains).enumerate();
        let build = |(index, domain): (usize, &DomainConfig)| {
            (domain.name.clone(), Domain::new(built, index, domain))
        };
        Domains(domains.map(build).collect())
    }

    /// The domain with this name; `None` = it is not configured.
    pub fn find(&self, name: &str) -> Option<&Domain> {
        self.0.get(name)
    }
}

// === impl Domain ===

impl Domain {
    fn new(built: BuiltLimits<'_>, index: usize, domain: &DomainConfig) -> Domain {
        let build = |rule: &DescriptorRuleConfig| {
            let is_replaced = |other: &DescriptorRuleConfig| {
                other.name.as_ref().is_some_and(|name| rule.replaces.contains(name))
            };
            let replaced = domain.rules.iter().enumerate().filter(|(_, other)| is_replaced(other));
            DomainRule {
                chain: Arc::new(LimitChain::for_rules(built, std::iter::once(rule))),
                read_headers: header_names(built.config, rule).into(),
                // At most 10,000 rules are in a file.
                replaces: match rule.replaces.is_empty() {
                    true => Box::default(),
                    false => replaced.map(|(position, _)| position as u16).collect(),
                },
            }
        };
        Domain {
            index,
            finder: DescriptorRules::new(&domain.rules),
            rules: domain.rules.iter().map(build).collect(),
            combinations: RwLock::default(),
        }
    }

    /// The position of the rule for a descriptor.
    pub fn find_rule(&self, entries: &Entries<'_>) -> Option<u16> {
        self.finder.find_rule(entries).map(|position| position as u16)
    }

    /// The rule at a position that [`Domain::find_rule`] returned.
    pub fn rule(&self, position: u16) -> &DomainRule {
        &self.rules[usize::from(position)]
    }

    /// The chain of several rules: the limits of the first, then those of the second, and so on.
    pub fn chain_of(&self, gateway: &Gateway, list: &RuleList) -> Arc<LimitChain> {
        if let [only] = list[..] {
            return self.rule(only).chain.clone();
        }
        if let Some(known) = self.combinations.read().get(list) {
            return known.clone();
        }
        let configs = gateway.config.service.iter().flat_map(|service| service.domains.get(self.index));
        let rules = configs.flat_map(|domain| list.iter().map(|&rule| &domain.rules[usize::from(rule)]));
        let built = BuiltLimits { config: &gateway.config, limits: &gateway.limits, shared: &gateway.shared };
        let chain = Arc::new(LimitChain::for_rules(built, rules));
        let mut combinations = self.combinations.write();
        if combinations.len() >= COMBINATIONS_MAX {
            combinations.clear();
        }
        combinations.insert(list.clone(), chain.clone());
        chain
    }
}

/// The names of headers that limits of the rule, the account and the tier are read from.
fn header_names(config: &Config, rule: &DescriptorRuleConfig) -> Vec<HeaderName> {
    let mut names: Vec<HeaderName> = Vec::new();
    let mut add = |source: &ValueSource| {
        if let ValueSource::Header(name) = source
            && !names.contains(name)
        {
            names.push(name.clone());
        }
    };
    config.account.from.iter().chain(&config.account.tier.from).for_each(&mut add);
    let limits = config.with_shadows(&rule.limits).map(|limit| &config.limits[limit]);
    limits.for_each(|limit| sources_of(limit).for_each(|source| add(&source)));
    names
}

fn sources_of(limit: &LimitConfig) -> impl Iterator<Item = ValueSource> {
    let parts = limit.parts().filter_map(|part| match part {
        KeyPart::Source(source) => Some(source.clone()),
        _ => None,
    });
    let cost = match &limit.cost {
        Cost::Header { name, .. } => Some(ValueSource::Header(name.clone())),
        _ => None,
    };
    parts.chain(cost)
}
