//! Every location that matches a request, why one won and why the others lost: for `explain`, never on the way of
//! a request.

use std::fmt;

use http::Method;

use super::{Group, Locations, Rule};

/// A location whose host and path match a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Index into [`crate::config::Config::locations`].
    pub location: usize,
    pub host: HostMatch,
    pub path: PathMatch,
    /// `None` for the one that serves the request.
    pub loss: Option<Loss>,
}

/// By which of its hosts a location matches, the first to be asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostMatch {
    Name,
    Suffix,
    Any,
}

/// By what kind of path a location matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathMatch {
    Exact,
    Prefix {
        /// Length in bytes.
        bytes: usize,
        /// `^~`.
        no_regex: bool,
    },
    Regex,
}

/// Why a location that matches does not serve the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    Method,
    /// A location of a closer host matches.
    Host,
    /// An exact path is found before prefixes and regexes.
    Exact,
    /// A longer prefix matches.
    Shorter,
    /// A prefix with `^~` keeps regexes from being tried.
    NotTried,
    /// A regex comes before the prefix.
    Regex,
    /// An earlier one of the same path, or an earlier regex.
    Later,
}

// === impl Locations ===

impl Locations {
    /// All locations whose host and path match, in the order in which they are looked at.
    ///
    /// The winner is found by the definition of the rules, not by the search of [`Locations::locate`].
    pub fn candidates(&self, host: &str, path: &[u8], method: &Method) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        for group in self.groups(host) {
            let by = match () {
                () if std::ptr::eq(group, &self.any_host) => HostMatch::Any,
                () if self.by_name.get(host).is_some_and(|named| std::ptr::eq(group, named)) => {
                    HostMatch::Name
                }
                () => HostMatch::Suffix,
            };
            let won = found.iter().any(|candidate| candidate.loss.is_none());
            let mut own = group.judged(by, path, method);
            if won {
                let losers = own.iter_mut().filter(|candidate| candidate.loss != Some(Loss::Method));
                losers.for_each(|candidate| candidate.loss = Some(Loss::Host));
            }
            // A location may stand in several groups: the first decides.
            own.retain(|candidate| !found.iter().any(|known| known.location == candidate.location));
            found.extend(own);
        }
        found
    }
}

// === impl Group ===

impl Group {
    /// What matches in this group, judged as if there were no other.
    fn judged(&self, host: HostMatch, path: &[u8], method: &Method) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        let mut add = |rule: &Rule, path: PathMatch| {
            let loss = (!rule.accepts(method)).then_some(Loss::Method);
            found.push(Candidate { location: rule.location, host, path, loss });
        };
        self.exact.get(path).into_iter().flatten().for_each(|rule| add(rule, PathMatch::Exact));
        let mut prefixes: Vec<_> =
            self.prefixes.iter().filter(|prefix| path.starts_with(&prefix.path)).collect();
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.path.len()));
        for prefix in prefixes {
            let bytes = prefix.path.len();
            prefix
                .rules
                .iter()
                .for_each(|rule| add(rule, PathMatch::Prefix { bytes, no_regex: rule.no_regex }));
        }
        let text = String::from_utf8_lossy(path);
        let regexes = self.regexes.iter().filter(|(regex, _)| regex.is_match(&text));
        regexes.for_each(|(_, rule)| add(rule, PathMatch::Regex));
        if let Some(winner) = winner(&found) {
            for candidate in found.iter_mut().filter(|candidate| candidate.loss.is_none()) {
                candidate.loss = loss(candidate, &winner);
            }
        }
        found
    }
}

/// The definition: the exact path, else the longest prefix if it says `^~`, else the first regex, else that prefix.
fn winner(found: &[Candidate]) -> Option<Candidate> {
    let mut able = found.iter().filter(|candidate| candidate.loss.is_none()).copied();
    let first = able.next()?;
    match first.path {
        PathMatch::Exact | PathMatch::Prefix { no_regex: true, .. } | PathMatch::Regex => Some(first),
        PathMatch::Prefix { no_regex: false, .. } => {
            Some(able.find(|candidate| candidate.path == PathMatch::Regex).unwrap_or(first))
        }
    }
}

/// Why `candidate`, whose methods match, does not win over `winner`.
fn loss(candidate: &Candidate, winner: &Candidate) -> Option<Loss> {
    if candidate.location == winner.location {
        return None;
    }
    Some(match (candidate.path, winner.path) {
        (PathMatch::Exact, _) => Loss::Later,
        (_, PathMatch::Exact) => Loss::Exact,
        (PathMatch::Prefix { .. }, PathMatch::Regex) => Loss::Regex,
        (PathMatch::Prefix { bytes, .. }, PathMatch::Prefix { bytes: longest, .. }) if bytes < longest => {
            Loss::Shorter
        }
        (PathMatch::Prefix { .. }, _) => Loss::Later,
        (PathMatch::Regex, PathMatch::Prefix { .. }) => Loss::NotTried,
        (PathMatch::Regex, PathMatch::Regex) => Loss::Later,
    })
}

// === impl Candidate ===

impl Candidate {
    /// Why it won, e.g. "the longest prefix".
    pub fn merit(&self) -> String {
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

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Method => "its methods do not match",
            Loss::Host => "a location of a closer host matches",
            Loss::Exact => "an exact path comes before it",
            Loss::Shorter => "a shorter prefix",
            Loss::NotTried => "regular expressions are not tried behind ^~",
            Loss::Regex => "a regular expression comes before it",
            Loss::Later => "one that is tried before it matches",
        })
    }
}
