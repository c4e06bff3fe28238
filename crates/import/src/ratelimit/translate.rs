//! Writes the limits and rules of a domain, with a finding about each descriptor.

use std::collections::{HashMap, HashSet};

use http::HeaderName;

use super::descriptor::{ImportedDescriptor, ImportedDomain};
use super::rules::{DomainRules, TreeRule};
use super::tree::note_joined;
use crate::gateway_file::{DomainPlan, DomainRulePlan, GatewayFile, NamedLimitPlan, PlannedField};
use crate::yaml_text::{clean_name, one_or_list, quote};
use crate::{FindingKind, ImportReport, ImportedLine};

/// Writes domains one after the other; the names of their limits are unique in the file.
pub(super) struct DomainWriter<'w> {
    file: &'w mut GatewayFile,
    report: &'w mut ImportReport,
    used: HashSet<String>,
    /// The next number for a name that is used already.
    numbers: HashMap<String, usize>,
}

/// A name may have 64 characters; some stay free for a number.
const NAME_LENGTH_MAX: usize = 58;

impl<'w> DomainWriter<'w> {
    pub(super) fn new(file: &'w mut GatewayFile, report: &'w mut ImportReport) -> DomainWriter<'w> {
        DomainWriter { file, report, used: HashSet::new(), numbers: HashMap::new() }
    }

    /// Adds the limits of a domain to the file and returns its rules; `rules` are those of `domain`.
    pub(super) fn add_domain(&mut self, domain: &ImportedDomain, mut rules: DomainRules<'_>) -> DomainPlan {
        note_joined(&domain.descriptors, self.report);
        note_unmatched(&rules, self.report);
        note_orders(&mut rules, self.report);
        let mut limits: HashMap<usize, Vec<String>> = HashMap::new();
        let mut plan = DomainPlan { name: domain.name.clone(), source: domain.at.clone(), rules: Vec::new() };
        // The names that `replaces` may use.
        let name_of =
            |rule: &TreeRule<'_>| rules.tree.nodes[rule.limit?].descriptor.limit.as_ref()?.name.as_deref();
        let named: HashSet<&str> = rules.rules.iter().filter_map(name_of).collect();
        for rule in &rules.rules {
            if let Some(node) = rule.limit {
                let add = || self.add_limit(&domain.name, &rules.tree.path(node), &named);
                limits.entry(node).or_insert_with(add);
            }
            let mut entries: Vec<(String, Vec<String>)> = Vec::new();
            for entry in &rule.entries {
                match entries.iter_mut().find(|(key, _)| key == entry.key) {
                    Some((_, values)) => values.push(entry.pattern.write()),
                    None => entries.push((entry.key.to_owned(), vec![entry.pattern.write()])),
                }
            }
            let source = line_of(&rules, rule).cloned();
            let mut planned = DomainRulePlan { entries, source, ..DomainRulePlan::default() };
            match rule.limit {
                None => planned.note = "no limit is found here".to_owned(),
                Some(node) => {
                    planned.limits = limits.get(&node).cloned().unwrap_or_default();
                    if let Some(rate) = &rules.tree.nodes[node].descriptor.limit {
                        planned.name = rate.name.as_deref().map(write_rule_name);
                        let known = rate.replaces.iter().filter(|name| named.contains(name.as_str()));
                        planned.replaces = known.map(|name| write_rule_name(name)).collect();
                    }
                }
            }
            plan.rules.push(planned);
        }
        let says = format!("{} rules", plan.rules.len());
        self.report.exact(&domain.at, &format!("domain {}", domain.name), says);
        plan
    }

    /// Adds the limit at the end of a path; returns the chain of its rule, which is empty if it is unlimited.
    fn add_limit(
        &mut self,
        domain: &str,
        path: &[&ImportedDescriptor],
        named: &HashSet<&str>,
    ) -> Vec<String> {
        let Some((descriptor, rate)) = path.last().and_then(|last| Some((last, last.limit.as_ref()?))) else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        for name in rate.replaces.iter().filter(|name| !named.contains(name.as_str())) {
            notes.push(format!("no limit of the domain has the name `{name}` that it replaces"));
        }
        let Some(numbers) = rate.numbers else {
            tell(descriptor, "no limit", notes, self.report);
            return Vec::new();
        };
        let key = match write_key(path, &mut notes) {
            Ok(key) => key,
            Err(lost) => {
                self.report.loses(&descriptor.at, &show_limit(descriptor), lost);
                return Vec::new();
            }
        };
        let name = self.choose_name(domain, path);
        let mut fields = vec![
            PlannedField::plain("algorithm", "fixed_window"),
            PlannedField::plain("align", "clock"),
            PlannedField::plain("rate", numbers.write_rate()),
        ];
        if numbers.requests == 0 {
            let note = "no call has it, so that each is refused";
            fields.push(PlannedField::new("key", write_absent_key(path), note));
            fields.push(PlannedField::plain("missing_key", "reject"));
            notes.push(
                "no request passes in a window: the limit refuses every call because it lacks the key"
                    .to_owned(),
            );
        } else {
            fields.push(PlannedField::plain("key", key));
        }
        if descriptor.shadow_mode {
            fields.push(PlannedField::plain("dry_run", "true"));
        }
        if descriptor.quota_mode && !descriptor.shadow_mode {
            let says = "a call is refused as soon as this limit is over; \
                    in quota mode only if all such limits of the call are";
            notes.push(says.to_owned());
        }
        self.file.limits.push(NamedLimitPlan { name: name.clone(), fields, source: descriptor.at.clone() });
        tell(descriptor, &format!("limit {name}"), notes, self.report);
        vec![name]
    }

    /// The name of the statistics of envoyproxy/ratelimit, `domain.key_value.key`, in characters that a name may have.
    fn choose_name(&mut self, domain: &str, path: &[&ImportedDescriptor]) -> String {
        let mut base = clean_name(domain);
        for descriptor in path {
            let value = descriptor.pattern.write();
            let value = value.trim_end_matches('*');
            base.push('.');
            base.push_str(&clean_name(&descriptor.key));
            if !value.is_empty() {
                base.push('_');
                base.push_str(&clean_name(value));
            }
        }
        base.truncate(NAME_LENGTH_MAX);
        if self.used.insert(base.clone()) {
            return base;
        }
        let number = self.numbers.entry(base.clone()).or_insert(1);
        loop {
            *number += 1;
            let name = format!("{base}-{number}");
            if self.used.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// Findings of the descriptors for which there is no rule.
fn note_unmatched(rules: &DomainRules<'_>, report: &mut ImportReport) {
    for node in &rules.tree.nodes {
        let descriptor = node.descriptor;
        match (&descriptor.limit, node.is_lost) {
            (Some(_), true) => {
                let says = "the gateway matches values, `prefix*` and `*`, and no other asterisks";
                report.loses(&descriptor.at, &show_limit(descriptor), says);
            }
            (None, _) if descriptor.children.is_empty() => {
                report.exact(&descriptor.at, &descriptor.show(), "has no limit");
            }
            _ => {}
        }
    }
    for &(node, found) in &rules.hidden {
        let descriptor = rules.tree.nodes[node].descriptor;
        let says = match found.map(|found| &rules.tree.nodes[found].descriptor.at) {
            Some(at) => {
                format!("left out: envoyproxy/ratelimit never finds it, because line {} comes first", at.line)
            }
            None => "left out: envoyproxy/ratelimit never finds it".to_owned(),
        };
        report.exact(&descriptor.at, &show_limit(descriptor), says);
    }
}

/// Descriptors that differ in the order of their entries alone.
fn note_orders(rules: &mut DomainRules<'_>, report: &mut ImportReport) {
    let reordered = rules.take_reordered();
    let reordered = reordered.iter().map(|(rule, earlier)| (rule, *earlier, true));
    let others = rules.find_other_orders().into_iter();
    let others = others.map(|(rule, earlier)| (&rules.rules[rule], earlier, false));
    for (rule, earlier, is_taken_out) in reordered.chain(others) {
        let Some(node) = rule.limit else { continue };
        let descriptor = rules.tree.nodes[node].descriptor;
        let line = line_of(rules, &rules.rules[earlier]).map_or(0, |at| at.line);
        let (kind, says) = match is_taken_out {
            true => (FindingKind::Lost, format!(", and line {line} has the same in another order")),
            false => (
                FindingKind::Difference,
                format!(": the most specific rule of this one and line {line} wins"),
            ),
        };
        let says = format!("the order of entries is not judged{says}");
        report.add(kind, &descriptor.at, &show_limit(descriptor), says);
    }
}

/// The line of the node that a rule finds.
fn line_of<'d>(rules: &DomainRules<'d>, rule: &TreeRule<'d>) -> Option<&'d ImportedLine> {
    Some(&rules.tree.nodes[rule.found?].descriptor.at)
}

/// `none` is a word of the file.
fn write_rule_name(name: &str) -> String {
    if name == "none" { "none-".to_owned() } else { name.to_owned() }
}

fn tell(descriptor: &ImportedDescriptor, becomes: &str, notes: Vec<String>, report: &mut ImportReport) {
    let shown = show_limit(descriptor);
    if notes.is_empty() {
        report.exact(&descriptor.at, &shown, becomes);
    }
    for note in notes {
        report.differs(&descriptor.at, &shown, format!("{becomes}: {note}"));
    }
}

/// The parts of the key: each entry with values that are counted apart.
///
/// # Errors
/// The obstacle to that.
fn write_key(path: &[&ImportedDescriptor], notes: &mut Vec<String>) -> Result<String, String> {
    let mut parts: Vec<String> = Vec::new();
    let counts_apart =
        |descriptor: &&&ImportedDescriptor| descriptor.pattern.is_open() && !descriptor.share_threshold;
    for descriptor in path.iter().filter(counts_apart) {
        let key = &descriptor.key;
        if HeaderName::from_bytes(key.as_bytes()).is_err() {
            return Err(format!(
                "the values of `{key}` cannot be counted apart: it is not the name of a header"
            ));
        }
        let part = quote(&format!("header:{}", key.to_ascii_lowercase()));
        let same_key = || path.iter().filter(|other| other.key.eq_ignore_ascii_case(key));
        if same_key().any(|other| other.share_threshold) {
            notes.push(format!(
                "all values of `{key}` share one counter, because one entry of this name shares it"
            ));
            continue;
        }
        if same_key().count() > 1 && !parts.contains(&part) {
            notes.push(format!(
                "the values of several `{key}` are joined by commas, so that such with commas may meet"
            ));
        }
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    Ok(if parts.is_empty() { "global".to_owned() } else { one_or_list(&parts) })
}

/// A header that stands in none of the entries.
fn write_absent_key(path: &[&ImportedDescriptor]) -> String {
    let is_free = |name: &String| path.iter().all(|descriptor| !descriptor.key.eq_ignore_ascii_case(name));
    let numbered = (0..).map(|number: usize| format!("never-{number}"));
    let name = std::iter::once("never".to_owned()).chain(numbered).find(is_free);
    quote(&format!("header:{}", name.unwrap_or_default()))
}

/// The descriptor and its numbers, as the report shows them.
fn show_limit(descriptor: &ImportedDescriptor) -> String {
    let entry = descriptor.show();
    match descriptor.limit.as_ref().map(|rate| rate.numbers) {
        Some(Some(numbers)) => format!("{entry}: {numbers}{}", show_modes(descriptor)),
        Some(None) => format!("{entry}: unlimited"),
        None => entry,
    }
}

fn show_modes(descriptor: &ImportedDescriptor) -> &'static str {
    match (descriptor.shadow_mode, descriptor.quota_mode) {
        (true, _) => ", shadow_mode",
        (false, true) => ", quota_mode",
        (false, false) => "",
    }
}
