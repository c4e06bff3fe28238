//! Reads `service.domains`: the rules for descriptors of Envoy's rate limit service.

use std::collections::{HashMap, HashSet};

use super::limits::LimitReader;
use crate::schema::tables::service::{domain_rule, service};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_model::{
    DescriptorRuleConfig, DomainConfig, EntryRule, ValueError, ValuePattern, codes, did_you_mean,
};

/// The most rules of all domains.
const RULES_MAX: usize = 10_000;
/// The most entries of one rule; a call may have no more of them either.
const ENTRIES_MAX: usize = 64;

/// Reads the domains of the service; their inline limits are added to `limits`.
pub(crate) fn read_domains(
    service_fields: &FieldReader<'_>,
    limits: &mut LimitReader<'_>,
) -> Vec<DomainConfig> {
    let Some(value) = service_fields.find(&service::DOMAINS) else { return Vec::new() };
    let mut domains = Vec::new();
    let mut count = 0;
    for (key, rules) in value.entries() {
        if key.name.is_empty() {
            let help = "calls without a domain are refused: write the one of Envoy";
            rules.refuse_name(codes::NAME, "the name of the domain is empty", help);
        }
        let items = match rules.node.content {
            NodeContent::List(_) | NodeContent::Null | NodeContent::Invalid => rules.one_or_more(),
            _ => {
                rules.report_shape("a list, one `- match: …` for each rule");
                continue;
            }
        };
        count += items.len();
        if count > RULES_MAX {
            let message = format!("the domains have more than {RULES_MAX} rules");
            let help = "one rule with \"*\" counts each value apart: give the limit the key header:NAME";
            rules.refuse_name(codes::NUMBER, message, help);
            break;
        }
        domains.push(read_domain(&key.name, &items, limits));
    }
    domains
}

fn read_domain(name: &str, items: &[FieldValue<'_>], limits: &mut LimitReader<'_>) -> DomainConfig {
    let mut rules: Vec<DescriptorRuleConfig> = Vec::new();
    let mut seen: HashMap<(Vec<EntryRule>, bool), usize> = HashMap::new();
    let mut replacing = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let form = "a mapping such as { match: { path: /api/ }, limits: per-ip }";
        let Some(fields) = item.open_map(&domain_rule::SECTION, form) else { continue };
        let rule = fields.read_all(|fields| {
            replacing.extend(fields.find(&domain_rule::REPLACES));
            read_rule(fields, &format!("{name}[{index}]"), limits)
        });
        let Some(rule) = rule else { continue };
        match seen.get(&(rule.entries.clone(), rule.exact)) {
            Some(line) => {
                let message = format!("the rule in line {line} of this domain matches the same descriptors");
                let help = "remove one of them, or write the limits of both in one";
                item.refuse(codes::NAME, message, help);
            }
            None => {
                seen.insert((rule.entries.clone(), rule.exact), item.node.position.line);
            }
        }
        rules.push(rule);
    }
    let names: HashSet<&str> = rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
    for replaced in replacing.iter().flat_map(FieldValue::one_or_more) {
        check_replaced(&replaced, &names);
    }
    DomainConfig { name: name.to_owned(), rules }
}

/// Warns of a rule that cannot be replaced because it does not exist.
fn check_replaced(value: &FieldValue<'_>, names: &HashSet<&str>) {
    let Some(name) = value.as_text().filter(|name| !names.contains(name)) else { return };
    let message = format!("no rule of this domain has the name `{}`", value.written_text());
    let help = did_you_mean(name, names.iter().copied());
    let error = ValueError::new(codes::NO_EFFECT, message).with_optional_help(help);
    let error = error.with_default_help("write name: beside the match of the rule that is replaced");
    value.warn_at(error);
}

fn read_rule(
    fields: &FieldReader<'_>,
    place: &str,
    limits: &mut LimitReader<'_>,
) -> Option<DescriptorRuleConfig> {
    let entries = fields.find_required(&domain_rule::MATCH).and_then(|value| read_entries(&value));
    let exact = fields.read(&domain_rule::EXACT);
    let name = fields.read(&domain_rule::NAME);
    let replaces = fields.read_list_or_word(&domain_rule::REPLACES);
    if let (Some(name), Some(value)) = (&name, fields.find(&domain_rule::REPLACES))
        && replaces.contains(name)
    {
        let help = "name the rule that is not applied when this one matches, too";
        value.refuse(codes::NAME, "a rule cannot replace itself", help);
    }
    let owner = name.as_ref().map_or_else(|| place.to_owned(), |name| format!("{place}.{name}"));
    let chain = fields.find_required(&domain_rule::LIMITS);
    let chain_value = chain.as_ref().filter(|value| !value.is_null());
    let chain = chain_value.map(|value| limits.read_chain(value, &owner)).unwrap_or_default();
    if let Some(value) = chain_value {
        limits.refuse_for_calls(&chain, value);
    }
    let entries = entries?;
    Some(DescriptorRuleConfig { entries, exact, name, replaces, limits: chain.limits, views: chain.views })
}

/// The entries of a match, sorted by their names.
fn read_entries(value: &FieldValue<'_>) -> Option<Vec<EntryRule>> {
    if !value.is_map() {
        value.report_shape("a mapping such as { remote_address: \"*\", path: /api/ }");
        return None;
    }
    let mut entries = Vec::new();
    for (key, patterns) in value.entries() {
        if key.name.is_empty() {
            patterns.report_at_name(ValueError::new(codes::NAME, "the name of the entry is empty"));
        }
        let values = patterns.parse_list(|text| Ok(parse_pattern(text)));
        if values.is_empty() {
            patterns.report_empty("write the value, or \"*\" for any");
        }
        entries.push(EntryRule { name: key.name.clone(), values });
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let count: usize = entries.iter().map(|entry| entry.values.len()).sum();
    if count > ENTRIES_MAX {
        let message = format!("the rule matches {count} entries, and a descriptor has at most {ENTRIES_MAX}");
        value.report_at_name(ValueError::new(codes::NUMBER, message));
    }
    Some(entries)
}

fn parse_pattern(text: &str) -> ValuePattern {
    match text.strip_suffix('*') {
        Some("") => ValuePattern::Any,
        Some(prefix) => ValuePattern::Prefix(prefix.to_owned()),
        None => ValuePattern::Literal(text.to_owned()),
    }
}
