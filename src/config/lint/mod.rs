//! Warnings of traps: a file that is valid and yet does not do what its writer will have meant.
//!
//! Only what can be proved from the file is warned of; what merely looks odd is not.

mod ineffective;
mod keys;
mod locations;
mod queues;
mod shared;

use super::diagnostics::problem::ValueError;
use super::model::Config;
use super::yaml::fields::FieldValue;
use super::yaml::tree::NodeContent;
use crate::config::LimitId;

/// Notes every trap of a configuration without problems; `whole` is the file it was read from.
pub(super) fn lint_config(config: &Config, whole: &FieldValue<'_>) {
    let file = LintContext { config, whole };
    keys::lint_keys(&file);
    queues::lint_queues(&file);
    locations::lint_locations(&file);
    shared::lint_shared(&file);
    ineffective::lint_ineffective(&file);
}

/// A configuration, and where in its file things stand.
struct LintContext<'a> {
    config: &'a Config,
    whole: &'a FieldValue<'a>,
}

impl<'a> LintContext<'a> {
    /// The value that a field of the file leads to, or as near to it as the file goes.
    fn value_at(&self, fields: &[&str]) -> FieldValue<'a> {
        resolve_path(self.whole.clone(), fields)
    }

    /// What is written of location `index`.
    fn location_value(&self, index: usize, fields: &[&str]) -> FieldValue<'a> {
        resolve_path(list_item(self.value_at(&["locations"]), index), fields)
    }

    /// What is written of limit `index`: where it is defined, or the chain that it is written into.
    fn limit_value(&self, index: LimitId, fields: &[&str]) -> FieldValue<'a> {
        let name = self.config.limits[index].name.as_str();
        let defined = self.value_at(&["limits", name]);
        if self.is_named(index) {
            return resolve_path(defined, fields);
        }
        let place = |chain: &[LimitId]| chain.iter().position(|&limit| limit == index);
        if let Some(place) = place(&self.config.server.limits) {
            return resolve_path(list_item(self.value_at(&["server", "limits"]), place), fields);
        }
        let mut chains = self.config.locations.iter().enumerate();
        match chains.find_map(|(location, chain)| Some((location, place(&chain.limits)?))) {
            Some((location, place)) => {
                resolve_path(list_item(self.location_value(location, &["limits"]), place), fields)
            }
            None => defined,
        }
    }

    /// Named limits come before those that are written into a chain.
    fn is_named(&self, index: LimitId) -> bool {
        match &self.value_at(&["limits"]).node.content {
            NodeContent::Map(entries) => index.0 < entries.len(),
            _ => false,
        }
    }

    /// The limits that some chain names, in file order.
    fn used_limits(&self) -> Vec<LimitId> {
        let chains = self.config.locations.iter().flat_map(|location| &location.limits);
        let mut used: Vec<LimitId> = self.config.server.limits.iter().chain(chains).copied().collect();
        used.sort_unstable();
        used.dedup();
        used
    }
}

/// The field that `fields` lead to, or the last of them that there is.
fn resolve_path<'a>(mut value: FieldValue<'a>, fields: &[&str]) -> FieldValue<'a> {
    for name in fields {
        let NodeContent::Map(entries) = &value.node.content else { break };
        let Some((key, node)) = entries.iter().find(|(key, _)| key.name == *name) else { break };
        let path = if value.path.is_empty() { key.name.clone() } else { format!("{}.{name}", value.path) };
        value = FieldValue { node, path, named_at: key.position, sink: value.sink };
    }
    value
}

/// One of a list; a value that stands alone is its own only item.
fn list_item(value: FieldValue<'_>, place: usize) -> FieldValue<'_> {
    let NodeContent::List(items) = &value.node.content else { return value };
    let Some(node) = items.get(place) else { return value };
    FieldValue { node, path: format!("{}[{place}]", value.path), named_at: node.position, sink: value.sink }
}

/// Notes a warning: at the value where it is a word, else at the words that name it.
fn warn_at(value: &FieldValue<'_>, complaint: ValueError) {
    let place = match value.node.content {
        NodeContent::Text(_) => value.node.position,
        _ => value.named_at,
    };
    value.sink.add_warning(place, &value.path, complaint);
}
