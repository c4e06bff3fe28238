//! Reads the name of a location and the listeners of its requests, and finds locations with the same requests.

use std::collections::{HashMap, HashSet};

use crate::schema::tables::locations::location;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::{
    HostRule, ListenConfig, LocationConfig, PathRule, Scheme, ValueError, codes, did_you_mean,
};

/// `listener`: names of `listen` entries; empty = any.
pub(super) fn read_listeners(fields: &FieldReader<'_>, listen: &[ListenConfig]) -> Vec<String> {
    let Some(value) = fields.find(&location::LISTENER).filter(|value| !value.is_word("any")) else {
        return Vec::new();
    };
    value.check_filled("write any, or names of listeners such as [plain, secure]");
    let mut listeners: Vec<String> = Vec::new();
    for item in value.one_or_more() {
        let Some(name) = item.parse_with(|text| Ok(text.to_owned())) else { continue };
        if !listen.iter().any(|entry| entry.name.as_ref() == Some(&name)) {
            report_unknown_listener(&item, &name, listen);
        } else if !listeners.contains(&name) {
            listeners.push(name);
        }
    }
    listeners
}

fn report_unknown_listener(item: &FieldValue<'_>, name: &str, listen: &[ListenConfig]) {
    let shown = item.written_text();
    let known: Vec<&str> = listen.iter().filter_map(|entry| entry.name.as_deref()).collect();
    let help = did_you_mean(name, known.iter().copied()).unwrap_or_else(|| match known.as_slice() {
        [] => format!("name it: listen: [{{ address: \":80\", name: {shown} }}]"),
        known => format!("the listeners are {}", known.join(", ")),
    });
    let message = format!("no listener is named `{shown}`");
    item.refuse(codes::UNDEFINED, message, help);
}

/// `name`, which none of `taken` may be; `None` = auto.
pub(super) fn read_name(fields: &FieldReader<'_>, taken: &mut HashSet<String>) -> Option<String> {
    let name = fields.read(&location::NAME)?;
    let value = fields.find(&location::NAME)?;
    if !taken.insert(name.clone()) {
        let message = format!("two locations are named `{}`", value.written_text());
        value.report_at_value(ValueError::new(codes::NAME, message));
    }
    Some(name)
}

/// The locations read so far, by each host with all that narrows them.
#[derive(Default)]
pub(super) struct SeenLocations(HashMap<MatchedRequests, usize>);

/// A path with a mark that tells prefixes from exact paths, a host (`None` = any), the methods, the scheme and the
/// listeners; lists are sorted.
type MatchedRequests = (String, Option<HostRule>, Vec<String>, Option<Scheme>, Vec<String>);

impl SeenLocations {
    /// The first earlier location with the same path, methods, scheme and listeners on a common host. `location` gets
    /// `index`.
    pub(super) fn find_or_insert(&mut self, location: &LocationConfig, index: usize) -> Option<usize> {
        let path = match &location.path {
            PathRule::Exact(path) => format!("={path}"),
            PathRule::Prefix { path, .. } => path.clone(),
            PathRule::Regex(_) => location.written_path.replace(' ', ""),
        };
        let mut methods: Vec<String> = location.methods.iter().map(ToString::to_string).collect();
        methods.sort_unstable();
        let mut listeners = location.listeners.clone();
        listeners.sort_unstable();
        let hosts: Vec<Option<HostRule>> = match location.hosts.as_slice() {
            [] => vec![None],
            hosts => hosts.iter().cloned().map(Some).collect(),
        };
        let entries = hosts.into_iter().map(|host| {
            let matched = (path.clone(), host, methods.clone(), location.scheme, listeners.clone());
            *self.0.entry(matched).or_insert(index)
        });
        entries.filter(|&first| first != index).min()
    }
}
