//! Finds the location of a host, path and method by nginx's rules.
//!
//! Hosts come first, as nginx chooses among its servers: the exact name, then the `*.suffix` rules, longest first, then
//! the locations for any host; after a group without a matching location the next one is searched. Inside a group: the
//! exact path, then the longest prefix (`^~` ends the search), then the first regex in file order, else that prefix. A
//! location with other methods is skipped.

mod candidates;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use http::{HeaderValue, Method};
use regex::Regex;
use siphasher::sip::SipHasher13;

use super::canonical_host;
use crate::config::LocationId;
use crate::config::{HostRule, LocationConfig, PathRule};

pub use candidates::{HostMatch, LocationCandidate, LossReason, PathMatch};

/// Every location of one configuration, ordered for the search.
#[derive(Debug)]
pub struct Locations {
    by_name: HashMap<Box<str>, HostGroup>,
    /// Longest first; each suffix starts with its dot.
    by_suffix: Vec<(Box<str>, HostGroup)>,
    any_host: HostGroup,
    identities: Vec<u64>,
}

/// The result of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocationLookup {
    /// An index into [`crate::config::Config::locations`].
    Found(LocationId),
    NotFound,
    /// Locations match the path, but none the method. `allow` is the value of the Allow header.
    MethodNotAllowed {
        allow: HeaderValue,
    },
}

/// The locations that share one host rule.
#[derive(Debug, Default)]
struct HostGroup {
    exact: HashMap<Box<[u8]>, Vec<LocationRule>>,
    /// In byte order, so that the longest prefix of a path is the nearest entry before it or an ancestor of that one.
    prefixes: Vec<PrefixEntry>,
    /// In file order.
    regexes: Vec<(Regex, LocationRule)>,
}

#[derive(Debug)]
struct PrefixEntry {
    path: Box<[u8]>,
    /// The longest other entry that this path starts with.
    parent: Option<usize>,
    rules: Vec<LocationRule>,
}

#[derive(Debug)]
struct LocationRule {
    location: LocationId,
    /// Empty = any. GET includes HEAD, as in nginx's `limit_except`.
    methods: Box<[Method]>,
    no_regex: bool,
}

// === impl Locations ===

impl Locations {
    /// Sorts `locations` for the search. Among those with the same host and path, the ones with methods are tried
    /// before the one for any method.
    pub fn new(locations: &[LocationConfig]) -> Locations {
        let mut by_name: HashMap<Box<str>, HostGroup> = HashMap::new();
        let mut by_suffix: HashMap<Box<str>, HostGroup> = HashMap::new();
        let mut any_host = HostGroup::default();
        for (index, location) in locations.iter().enumerate() {
            let index = LocationId(index);
            if location.hosts.is_empty() {
                any_host.insert_location(index, location);
            }
            for host in &location.hosts {
                let group = match host {
                    HostRule::Exact(name) => {
                        let name = canonical_host(name).unwrap_or(name.into());
                        by_name.entry(name.into()).or_default()
                    }
                    HostRule::Suffix(suffix) => by_suffix.entry(suffix.as_str().into()).or_default(),
                };
                group.insert_location(index, location);
            }
        }
        by_name.values_mut().chain(by_suffix.values_mut()).for_each(HostGroup::sort_rules);
        any_host.sort_rules();
        let mut by_suffix: Vec<_> = by_suffix.into_iter().collect();
        by_suffix.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        let identities = locations.iter().map(hash_identity).collect();
        Locations { by_name, by_suffix, any_host, identities }
    }

    /// Finds the location of a canonical host (see [`super::host`]), a normalised path and a method.
    pub fn find_location(&self, host: &str, path: &[u8], method: &Method) -> LocationLookup {
        let mut passed_over = false;
        for group in self.host_groups(host) {
            if let Some(location) = group.find_rule(path, method, &mut passed_over) {
                return LocationLookup::Found(location);
            }
        }
        if passed_over {
            LocationLookup::MethodNotAllowed { allow: self.allowed_methods(host, path) }
        } else {
            LocationLookup::NotFound
        }
    }

    /// A number that identifies location `index`: the same path, hosts and methods have the same one in the next
    /// configuration, wherever they are in the file.
    pub fn identity_of(&self, index: LocationId) -> u64 {
        self.identities[index.0]
    }

    #[inline]
    fn host_groups<'s>(&'s self, host: &'s str) -> impl Iterator<Item = &'s HostGroup> {
        let named = if self.by_name.is_empty() { None } else { self.by_name.get(host) };
        // A canonical host never starts with a dot, so the star always matches something.
        let suffixed = self.by_suffix.iter().filter(|(suffix, _)| host.ends_with(&**suffix));
        named.into_iter().chain(suffixed.map(|(_, group)| group)).chain(std::iter::once(&self.any_host))
    }

    /// The methods of all locations that match the path.
    #[cold]
    fn allowed_methods(&self, host: &str, path: &[u8]) -> HeaderValue {
        let mut methods: Vec<&str> = Vec::new();
        for group in self.host_groups(host) {
            group.visit_matches(path, &mut |rule| methods.extend(rule.methods.iter().map(Method::as_str)));
        }
        methods.sort_unstable();
        methods.dedup();
        HeaderValue::from_str(&methods.join(", ")).unwrap_or(HeaderValue::from_static(""))
    }
}

/// The same in every process, because saved counters depend on it.
fn hash_identity(location: &LocationConfig) -> u64 {
    let mut hasher = SipHasher13::new();
    location.name.hash(&mut hasher);
    for host in &location.hosts {
        let (kind, text) = match host {
            HostRule::Exact(name) => (1_u8, name),
            HostRule::Suffix(suffix) => (2, suffix),
        };
        (kind, text).hash(&mut hasher);
    }
    0_u8.hash(&mut hasher);
    for method in &location.methods {
        method.as_str().hash(&mut hasher);
    }
    hasher.finish()
}

// === impl HostGroup ===

impl HostGroup {
    fn insert_location(&mut self, index: LocationId, location: &LocationConfig) {
        let mut methods = location.methods.clone();
        if methods.contains(&Method::GET) && !methods.contains(&Method::HEAD) {
            methods.push(Method::HEAD);
        }
        let mut rule = LocationRule { location: index, methods: methods.into(), no_regex: false };
        match &location.path {
            PathRule::Exact(path) => self.exact.entry(path.as_bytes().into()).or_default().push(rule),
            PathRule::Regex(regex) => self.regexes.push((regex.clone(), rule)),
            PathRule::Prefix { path, no_regex } => {
                rule.no_regex = *no_regex;
                match self.prefixes.iter_mut().find(|prefix| *prefix.path == *path.as_bytes()) {
                    Some(prefix) => prefix.rules.push(rule),
                    None => self.prefixes.push(PrefixEntry {
                        path: path.as_bytes().into(),
                        parent: None,
                        rules: vec![rule],
                    }),
                }
            }
        }
    }

    /// Sorts the rules; the search relies on it.
    fn sort_rules(&mut self) {
        self.prefixes.sort_by(|a, b| a.path.cmp(&b.path));
        for at in 1..self.prefixes.len() {
            // In byte order every entry that this one starts with is the entry before it or an ancestor of that one.
            let path = &self.prefixes[at].path;
            self.prefixes[at].parent = self.ancestor_or_self(Some(at - 1), path);
        }
        let sets = self.exact.values_mut().chain(self.prefixes.iter_mut().map(|prefix| &mut prefix.rules));
        sets.for_each(|rules| rules.sort_by_key(|rule| rule.methods.is_empty()));
    }

    /// The first entry that `path` starts with, from `at` upwards.
    #[inline]
    fn ancestor_or_self(&self, mut at: Option<usize>, path: &[u8]) -> Option<usize> {
        while let Some(index) = at {
            let prefix = &self.prefixes[index];
            if path.starts_with(&prefix.path) {
                break;
            }
            at = prefix.parent;
        }
        at
    }

    /// The entry of the longest prefix of `path`; its parents are the shorter ones.
    #[inline]
    fn longest_prefix(&self, path: &[u8]) -> Option<usize> {
        let next = self.prefixes.partition_point(|prefix| *prefix.path <= *path);
        self.ancestor_or_self(next.checked_sub(1), path)
    }

    fn find_rule(&self, path: &[u8], method: &Method, passed_over: &mut bool) -> Option<LocationId> {
        if !self.exact.is_empty()
            && let Some(rules) = self.exact.get(path)
        {
            let found = first_accepting(rules, method);
            if let Some(rule) = found {
                return Some(rule.location);
            }
            *passed_over = true;
        }
        let mut candidate = None;
        let mut at = self.longest_prefix(path);
        while let Some(index) = at {
            candidate = first_accepting(&self.prefixes[index].rules, method);
            if candidate.is_some() {
                break;
            }
            *passed_over = true;
            at = self.prefixes[index].parent;
        }
        match candidate {
            Some(rule) if rule.no_regex || self.regexes.is_empty() => Some(rule.location),
            _ => {
                let found = self.find_regex(path, method, passed_over);
                found.or(candidate.map(|rule| rule.location))
            }
        }
    }

    fn find_regex(&self, path: &[u8], method: &Method, passed_over: &mut bool) -> Option<LocationId> {
        if self.regexes.is_empty() {
            return None;
        }
        // Invalid UTF-8 becomes U+FFFD for a regex, so that `.` matches it as in nginx.
        let text = String::from_utf8_lossy(path);
        for (regex, rule) in &self.regexes {
            if regex.is_match(&text) {
                if rule.accepts_method(method) {
                    return Some(rule.location);
                }
                *passed_over = true;
            }
        }
        None
    }

    /// Calls `visitor` with every rule for this path, of any method.
    fn visit_matches<'s>(&'s self, path: &[u8], visitor: &mut impl FnMut(&'s LocationRule)) {
        self.exact.get(path).into_iter().flatten().for_each(&mut *visitor);
        let mut at = self.longest_prefix(path);
        while let Some(index) = at {
            self.prefixes[index].rules.iter().for_each(&mut *visitor);
            at = self.prefixes[index].parent;
        }
        let text = String::from_utf8_lossy(path);
        let matching = self.regexes.iter().filter(|(regex, _)| regex.is_match(&text));
        matching.map(|(_, rule)| rule).for_each(visitor);
    }
}

#[inline]
fn first_accepting<'r>(rules: &'r [LocationRule], method: &Method) -> Option<&'r LocationRule> {
    rules.iter().find(|rule| rule.accepts_method(method))
}

impl LocationRule {
    #[inline]
    fn accepts_method(&self, method: &Method) -> bool {
        self.methods.is_empty() || self.methods.contains(method)
    }
}

#[cfg(test)]
mod tests;
