//! Lists every location that matches a request, with the reason why it won or lost. `explain` uses it; requests do not.

use super::{Arrival, HostGroup, LocationRule, Locations};
use sluicegate_base::labelled::labelled_enum;
use sluicegate_model::LocationId;

/// A location that matches the host and path of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocationCandidate {
    /// An index into [`sluicegate_model::Config::locations`].
    pub location: LocationId,
    /// The host rule that matches.
    pub host: HostMatch,
    /// The path rule that matches.
    pub path: PathMatch,
    /// `None` for the location that serves the request.
    pub loss: Option<LossReason>,
}

/// The kind of host rule that matches, in the order of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostMatch {
    /// The exact name.
    Name,
    /// A `*.suffix` rule.
    Suffix,
    /// The location is for any host.
    Any,
}

/// The kind of path rule that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathMatch {
    /// The exact path.
    Exact,
    /// The beginning of the path.
    Prefix {
        /// Length in bytes.
        bytes: usize,
        /// `^~`.
        no_regex: bool,
    },
    /// A regular expression.
    Regex,
}

labelled_enum! {
    /// The reason why a matching location does not serve the request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LossReason: text -> &'static str {
        /// The location is for other methods.
        Method = "its methods do not match",
        /// The location is for another scheme.
        Scheme = "its scheme does not match",
        /// The location is for requests of other listeners.
        Listener = "it is for another listener",
        /// One of its conditions does not hold.
        Condition = "a condition does not hold",
        /// A location of a closer host rule matches.
        Host = "a location of a closer host matches",
        /// An exact path comes before prefixes and regexes.
        Exact = "an exact path comes before it",
        /// A longer prefix matches.
        Shorter = "a shorter prefix",
        /// A prefix with `^~` skips the regexes.
        NotTried = "regular expressions are not tried after ^~",
        /// A regex comes before the prefix.
        Regex = "a regular expression comes before it",
        /// A location with the same path, or a regex, comes before it.
        Later = "a location before it matches",
    }
}

// === impl Locations ===

impl Locations {
    /// All locations that match the host and path, in the order of the search.
    ///
    /// The winner follows from the definition of the rules, not from the search of [`Locations::find_location`].
    pub fn list_candidates(&self, host: &str, path: &[u8], arrival: &Arrival<'_>) -> Vec<LocationCandidate> {
        let mut found: Vec<LocationCandidate> = Vec::new();
        for group in self.host_groups(host) {
            let host_match = match () {
                () if std::ptr::eq(group, &self.any_host) => HostMatch::Any,
                () if self.by_name.get(host).is_some_and(|named| std::ptr::eq(group, named)) => {
                    HostMatch::Name
                }
                () => HostMatch::Suffix,
            };
            let has_winner = found.iter().any(|candidate| candidate.loss.is_none());
            let mut own = group.rank_candidates(host_match, path, arrival);
            if has_winner {
                let losers = own.iter_mut().filter(|candidate| !candidate.is_passed_over());
                losers.for_each(|candidate| candidate.loss = Some(LossReason::Host));
            }
            // A location may be in several groups: the first decides.
            own.retain(|candidate| !found.iter().any(|known| known.location == candidate.location));
            found.extend(own);
        }
        found
    }
}

// === impl HostGroup ===

impl HostGroup {
    /// The matching locations of this group, ranked as if there were no other group.
    fn rank_candidates(&self, host: HostMatch, path: &[u8], arrival: &Arrival<'_>) -> Vec<LocationCandidate> {
        let mut found: Vec<LocationCandidate> = Vec::new();
        let mut add = |rule: &LocationRule, path: PathMatch| {
            let loss = rule.find_unmet_condition(arrival);
            found.push(LocationCandidate { location: rule.location, host, path, loss });
        };
        self.exact.get(path).into_iter().flatten().for_each(|rule| add(rule, PathMatch::Exact));
        let mut prefixes: Vec<_> =
            self.prefixes.iter().filter(|(prefix, _)| path.starts_with(prefix)).collect();
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        for (prefix, rules) in prefixes {
            let bytes = prefix.len();
            rules.iter().for_each(|rule| add(rule, PathMatch::Prefix { bytes, no_regex: rule.no_regex }));
        }
        let text = String::from_utf8_lossy(path);
        let regexes = self.regexes.iter().filter(|(regex, _)| regex.is_match(path, &text));
        regexes.for_each(|(_, rule)| add(rule, PathMatch::Regex));
        if let Some(winner) = find_winner(&found) {
            for candidate in found.iter_mut().filter(|candidate| candidate.loss.is_none()) {
                candidate.loss = find_loss(candidate, &winner);
            }
        }
        found
    }
}

impl LocationRule {
    /// The condition for which the location is passed over.
    fn find_unmet_condition(&self, arrival: &Arrival<'_>) -> Option<LossReason> {
        match () {
            () if !self.accepts_listener(arrival) => Some(LossReason::Listener),
            () if !self.accepts_scheme(arrival) => Some(LossReason::Scheme),
            () if !self.accepts_values(arrival) => Some(LossReason::Condition),
            () if !self.accepts_method(arrival.method) => Some(LossReason::Method),
            () => None,
        }
    }
}

/// The definition: the exact path, else the longest prefix if it says `^~`, else the first regex, else that prefix.
fn find_winner(found: &[LocationCandidate]) -> Option<LocationCandidate> {
    let mut eligible = found.iter().filter(|candidate| candidate.loss.is_none()).copied();
    let first = eligible.next()?;
    match first.path {
        PathMatch::Exact | PathMatch::Prefix { no_regex: true, .. } | PathMatch::Regex => Some(first),
        PathMatch::Prefix { no_regex: false, .. } => {
            Some(eligible.find(|candidate| candidate.path == PathMatch::Regex).unwrap_or(first))
        }
    }
}

/// The reason why `candidate` does not win over `winner`, although its conditions are met.
fn find_loss(candidate: &LocationCandidate, winner: &LocationCandidate) -> Option<LossReason> {
    if candidate.location == winner.location {
        return None;
    }
    Some(match (candidate.path, winner.path) {
        (PathMatch::Exact, _) => LossReason::Later,
        (_, PathMatch::Exact) => LossReason::Exact,
        (PathMatch::Prefix { .. }, PathMatch::Regex) => LossReason::Regex,
        (PathMatch::Prefix { bytes, .. }, PathMatch::Prefix { bytes: longest, .. }) if bytes < longest => {
            LossReason::Shorter
        }
        (PathMatch::Prefix { .. }, _) => LossReason::Later,
        (PathMatch::Regex, PathMatch::Prefix { .. }) => LossReason::NotTried,
        (PathMatch::Regex, PathMatch::Regex) => LossReason::Later,
    })
}

// === impl LocationCandidate ===

impl LocationCandidate {
    fn is_passed_over(&self) -> bool {
        use LossReason::{Condition, Listener, Method, Scheme};
        matches!(self.loss, Some(Method | Scheme | Listener | Condition))
    }

    /// The reason why it won, e.g. "the longest prefix".
    pub fn winning_reason(&self) -> String {
        let path = match self.path {
            PathMatch::Exact => "the exact path",
            PathMatch::Prefix { no_regex: true, .. } => {
                "the longest prefix, and ^~ keeps regular expressions out"
            }
            PathMatch::Prefix { no_regex: false, .. } => {
                "the longest prefix, and no regular expression matches"
            }
            PathMatch::Regex => "the first regular expression in file order that matches",
        };
        match self.host {
            HostMatch::Name => format!("{path}, among the locations of this host"),
            HostMatch::Suffix => format!("{path}, among the locations of this host's suffix"),
            HostMatch::Any => path.to_owned(),
        }
    }
}
