//! The indexed search against trying every location.

use super::*;

/// Patterns with a literal at either end, at both or at none; several share one.
const PATTERNS: [&str; 14] = [
    "~ ^/a",
    "~ ^/a/b$",
    "~ ^/(a|ab)",
    "~ ^/(a|b)/?",
    "~ b$",
    r"~ (a|\.b)$",
    "~* ^/A",
    "~* B$",
    "~ a",
    "~ ^/.*b$",
    "~ ^",
    "~ ^/a|b$",
    "~ ^/[ab]b?$",
    "~ .$",
];

/// nginx's rules for one host, read aloud: every location is tried.
fn locate_naively(locations: &[LocationConfig], path: &str, arrival: &Arrival<'_>) -> Option<usize> {
    let Arrival { method, scheme, listener, values } = *arrival;
    let accepts = |methods: &[Method]| {
        methods.is_empty()
            || methods.contains(method)
            || *method == Method::HEAD && methods.contains(&Method::GET)
    };
    let came_in = |one: &LocationConfig| {
        one.scheme.is_none_or(|own| own == scheme)
            && (one.listeners.is_empty() || one.listeners.iter().any(|own| Some(own.as_str()) == listener))
            && one
                .when
                .iter()
                .all(|condition| conditions::holds(condition, values.map(|values| values.headers)))
    };
    let accepting = || locations.iter().enumerate().filter(|(_, one)| accepts(&one.methods) && came_in(one));
    // Of equal paths, those with conditions come first; then the first with a listener, then with a scheme, then with
    // methods.
    let by_rank = |one: &&(usize, &LocationConfig)| {
        let (index, one) = **one;
        match one.when.is_empty() {
            true => (1, one.listeners.is_empty(), one.scheme.is_none(), one.methods.is_empty(), index),
            false => (0, false, false, false, index),
        }
    };
    let exact: Vec<_> =
        accepting().filter(|(_, one)| matches!(&one.path, PathRule::Exact(own) if own == path)).collect();
    if let Some((index, _)) = exact.iter().min_by_key(by_rank) {
        return Some(*index);
    }
    let length = |one: &LocationConfig| match &one.path {
        PathRule::Prefix { path: own, .. } if path.starts_with(own.as_str()) => Some(own.len()),
        _ => None,
    };
    let longest = accepting().filter_map(|(_, one)| length(one)).max();
    let prefixes: Vec<_> =
        accepting().filter(|(_, one)| longest.is_some() && length(one) == longest).collect();
    let prefix = prefixes.iter().min_by_key(by_rank);
    if let Some((index, LocationConfig { path: PathRule::Prefix { no_regex: true, .. }, .. })) = prefix {
        return Some(*index);
    }
    let regexes = accepting().filter(
        |(_, one)| matches!(&one.path, PathRule::Regex(regex) if regex.is_match(path.as_bytes(), path)),
    );
    // With conditions, it stands before the first of the same expression without any.
    let by_place = |(index, one): &(usize, &LocationConfig)| {
        let is_alike =
            |other: &&LocationConfig| other.when.is_empty() && other.written_path == one.written_path;
        let plain = locations.iter().position(|other| is_alike(&other)).unwrap_or(usize::MAX);
        if one.when.is_empty() { (*index, 1, 0) } else { (plain.min(*index), 0, *index) }
    };
    regexes.min_by_key(by_place).or(prefix.copied()).map(|(index, _)| index)
}

proptest! {
    /// The search by literals and sorted prefixes against trying every location.
    #[test]
    fn the_search_finds_what_trying_all_finds(
        rows in proptest::collection::vec((0..4_usize, "[ab/]{0,3}", 0..PATTERNS.len(), 0..METHODS.len()), 1..16),
        path in "/([ab/.]|é){0,4}",
        method in proptest::sample::select(vec![Method::GET, Method::HEAD, Method::POST]),
        scheme in proptest::sample::select(vec![Scheme::Http, Scheme::Https]),
        listener in proptest::sample::select(vec![None, Some("edge"), Some("back")]),
        headers in conditions::any_headers(),
    ) {
        let arrival = Arrival { method: &method, scheme, listener, values: Some(conditions::values(&headers)) };
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(kind, path, pattern, methods)| match kind {
                3 => (PATTERNS[pattern].to_owned(), METHODS[methods]),
                kind => (format!("{}{path}", KINDS[kind]), METHODS[methods]),
            })
            .collect();
        let rows: Vec<_> = rows.iter().map(|(path, methods)| (path.as_str(), "", *methods)).collect();
        let site = site(&rows);
        let expected = locate_naively(&site.locations, &path, &arrival);
        match site.search.find_location("a.test", path.as_bytes(), &arrival) {
            LocationLookup::Found(LocationId(index)) => prop_assert_eq!(Some(index), expected),
            _ => prop_assert_eq!(None, expected),
        }
    }

    /// Suffixes of hosts against comparing with each.
    #[test]
    fn the_longest_suffix_is_found(
        suffixes in proptest::collection::btree_set(r"(\.[ab]{1,2}){1,3}", 1..8),
        host in r"[ab]{1,2}(\.[ab]{1,2}){0,4}",
    ) {
        let hosts: Vec<String> = suffixes.iter().map(|suffix| format!("*{suffix}")).collect();
        let rows: Vec<_> = hosts.iter().map(|host| ("/", host.as_str(), "")).collect();
        let matching = suffixes.iter().enumerate().filter(|(_, suffix)| host.ends_with(*suffix));
        let longest = matching.max_by_key(|(_, suffix)| suffix.len()).map(|(index, _)| LocationId(index));
        let found = match site(&rows).search.find_location(&host, b"/", &plain(&Method::GET)) {
            LocationLookup::Found(index) => Some(index),
            _ => None,
        };
        prop_assert_eq!(found, longest);
    }
}

#[test]
fn ten_thousand_locations_are_found() {
    let rows: Vec<String> = (0..10_000)
        .map(|n| match n % 4 {
            0 => format!("= /exact/{n}/item"),
            1 => format!("/prefix/{n}/"),
            2 => format!("~ ^/regex/{n}/[a-z]+$"),
            _ => format!(r"~ /file-{n}\.(gif|jpg)$"),
        })
        .chain(["~ ^/regex/6/".to_owned(), "~ [.]gif$".to_owned(), "/".to_owned()])
        .collect();
    let site = site(&rows.iter().map(|row| (row.as_str(), "", "")).collect::<Vec<_>>());
    let find = |path: &str| match site.search.find_location("", path.as_bytes(), &plain(&Method::GET)) {
        LocationLookup::Found(LocationId(index)) => index,
        _ => usize::MAX,
    };
    for n in (0..10_000).step_by(4) {
        assert_eq!(find(&format!("/exact/{n}/item")), n);
        assert_eq!(find(&format!("/prefix/{}/x", n + 1)), n + 1);
        assert_eq!(find(&format!("/regex/{}/x", n + 2)), n + 2);
        assert_eq!(find(&format!("/any/file-{}.jpg", n + 3)), n + 3);
    }
    assert_eq!(find("/regex/6/abc"), 6, "the first expression in file order");
    assert_eq!(find("/regex/6/7"), 10_000, "the next one that matches");
    assert_eq!(find("/exact/0/item.gif"), 10_001);
    assert_eq!(find("/prefix/1/x.gif"), 10_001, "an expression beats a prefix");
    assert_eq!(find("/exact/0"), 10_002);
}
