//! Warns of locations that no request can reach because others always match first.
//!
//! Every group of a host rule has hosts that no other group covers, so a location is dead only if it is dead in each of
//! its groups. Inside a group, the order is that of the router (`request`).

use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};

use http::Method;
use http::header::{CACHE_CONTROL, HeaderName, VARY};

use super::LintContext;
use sluicegate_model::{
    Config, HeaderEdits, HeaderText, HostRule, ListenAddress, ListenConfig, LocationConfig, PathRegex,
    PathRule, ValueSource, codes,
};

/// Patterns that match every path: a path starts with a slash, and `$` alone matches at the end of any.
const MATCH_ALL: [&str; 11] = ["^", "^/", "/", ".", "^.", ".*", "^.*", "^/.*", "/.*", "$", ".*$"];

pub(super) fn lint_locations(file: &LintContext<'_>) {
    warn_of_public_answers(file);
    let locations = &file.config.locations;
    let mut groups: HashMap<Option<&HostRule>, Vec<usize>> = HashMap::new();
    for (index, location) in locations.iter().enumerate() {
        if location.hosts.is_empty() {
            groups.entry(None).or_default().push(index);
        }
        for host in &location.hosts {
            let group = groups.entry(Some(host)).or_default();
            if group.last() != Some(&index) {
                group.push(index);
            }
        }
    }
    // Per location: the number of groups in which it is reachable, and a location that hides it in another group.
    let mut alive = vec![0_usize; locations.len()];
    let mut winners: Vec<Option<usize>> = vec![None; locations.len()];
    for members in groups.values() {
        let group = HostRuleGroup::new(locations, members);
        for &member in members {
            match group.find_winner(member) {
                Some(winner) => winners[member] = Some(winner),
                None => alive[member] += 1,
            }
        }
    }
    for (index, location) in locations.iter().enumerate() {
        let path = file.location_value(index, &["path"]);
        if has_empty_segment(&location.path) {
            let message = "this location is never reached: repeated slashes are merged into one first";
            path.warn(codes::UNREACHABLE, message, "write one slash");
        } else if is_of_other_scheme(file.config, location) {
            let message =
                "this location is never reached: its listeners serve another scheme, and no proxy is trusted";
            let help = "listen for its scheme, or name the proxy in front in server.trusted_proxies";
            path.warn(codes::UNREACHABLE, message, help);
        } else if let (0, Some(winner)) = (alive[index], winners[index]) {
            let first = file.location_value(winner, &["path"]).written_text().to_owned();
            let message = format!(
                "this location is never reached: locations[{winner}], `{first}`, takes its requests first"
            );
            path.warn(codes::UNREACHABLE, message, suggest_fix(location, &locations[winner]));
        }
    }
}

/// True if no listener of the location passes on a request of its scheme. Proxies that are trusted tell the scheme.
fn is_of_other_scheme(config: &Config, location: &LocationConfig) -> bool {
    let Some(scheme) = location.scheme else { return false };
    let may_serve = |listen: &ListenConfig| {
        let may_be_unix = matches!(listen.address, ListenAddress::Unix(_) | ListenAddress::Systemd(_));
        selects_listener(location, listen) && (may_be_unix || listen.scheme() == scheme)
    };
    config.server.trusted_proxies.is_empty() && !config.listen.iter().any(may_serve)
}

/// True if the location takes requests of the listener.
pub(super) fn selects_listener(location: &LocationConfig, listen: &ListenConfig) -> bool {
    location.listeners.is_empty()
        || listen.name.as_ref().is_some_and(|name| location.listeners.contains(name))
}

/// Warns once of answers that caches may give to requests whose conditions would choose another location.
fn warn_of_public_answers(file: &LintContext<'_>) {
    let locations = &file.config.locations;
    let by_header = |one: &LocationConfig| {
        one.when.iter().any(|condition| !matches!(condition.source, ValueSource::Query(_)))
    };
    let places: HashSet<_> = locations.iter().filter(|one| by_header(one)).map(place_of).collect();
    let is_public = |(name, value): &(HeaderName, HeaderText)| {
        let HeaderText::Fixed(value) = value else { return false };
        let value = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        *name == CACHE_CONTROL && (value.contains("public") || value.contains("s-maxage"))
    };
    let found = locations.iter().enumerate().find(|(_, one)| {
        let HeaderEdits { set, add, .. } = &one.response_headers;
        let mut edits = set.iter().chain(add);
        let varies = edits.clone().any(|(name, _)| *name == VARY);
        places.contains(&place_of(one)) && !varies && edits.any(is_public)
    });
    if let Some((index, _)) = found {
        let message =
            "caches may give this answer to requests that `when` sends elsewhere: `Vary` is not added";
        let help = "write Vary with the headers of the conditions beside Cache-Control, e.g. Vary: Cookie";
        file.location_value(index, &["response_headers"]).warn(codes::MISREAD, message, help);
    }
}

fn suggest_fix(loser: &LocationConfig, winner: &LocationConfig) -> &'static str {
    match (&loser.path, &winner.path) {
        (PathRule::Regex(_), PathRule::Regex(_)) => {
            "regular expressions are tried in file order: put it before"
        }
        (PathRule::Regex(_), PathRule::Prefix { .. }) => {
            "^~ keeps regular expressions from being tried: leave it out there"
        }
        (PathRule::Prefix { .. }, PathRule::Regex(_)) => {
            "a regular expression comes before a plain prefix: write ^~ here, or a narrower expression there"
        }
        _ => {
            "for one path, locations with `when` come first, then those with a listener, a scheme or methods, then \
             file order decides: remove one"
        }
    }
}

fn has_empty_segment(path: &PathRule) -> bool {
    matches!(path, PathRule::Exact(path) | PathRule::Prefix { path, .. } if path.contains("//"))
}

/// The locations of one host rule.
struct HostRuleGroup<'a> {
    locations: &'a [LocationConfig],
    /// Locations with the same exact path, prefix or pattern, in matching order.
    same_path: HashMap<(Discriminant<PathRule>, &'a str), Vec<usize>>,
    /// Regexes that match everything, in file order.
    match_all: Vec<usize>,
    /// Each `^~` prefix below which no prefix of the group lets regexes be tried.
    regex_blocking: HashMap<&'a str, Vec<usize>>,
}

impl<'a> HostRuleGroup<'a> {
    fn new(locations: &'a [LocationConfig], members: &[usize]) -> HostRuleGroup<'a> {
        let mut same_path: HashMap<_, Vec<usize>> = HashMap::new();
        for &member in members {
            same_path.entry(path_key(&locations[member])).or_default().push(member);
        }
        let is_regex = |member: usize| matches!(locations[member].path, PathRule::Regex(_));
        for same in same_path.values_mut() {
            match is_regex(same[0]) {
                true => same.sort_by_key(|&member| locations[member].when.is_empty()),
                false => same.sort_by_key(|&member| locations[member].match_rank()),
            }
        }
        let takes_all = |member: &usize| is_regex(*member) && is_match_all(&locations[*member].written_path);
        let prefix_of = |member: usize| match &locations[member].path {
            PathRule::Prefix { path, no_regex } => Some((path.as_str(), *no_regex)),
            _ => None,
        };
        let prefixes = members.iter().filter_map(|&member| prefix_of(member));
        let mut open: Vec<&str> = prefixes.filter(|(_, no_regex)| !no_regex).map(|(path, _)| path).collect();
        open.sort_unstable();
        let is_open_below = |path: &str| {
            let next = open.partition_point(|other| *other < path);
            open.get(next).is_some_and(|other| other.starts_with(path))
        };
        let mut regex_blocking: HashMap<&str, Vec<usize>> = HashMap::new();
        for &member in members {
            if let Some((path, true)) = prefix_of(member)
                && !is_open_below(path)
            {
                regex_blocking.entry(path).or_default().push(member);
            }
        }
        HostRuleGroup {
            locations,
            same_path,
            match_all: members.iter().copied().filter(takes_all).collect(),
            regex_blocking,
        }
    }

    /// A location that always matches before `member`.
    fn find_winner(&self, member: usize) -> Option<usize> {
        let location = &self.locations[member];
        let same = self.same_path.get(&path_key(location)).map_or(&[][..], Vec::as_slice);
        let before = same.iter().copied().take_while(|&other| other != member);
        let winners: Vec<usize> = match &location.path {
            PathRule::Regex(regex) => {
                // One with conditions is tried where the first of its expression stands.
                let place = if location.when.is_empty() { member } else { member.min(first_of(same)) };
                let earlier = self.match_all.iter().copied().filter(|&other| other < place);
                before.chain(earlier).chain(self.find_blocking(regex)).collect()
            }
            PathRule::Prefix { no_regex: false, .. } => {
                before.chain(self.match_all.iter().copied()).collect()
            }
            PathRule::Prefix { .. } | PathRule::Exact(_) => before.collect(),
        };
        self.find_covering(location, &winners)
    }

    /// The `^~` prefixes that every match of `regex` lies below.
    fn find_blocking(&self, regex: &PathRegex) -> Vec<usize> {
        let literals = regex.prefixes().unwrap_or_default();
        let first = literals.first().and_then(|literal| std::str::from_utf8(literal).ok()).unwrap_or("/");
        let is_below =
            |above: &&str| *above == "/" || literals.iter().all(|text| text.starts_with(above.as_bytes()));
        let above = first.match_indices('/').map(|(at, slash)| &first[..at + slash.len()]).filter(is_below);
        // `^~ /api` covers `/api/` too.
        let keys = above.flat_map(|folder| [folder, folder.trim_end_matches('/')]);
        keys.filter_map(|path| self.regex_blocking.get(path)).flatten().copied().collect()
    }

    /// One of `winners`, if together they accept every method of `location` wherever it comes in.
    fn find_covering(&self, location: &LocationConfig, winners: &[usize]) -> Option<usize> {
        let accepts_arrival = |winner: &&usize| accepts_arrivals_of(&self.locations[**winner], location);
        let winners: Vec<usize> = winners.iter().filter(accepts_arrival).copied().collect();
        let any = winners.iter().copied().find(|&winner| self.locations[winner].methods.is_empty());
        if any.is_some() || location.methods.is_empty() {
            return any;
        }
        let accepted = |method: &Method| {
            winners.iter().any(|&winner| accepts_method(&self.locations[winner].methods, method))
        };
        // HEAD needs no case of its own: a location that accepts GET accepts HEAD.
        location.methods.iter().all(accepted).then(|| winners.first().copied()).flatten()
    }
}

fn first_of(members: &[usize]) -> usize {
    members.iter().copied().min().unwrap_or(usize::MAX)
}

/// True if `winner` takes requests of every scheme and listener, and with all values, that `location` takes.
fn accepts_arrivals_of(winner: &LocationConfig, location: &LocationConfig) -> bool {
    let conditions = location.when_identity();
    if !winner.when_identity().iter().all(|condition| conditions.contains(condition)) {
        return false;
    }
    let accepts_listeners = winner.listeners.is_empty()
        || !location.listeners.is_empty()
            && location.listeners.iter().all(|listener| winner.listeners.contains(listener));
    accepts_listeners && (winner.scheme.is_none() || winner.scheme == location.scheme)
}

fn accepts_method(methods: &[Method], method: &Method) -> bool {
    methods.contains(method) || *method == Method::HEAD && methods.contains(&Method::GET)
}

/// The hosts and the path.
fn place_of(location: &LocationConfig) -> (&[HostRule], (Discriminant<PathRule>, &str)) {
    (&location.hosts, path_key(location))
}

/// The kind of a path and its text.
fn path_key(location: &LocationConfig) -> (Discriminant<PathRule>, &str) {
    let text = match &location.path {
        PathRule::Exact(path) | PathRule::Prefix { path, .. } => path,
        // The text as written, because the compiled pattern does not show its case sensitivity.
        PathRule::Regex(_) => &location.written_path,
    };
    (discriminant(&location.path), text)
}

/// `written_path` is e.g. `~* ^/(.*)`.
fn is_match_all(written_path: &str) -> bool {
    let pattern = written_path.trim_start_matches('~').trim_start_matches('*').trim();
    let pattern = pattern.replace("(.*)", ".*");
    MATCH_ALL.contains(&pattern.as_str())
}
