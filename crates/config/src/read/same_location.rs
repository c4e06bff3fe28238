//! Finds locations that match the same requests as an earlier one.

use std::collections::HashMap;

use sluicegate_model::listen::Scheme;
use sluicegate_model::{HostRule, LocationConfig, PathRule};

/// The locations read so far, by each host with all that narrows them.
#[derive(Default)]
pub(super) struct SeenLocations(HashMap<MatchedRequests, usize>);

#[derive(PartialEq, Eq, Hash)]
struct MatchedRequests {
    /// The path with a mark that tells prefixes from exact paths.
    path: String,
    /// `None` = any.
    host: Option<HostRule>,
    /// Sorted.
    methods: Vec<String>,
    scheme: Option<Scheme>,
    /// Sorted.
    listeners: Vec<String>,
}

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
        let entries: Vec<usize> = hosts
            .into_iter()
            .map(|host| {
                let matched = MatchedRequests {
                    path: path.clone(),
                    host,
                    methods: methods.clone(),
                    scheme: location.scheme,
                    listeners: listeners.clone(),
                };
                *self.0.entry(matched).or_insert(index)
            })
            .collect();
        entries.into_iter().filter(|&first| first != index).min()
    }
}
