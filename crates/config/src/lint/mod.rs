//! Warns of traps: settings of a valid file that do not have their intended effect.
//!
//! A warning needs proof in the file; settings that merely look odd get none.

mod calendars;
mod charges;
mod ineffective;
mod keys;
mod locations;
mod misread;
mod queues;
mod redirects;
mod shared;
mod turns;
mod variables;

use std::collections::HashMap;

use super::yaml::field_value::FieldValue;
use sluicegate_model::{Config, LimitId, LocationConfig};

/// Reports every trap of a configuration without errors; `whole` is its file.
pub(super) fn lint_config(config: &Config, whole: &FieldValue<'_>) {
    let file = LintContext { config, whole, inline_limits: find_inline_limits(config) };
    keys::lint_keys(&file);
    queues::lint_queues(&file);
    charges::lint_charges(&file);
    locations::lint_locations(&file);
    redirects::lint_redirects(&file);
    ineffective::lint_shadows(&file);
    shared::lint_shared(&file);
    calendars::lint_calendars(&file);
    turns::lint_turns(&file);
    ineffective::lint_ineffective(&file);
    misread::lint_misread(&file);
    ineffective::lint_obeyed(&file);
    variables::warn_of_dollars(whole);
    misread::lint_logged(&file);
}

/// A configuration with the file that it was read from.
struct LintContext<'a> {
    config: &'a Config,
    whole: &'a FieldValue<'a>,
    /// The first chain that contains each limit: the location, or `None` for `server.limits`, and the position.
    inline_limits: HashMap<LimitId, (Option<usize>, usize)>,
}

fn find_inline_limits(config: &Config) -> HashMap<LimitId, (Option<usize>, usize)> {
    let chains = config.locations.iter().enumerate().map(|(index, location)| (Some(index), &location.limits));
    let mut places = HashMap::new();
    for (location, chain) in std::iter::once((None, &config.server.limits)).chain(chains) {
        for (position, &limit) in chain.iter().enumerate() {
            places.entry(limit).or_insert((location, position));
        }
    }
    places
}

impl<'a> LintContext<'a> {
    /// The value at a path of fields, or the deepest existing value on that path.
    fn value_at(&self, fields: &[&str]) -> FieldValue<'a> {
        resolve_path(self.whole.clone(), fields)
    }

    /// The value of a field of location `index`.
    fn location_value(&self, index: usize, fields: &[&str]) -> FieldValue<'a> {
        resolve_path(list_item(self.value_at(&["locations"]), index), fields)
    }

    /// The value of a field of limit `index`, in its definition or in the chain that contains it.
    fn limit_value(&self, index: LimitId, fields: &[&str]) -> FieldValue<'a> {
        let defined = self.value_at(&["limits"]);
        // Named limits come before inline ones.
        if defined.path == "limits"
            && let Some((key, node)) = defined.node.entries().get(index.0)
        {
            return resolve_path(defined.field(key, node), fields);
        }
        match self.inline_limits.get(&index) {
            Some(&(location, position)) => self.chain_value(location, position, fields),
            None => defined,
        }
    }

    /// The value of a field of an entry of a chain: that of a location, or `server.limits`.
    fn chain_value(&self, location: Option<usize>, position: usize, fields: &[&str]) -> FieldValue<'a> {
        let chain = match location {
            Some(location) => self.location_value(location, &["limits"]),
            None => self.value_at(&["server", "limits"]),
        };
        resolve_path(list_item(chain, position), fields)
    }

    /// The limits of all chains, in file order.
    fn used_limits(&self) -> Vec<LimitId> {
        let asked = |location: &'a LocationConfig| location.auth.iter().flat_map(|auth| &auth.limits);
        let chains =
            self.config.locations.iter().flat_map(|location| location.limits.iter().chain(asked(location)));
        let mut used: Vec<LimitId> = self.config.server.limits.iter().chain(chains).copied().collect();
        used.sort_unstable();
        used.dedup();
        used
    }
}

/// The value at the path `fields`, or the deepest existing value on it.
fn resolve_path<'a>(mut value: FieldValue<'a>, fields: &[&str]) -> FieldValue<'a> {
    for name in fields {
        let mut entries = value.node.entries().iter();
        let Some((key, node)) = entries.find(|(key, _)| key.name == *name) else { break };
        value = value.field(key, node);
    }
    value
}

/// An item of a list; a single value is its own only item.
fn list_item(value: FieldValue<'_>, index: usize) -> FieldValue<'_> {
    value.node.items().get(index).map_or(value.clone(), |node| value.item(index, node))
}
