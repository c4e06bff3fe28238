//! Warnings of traps: a file that is valid and yet does not do what its writer will have meant.
//!
//! Only what can be proved from the file is warned of; what merely looks odd is not.

mod ineffective;
mod keys;
mod locations;
mod queues;
mod shared;

use super::diagnostics::problem::Complaint;
use super::model::Config;
use super::yaml::fields::Value;
use super::yaml::tree::Content;

/// Notes every trap of a configuration without problems; `whole` is the file it was read from.
pub(super) fn warn(config: &Config, whole: &Value<'_>) {
    let file = File { config, whole };
    keys::warn(&file);
    queues::warn(&file);
    locations::warn(&file);
    shared::warn(&file);
    ineffective::warn(&file);
}

/// A configuration, and where in its file things stand.
struct File<'a> {
    config: &'a Config,
    whole: &'a Value<'a>,
}

impl<'a> File<'a> {
    /// The value that a field of the file leads to, or as near to it as the file goes.
    fn at(&self, fields: &[&str]) -> Value<'a> {
        within(self.whole.clone(), fields)
    }

    /// What is written of location `index`.
    fn location(&self, index: usize, fields: &[&str]) -> Value<'a> {
        within(item(self.at(&["locations"]), index), fields)
    }

    /// What is written of limit `index`: where it is defined, or the chain that it is written into.
    fn limit(&self, index: usize, fields: &[&str]) -> Value<'a> {
        let name = self.config.limits[index].name.as_str();
        let defined = self.at(&["limits", name]);
        if self.is_named(index) {
            return within(defined, fields);
        }
        let place = |chain: &[usize]| chain.iter().position(|&limit| limit == index);
        if let Some(place) = place(&self.config.server.limits) {
            return within(item(self.at(&["server", "limits"]), place), fields);
        }
        let mut chains = self.config.locations.iter().enumerate();
        match chains.find_map(|(location, chain)| Some((location, place(&chain.limits)?))) {
            Some((location, place)) => within(item(self.location(location, &["limits"]), place), fields),
            None => defined,
        }
    }

    /// Named limits come before those that are written into a chain.
    fn is_named(&self, index: usize) -> bool {
        match &self.at(&["limits"]).node.content {
            Content::Map(entries) => index < entries.len(),
            _ => false,
        }
    }

    /// The limits that some chain names, in file order.
    fn used_limits(&self) -> Vec<usize> {
        let chains = self.config.locations.iter().flat_map(|location| &location.limits);
        let mut used: Vec<usize> = self.config.server.limits.iter().chain(chains).copied().collect();
        used.sort_unstable();
        used.dedup();
        used
    }
}

/// The field that `fields` lead to, or the last of them that there is.
fn within<'a>(mut value: Value<'a>, fields: &[&str]) -> Value<'a> {
    for name in fields {
        let Content::Map(entries) = &value.node.content else { break };
        let Some((key, node)) = entries.iter().find(|(key, _)| key.name == *name) else { break };
        let path = if value.path.is_empty() { key.name.clone() } else { format!("{}.{name}", value.path) };
        value = Value { node, path, named_at: key.place, found: value.found };
    }
    value
}

/// One of a list; a value that stands alone is its own only item.
fn item(value: Value<'_>, place: usize) -> Value<'_> {
    let Content::List(items) = &value.node.content else { return value };
    let Some(node) = items.get(place) else { return value };
    Value { node, path: format!("{}[{place}]", value.path), named_at: node.place, found: value.found }
}

/// Notes a warning: at the value where it is a word, else at the words that name it.
fn note(value: &Value<'_>, complaint: Complaint) {
    let place = match value.node.content {
        Content::Text(_) => value.node.place,
        _ => value.named_at,
    };
    value.found.warn(place, &value.path, complaint);
}
