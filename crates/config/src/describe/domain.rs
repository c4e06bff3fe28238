//! The rules of `service.domains` in one line each.

use super::{join_names, shorten};
use sluicegate_model::Config;
use sluicegate_model::domain::{DescriptorRuleConfig, DomainConfig};

/// Rules listed per domain; of further ones only the number.
const RULES_MAX: usize = 20;
/// More names would hide the rest of the line.
const NAMES_MAX: usize = 8;

/// "shop: path=/login, remote_address=* -> per-ip, logins", "shop: vip=yes (nothing else) -> unlimited".
pub fn describe_domains(config: &Config) -> Vec<String> {
    let domains = config.service.iter().flat_map(|service| &service.domains);
    domains.flat_map(|domain| describe_domain(config, domain)).collect()
}

fn describe_domain(config: &Config, domain: &DomainConfig) -> Vec<String> {
    let shown = domain.rules.iter().take(RULES_MAX).map(|rule| describe_rule(config, rule));
    let more = domain.rules.len().saturating_sub(RULES_MAX);
    let more = (more > 0).then(|| format!("{more} more rules"));
    shown.chain(more).map(|text| format!("{}: {text}", shorten(&domain.name))).collect()
}

fn describe_rule(config: &Config, rule: &DescriptorRuleConfig) -> String {
    let patterns = rule
        .entries
        .iter()
        .flat_map(|entry| entry.values.iter().map(|value| shorten(&format!("{}={value}", entry.name))));
    let patterns: Vec<String> = patterns.collect();
    let entries = match patterns.is_empty() {
        true => "every descriptor".to_owned(),
        false => join_names(&patterns, NAMES_MAX),
    };
    let alone = if rule.exact { " (nothing else)" } else { "" };
    let names = rule.limits.iter().filter_map(|limit| Some(config.limits.get(limit.0)?.name.as_str()));
    let limits = match rule.limits.is_empty() {
        true => "unlimited".to_owned(),
        false => join_names(&names.collect::<Vec<_>>(), NAMES_MAX),
    };
    let replaced = match rule.replaces.is_empty() {
        true => String::new(),
        false => format!(", in place of {}", join_names(&rule.replaces, NAMES_MAX)),
    };
    format!("{entries}{alone} -> {limits}{replaced}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate as config;

    #[test]
    fn each_rule_is_a_line() {
        let text = "service: { listen: 127.0.0.1:1, domains: { d: [{ match: { b: \"x*\", a: [1, \"*\"] }, \
                    limits: [l, 2/s], replaces: other }, { match: {}, exact: true, name: other, limits: [] }] } }\n\
                    limits: { l: 1/s }\nlocations: []\n";
        let loaded = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(
            describe_domains(&loaded.config),
            [
                "d: a=1, a=*, b=x* -> l, d[0]#2, in place of other",
                "d: every descriptor (nothing else) -> unlimited"
            ]
        );
    }
}
