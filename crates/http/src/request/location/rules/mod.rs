//! Finds the location of a host, path and method by nginx's rules.
//!
//! Hosts come first, as nginx chooses among its servers: the exact name, then the `*.suffix` rules, longest first, then
//! the locations for any host; after a group without a matching location the next one is searched. Inside a group: the
//! exact path, then the longest prefix (`^~` ends the search), then the first regex in file order, else that prefix. A
//! location with other methods, of another scheme or another listener, or with a condition that does not hold is
//! skipped.

mod candidates;
mod conditions;
mod prefix_table;
mod regex_rules;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use http::{HeaderValue, Method};
use siphasher::sip::SipHasher13;

use super::canonical_host;
use crate::request::source::SourceInput;
use conditions::find_unmet;
use prefix_table::PrefixTable;
use regex_rules::RegexRules;
use sluicegate_model::{
    ActionConfig, ConditionConfig, HostRule, LocationConfig, LocationId, PathRegex, PathRule, Scheme,
};

pub use candidates::{HostMatch, LocationCandidate, LossReason, PathMatch};
pub use conditions::UnmetCondition;

/// Every location of one configuration, ordered for the search.
#[derive(Debug)]
pub struct Locations {
    by_name: HashMap<Box<str>, HostGroup>,
    /// Each suffix starts with its dot.
    by_suffix: HashMap<Box<str>, HostGroup>,
    /// The length of the longest suffix.
    suffix_max: usize,
    any_host: HostGroup,
    identities: Vec<u64>,
    /// The locations that tell what is left, which answer GET and HEAD.
    told: Box<[LocationId]>,
    /// Some location is only for requests of certain listeners.
    pub selects_listeners: bool,
    /// Some location has conditions.
    pub has_conditions: bool,
}

/// The arrival of a request, beside its host and path.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'r> {
    /// The method of the request.
    pub method: &'r Method,
    /// The scheme by which the client reached the gateway, or the proxy in front of it.
    pub scheme: Scheme,
    /// The name of the listener.
    pub listener: Option<&'r str>,
    /// The values that conditions are about; needed only if a location has conditions.
    pub values: Option<SourceInput<'r>>,
}

/// The result of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocationLookup {
    /// An index into [`sluicegate_model::Config::locations`].
    Found(LocationId),
    /// No location matches, or those that match the path are for another scheme or listener or other values.
    NotFound,
    /// Locations match the path, but none the method.
    MethodNotAllowed {
        /// The value of the Allow header.
        allow: HeaderValue,
    },
}

/// The locations that share one host rule.
#[derive(Debug)]
struct HostGroup {
    exact: RulesByPath,
    prefixes: PrefixTable<Vec<LocationRule>>,
    regexes: RegexRules,
}

/// The same before they are sorted for the search.
#[derive(Default)]
struct UnsortedGroup {
    exact: RulesByPath,
    prefixes: RulesByPath,
    /// Regexes in file order, with their [`LocationConfig::path_identity`].
    regexes: Vec<(String, PathRegex, LocationRule)>,
}

type RulesByPath = HashMap<Box<[u8]>, Vec<LocationRule>>;

#[derive(Debug)]
struct LocationRule {
    location: LocationId,
    /// Empty = any. GET includes HEAD, as in nginx's `limit_except`.
    methods: Box<[Method]>,
    /// `None` = any.
    scheme: Option<Scheme>,
    /// Names; empty = any.
    listeners: Box<[String]>,
    /// Empty = none.
    when: Box<[ConditionConfig]>,
    /// It takes requests of every scheme and listener, without conditions.
    takes_any: bool,
    no_regex: bool,
    /// The rank by [`LocationConfig::match_rank`].
    rank: [bool; 4],
}

// === impl Locations ===

impl Locations {
    /// Sorts `locations` for the search. Those with the same host and path are tried by
    /// [`LocationConfig::match_rank`].
    pub fn new(locations: &[LocationConfig]) -> Locations {
        let mut by_name: HashMap<Box<str>, UnsortedGroup> = HashMap::new();
        let mut by_suffix: HashMap<Box<str>, UnsortedGroup> = HashMap::new();
        let mut any_host = UnsortedGroup::default();
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
        let sort_groups = |groups: HashMap<Box<str>, UnsortedGroup>| {
            groups.into_iter().map(|(host, group)| (host, group.sort_rules())).collect()
        };
        let indices = (0..locations.len()).map(LocationId);
        let is_told = |location: &LocationConfig| matches!(location.action, ActionConfig::Usage { .. });
        Locations {
            suffix_max: by_suffix.keys().map(|suffix| suffix.len()).max().unwrap_or(0),
            by_name: sort_groups(by_name),
            by_suffix: sort_groups(by_suffix),
            any_host: any_host.sort_rules(),
            told: indices.filter(|index| is_told(&locations[index.0])).collect(),
            identities: locations.iter().map(hash_identity).collect(),
            selects_listeners: locations.iter().any(|location| !location.listeners.is_empty()),
            has_conditions: locations.iter().any(|location| !location.when.is_empty()),
        }
    }

    /// Finds the location of a canonical host (see [`super::host`]), a normalised path and an arrival.
    pub fn find_location(&self, host: &str, path: &[u8], arrival: &Arrival<'_>) -> LocationLookup {
        let mut passed_over = false;
        if self.by_name.is_empty()
            && self.by_suffix.is_empty()
            && let Some(location) = self.any_host.find_rule(path, arrival, &mut passed_over)
        {
            return self.check_read(location, arrival);
        }
        for group in self.host_groups(host) {
            if let Some(location) = group.find_rule(path, arrival, &mut passed_over) {
                return self.check_read(location, arrival);
            }
        }
        if passed_over {
            LocationLookup::MethodNotAllowed { allow: self.allowed_methods(host, path, arrival) }
        } else {
            LocationLookup::NotFound
        }
    }

    /// The location, unless it can only be read and the method does something else.
    #[inline]
    fn check_read(&self, location: LocationId, arrival: &Arrival<'_>) -> LocationLookup {
        let is_read = || matches!(*arrival.method, Method::GET | Method::HEAD);
        if self.told.contains(&location) && !is_read() {
            return LocationLookup::MethodNotAllowed { allow: HeaderValue::from_static("GET, HEAD") };
        }
        LocationLookup::Found(location)
    }

    /// A number that identifies location `index`: the same path, hosts, methods, scheme, listeners and conditions have
    /// the same one in the next configuration, wherever they are in the file.
    pub fn identity_of(&self, index: LocationId) -> u64 {
        self.identities[index.0]
    }

    #[inline]
    fn host_groups<'s>(&'s self, host: &'s str) -> impl Iterator<Item = &'s HostGroup> {
        let named = if self.by_name.is_empty() { None } else { self.by_name.get(host) };
        // The longest suffix begins at the first dot that is near enough to the end. A canonical host never starts with
        // a dot, so the star always matches something.
        let ends = self.find_suffix_start(host);
        let suffixed = ends.match_indices('.').filter_map(|(dot, _)| self.by_suffix.get(&ends[dot..]));
        named.into_iter().chain(suffixed).chain(std::iter::once(&self.any_host))
    }

    /// The end of `host` that is no longer than the longest suffix.
    #[inline]
    fn find_suffix_start<'h>(&self, host: &'h str) -> &'h str {
        let start = host.len().saturating_sub(self.suffix_max);
        // A canonical host is ASCII.
        host.get(start..).unwrap_or(host)
    }

    /// The methods of all locations that match all but the method.
    #[cold]
    fn allowed_methods(&self, host: &str, path: &[u8], arrival: &Arrival<'_>) -> HeaderValue {
        let mut methods: Vec<&str> = Vec::new();
        for group in self.host_groups(host) {
            group.visit_matches(path, &mut |rule| {
                if rule.accepts_arrival(arrival) {
                    methods.extend(rule.methods.iter().map(Method::as_str));
                }
            });
        }
        methods.sort_unstable();
        methods.dedup();
        HeaderValue::from_str(&methods.join(", ")).unwrap_or(HeaderValue::from_static(""))
    }
}

/// The same in every process, because saved counters depend on it.
fn hash_identity(location: &LocationConfig) -> u64 {
    let mut hasher = SipHasher13::new();
    location.written_path.hash(&mut hasher);
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
    // Nothing for any, so that counters saved by earlier versions are found.
    if let Some(scheme) = location.scheme {
        (1_u8, scheme.as_str()).hash(&mut hasher);
    }
    for listener in &location.listeners {
        (2_u8, listener).hash(&mut hasher);
    }
    for condition in location.when_identity() {
        (3_u8, condition).hash(&mut hasher);
    }
    hasher.finish()
}

// === impl UnsortedGroup ===

impl UnsortedGroup {
    fn insert_location(&mut self, index: LocationId, location: &LocationConfig) {
        let mut methods = location.methods.clone();
        if methods.contains(&Method::GET) && !methods.contains(&Method::HEAD) {
            methods.push(Method::HEAD);
        }
        let mut rule = LocationRule {
            location: index,
            methods: methods.into(),
            scheme: location.scheme,
            listeners: location.listeners.as_slice().into(),
            when: location.when.as_slice().into(),
            takes_any: location.scheme.is_none() && location.listeners.is_empty() && location.when.is_empty(),
            no_regex: false,
            rank: location.match_rank(),
        };
        match &location.path {
            PathRule::Exact(path) => self.exact.entry(path.as_bytes().into()).or_default().push(rule),
            PathRule::Regex(regex) => self.regexes.push((location.path_identity(), regex.clone(), rule)),
            PathRule::Prefix { path, no_regex } => {
                rule.no_regex = *no_regex;
                self.prefixes.entry(path.as_bytes().into()).or_default().push(rule);
            }
        }
    }

    fn sort_rules(mut self) -> HostGroup {
        let sets = self.exact.values_mut().chain(self.prefixes.values_mut());
        sets.for_each(|rules| rules.sort_by_key(|rule| rule.rank));
        HostGroup {
            exact: self.exact,
            prefixes: PrefixTable::new(self.prefixes),
            regexes: RegexRules::new(conditions_first(self.regexes)),
        }
    }
}

/// Regexes in file order, but with conditions before the same regex without any.
fn conditions_first(regexes: Vec<(String, PathRegex, LocationRule)>) -> Vec<(PathRegex, LocationRule)> {
    let mut without: HashMap<&str, usize> = HashMap::new();
    for (index, (path, _, rule)) in regexes.iter().enumerate() {
        if rule.when.is_empty() {
            without.entry(path).or_insert(index);
        }
    }
    let place = |(index, (path, _, rule)): (usize, &(String, PathRegex, LocationRule))| {
        let first = without.get(path.as_str()).copied().unwrap_or(index);
        if rule.when.is_empty() { (index, true) } else { (index.min(first), false) }
    };
    let places: Vec<(usize, bool)> = regexes.iter().enumerate().map(place).collect();
    let rules = regexes.into_iter().map(|(_, regex, rule)| (regex, rule));
    let mut placed: Vec<_> = places.into_iter().zip(rules).collect();
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, rule)| rule).collect()
}

// === impl HostGroup ===

impl HostGroup {
    /// Sets `passed_over` if a location matches all but the method.
    fn find_rule(&self, path: &[u8], arrival: &Arrival<'_>, passed_over: &mut bool) -> Option<LocationId> {
        if !self.exact.is_empty()
            && let Some(rules) = self.exact.get(path)
            && let Some(rule) = first_accepting(rules, arrival, passed_over)
        {
            return Some(rule.location);
        }
        let mut candidate = None;
        for rules in self.prefixes.find_prefixes(path) {
            candidate = first_accepting(rules, arrival, passed_over);
            if candidate.is_some() {
                break;
            }
        }
        match candidate {
            Some(rule) if rule.no_regex || self.regexes.is_empty() => Some(rule.location),
            _ => {
                let found = self.find_regex(path, arrival, passed_over);
                found.or(candidate.map(|rule| rule.location))
            }
        }
    }

    fn find_regex(&self, path: &[u8], arrival: &Arrival<'_>, passed_over: &mut bool) -> Option<LocationId> {
        if self.regexes.is_empty() {
            return None;
        }
        // Invalid UTF-8 becomes U+FFFD for a regex of characters, so that `.` matches it as in nginx.
        let text = String::from_utf8_lossy(path);
        let matching = self.regexes.find_matching(path, &text);
        first_accepting(matching, arrival, passed_over).map(|rule| rule.location)
    }

    /// Calls `visitor` with every rule for this path, of any method.
    fn visit_matches<'s>(&'s self, path: &[u8], visitor: &mut impl FnMut(&'s LocationRule)) {
        self.exact.get(path).into_iter().flatten().for_each(&mut *visitor);
        self.prefixes.find_prefixes(path).flatten().for_each(&mut *visitor);
        self.regexes.find_matching(path, &String::from_utf8_lossy(path)).for_each(visitor);
    }
}

#[inline]
fn first_accepting<'r>(
    rules: impl IntoIterator<Item = &'r LocationRule>,
    arrival: &Arrival<'_>,
    passed_over: &mut bool,
) -> Option<&'r LocationRule> {
    for rule in rules {
        if rule.accepts_arrival(arrival) {
            if rule.accepts_method(arrival.method) {
                return Some(rule);
            }
            *passed_over = true;
        }
    }
    None
}

impl LocationRule {
    #[inline]
    fn accepts_method(&self, method: &Method) -> bool {
        self.methods.is_empty() || self.methods.contains(method)
    }

    /// True if this location serves requests of this scheme and listener with these values.
    #[inline]
    fn accepts_arrival(&self, arrival: &Arrival<'_>) -> bool {
        self.takes_any
            || self.accepts_scheme(arrival) && self.accepts_listener(arrival) && self.accepts_values(arrival)
    }

    fn accepts_values(&self, arrival: &Arrival<'_>) -> bool {
        find_unmet(&self.when, arrival).is_none()
    }

    #[inline]
    fn accepts_scheme(&self, arrival: &Arrival<'_>) -> bool {
        self.scheme.is_none_or(|scheme| scheme == arrival.scheme)
    }

    #[inline]
    fn accepts_listener(&self, arrival: &Arrival<'_>) -> bool {
        self.listeners.is_empty()
            || arrival.listener.is_some_and(|listener| self.listeners.iter().any(|own| own == listener))
    }
}

#[cfg(test)]
mod tests;
