//! nginx's choice of a location, case by case.

mod conditions;
mod origins;
mod search;

use http::StatusCode;
use proptest::prelude::*;

use super::*;
use sluicegate_model::{ActionConfig, HeaderEdits, HostHeader, LocationId, OnRejectPatch, TemplateConfig};

/// A location with its path as in the file; `hosts` and `conditions` are separated by spaces. A condition is a method,
/// a scheme such as `http:`, a listener such as `@edge` or a value such as `?header:x-a=1`.
fn location(path: &str, hosts: &str, conditions: &str) -> LocationConfig {
    let is_method = |word: &&str| !word.ends_with(':') && !word.starts_with(['@', '?']);
    let words = || conditions.split_whitespace();
    let scheme = |word| match word {
        "http:" => Some(Scheme::Http),
        "https:" => Some(Scheme::Https),
        _ => None,
    };
    let rule = match path.split_once(' ') {
        Some(("=", path)) => PathRule::Exact(path.to_owned()),
        Some(("^~", path)) => PathRule::Prefix { path: path.to_owned(), no_regex: true },
        Some(("~", pattern)) => PathRule::Regex(PathRegex::compile(pattern, false).expect("a pattern")),
        Some(("~*", pattern)) => PathRule::Regex(PathRegex::compile(pattern, true).expect("a pattern")),
        _ => PathRule::Prefix { path: path.to_owned(), no_regex: false },
    };
    let host_rule = |host: &str| match host.strip_prefix('*') {
        Some(suffix) => HostRule::Suffix(suffix.to_owned()),
        None => HostRule::Exact(host.to_owned()),
    };
    LocationConfig {
        reads_account: true,
        owner: None,
        access: Default::default(),
        name: path.to_owned(),
        written_path: path.to_owned(),
        path: rule,
        hosts: hosts.split_whitespace().map(host_rule).collect(),
        methods: words().filter(is_method).map(|name| name.parse().expect("a method")).collect(),
        scheme: words().find_map(scheme),
        listeners: words().filter_map(|word| word.strip_prefix('@')).map(str::to_owned).collect(),
        action: ActionConfig::Respond {
            status: StatusCode::OK,
            body: TemplateConfig(Vec::new()),
            content_type: HeaderValue::from_static("text/plain"),
        },
        limits: Vec::new(),
        views: Vec::new(),
        when: words().filter_map(|word| word.strip_prefix('?')).map(conditions::condition).collect(),
        strip: None,
        rewrite: None,
        add_prefix: None,
        host_header: HostHeader::Client,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
        on_reject: OnRejectPatch::default(),
        timeout: None,
        bandwidth: None,
        body_peek: None,
        max_body: None,
        cors: None,
        auth: None,
    }
}

/// Over HTTP, by a listener without a name.
fn plain(method: &Method) -> Arrival<'_> {
    Arrival { method, scheme: Scheme::Http, listener: None, values: None }
}

struct LocationTable {
    locations: Vec<LocationConfig>,
    search: Locations,
}

fn site(rows: &[(&str, &str, &str)]) -> LocationTable {
    let locations: Vec<_> =
        rows.iter().map(|(path, hosts, methods)| location(path, hosts, methods)).collect();
    LocationTable { search: Locations::new(&locations), locations }
}

impl LocationTable {
    /// The path of the location found, or the other result.
    fn locate_with(&self, host: &str, path: &str, method: &Method) -> String {
        self.locate_arrival(host, path, &plain(method))
    }

    fn locate_arrival(&self, host: &str, path: &str, arrival: &Arrival<'_>) -> String {
        match self.search.find_location(host, path.as_bytes(), arrival) {
            LocationLookup::Found(index) => self.locations[index].name.clone(),
            LocationLookup::NotFound => "404".to_owned(),
            LocationLookup::MethodNotAllowed { allow } => {
                format!("405 {}", allow.to_str().expect("method names"))
            }
        }
    }

    fn get(&self, path: &str) -> String {
        self.locate_with("a.test", path, &Method::GET)
    }
}

#[test]
fn paths_are_chosen_among_as_in_nginx() {
    let site = site(&[
        ("/", "", ""),
        ("= /", "", ""),
        ("= /exact", "", ""),
        ("/images/", "", ""),
        ("^~ /images/raw/", "", ""),
        ("/docs/", "", ""),
        ("/docs/old/", "", ""),
        (r"~ /casefull/", "", ""),
        (r"~* \.(gif|jpg)$", "", ""),
        (r"~ \.gif$", "", ""),
        (r"~ ^/docs/old/.*\.html$", "", ""),
    ]);
    let rows = [
        ("/", "= /", "exact before the prefix"),
        ("/x", "/", "the root takes what nobody else does"),
        ("/exact", "= /exact", "exact"),
        ("/exact/", "/", "exact is the whole path"),
        ("/exactly", "/", "exact is no prefix"),
        ("/images/a.png", "/images/", "a prefix if no regex matches"),
        ("/images/a.gif", r"~* \.(gif|jpg)$", "a regex beats a plain prefix"),
        ("/images/raw/a.gif", "^~ /images/raw/", "^~ ends the search"),
        ("/t.GIF", r"~* \.(gif|jpg)$", "~* ignores case"),
        ("/t.gif", r"~* \.(gif|jpg)$", "the first regex in file order"),
        ("/casefull/", "~ /casefull/", "~ minds case"),
        ("/CASEFULL/", "/", "~ minds case"),
        ("/docs/old/x", "/docs/old/", "the longest prefix"),
        ("/docs/old/x.html", r"~ ^/docs/old/.*\.html$", "a regex beats the longest prefix"),
        ("/docs/older", "/docs/", "a prefix is compared whole"),
        ("/images/ra", "/images/", "a prefix of a prefix is none"),
    ];
    for (path, expected, why) in rows {
        assert_eq!(site.get(path), expected, "{path}: {why}");
    }
}

#[test]
fn a_prefix_is_bytes_not_segments() {
    let site = site(&[("/admin", "", "")]);
    assert_eq!(site.get("/administrator"), "/admin");
    assert_eq!(site.get("/admi"), "404");
    assert_eq!(site.get("/Admin"), "404");
}

#[test]
fn the_longest_prefix_decides_whether_regexes_are_tried() {
    let site = site(&[("^~ /a/", "", ""), ("/a/b/", "", ""), ("~ x$", "", "")]);
    assert_eq!(site.get("/a/x"), "^~ /a/");
    assert_eq!(site.get("/a/b/x"), "~ x$", "the longer prefix says nothing against regexes");
    assert_eq!(site.get("/a/b/y"), "/a/b/");
}

#[test]
fn a_regex_sees_a_path_that_is_no_text() {
    let site = site(&[("/", "", ""), (r"~ ^/private/.*\.php$", "", "")]);
    let located = site.search.find_location("a.test", b"/private/\xFF.php", &plain(&Method::GET));
    assert_eq!(located, LocationLookup::Found(LocationId(1)));
}

#[test]
fn hosts_come_before_paths() {
    let site = site(&[
        ("/any/", "", ""),
        ("/www/", "www.example.com", ""),
        ("/sub/", "*.example.com", ""),
        ("/deep/", "*.deep.example.com", ""),
        ("= /any/exact", "", ""),
        ("/any/e", "www.example.com", ""),
    ]);
    let rows = [
        ("www.example.com", "/www/x", "/www/"),
        ("www.example.com", "/sub/x", "/sub/"),
        ("www.example.com", "/any/x", "/any/"),
        ("www.example.com", "/any/exact", "/any/e"),
        ("example.com", "/sub/x", "404"),
        ("notexample.com", "/sub/x", "404"),
        ("x.deep.example.com", "/deep/", "/deep/"),
        ("x.deep.example.com", "/sub/", "/sub/"),
        ("deep.example.com", "/deep/", "404"),
        ("deep.example.com", "/sub/", "/sub/"),
        ("", "/any/", "/any/"),
        ("", "/www/", "404"),
    ];
    for (host, path, expected) in rows {
        assert_eq!(site.locate_with(host, path, &Method::GET), expected, "{host} {path}");
    }
}

#[test]
fn the_longest_suffix_wins() {
    let site =
        site(&[("/1", "*.test", ""), ("/", "*.b.test", ""), ("/", "*.a.b.test", "GET"), ("/", "", "")]);
    assert_eq!(
        site.search.find_location("x.a.b.test", b"/1", &plain(&Method::GET)),
        LocationLookup::Found(LocationId(2))
    );
    assert_eq!(
        site.search.find_location("x.b.test", b"/1", &plain(&Method::GET)),
        LocationLookup::Found(LocationId(1))
    );
    assert_eq!(
        site.search.find_location("x.test", b"/1", &plain(&Method::GET)),
        LocationLookup::Found(LocationId(0))
    );
    assert_eq!(
        site.search.find_location("x.test", b"/2", &plain(&Method::GET)),
        LocationLookup::Found(LocationId(3))
    );
}

#[test]
fn a_location_of_other_methods_is_skipped() {
    let site = site(&[
        ("= /x", "", "POST"),
        ("^~ /x", "", "PUT"),
        ("~ x$", "", "DELETE"),
        ("/", "", "GET"),
        ("/h", "a.test", "PATCH"),
    ]);
    assert_eq!(site.locate_with("a.test", "/x", &Method::POST), "= /x");
    assert_eq!(site.locate_with("a.test", "/x", &Method::PUT), "^~ /x");
    assert_eq!(
        site.locate_with("a.test", "/x", &Method::DELETE),
        "~ x$",
        "a ^~ that is searched past ends no search"
    );
    assert_eq!(site.locate_with("a.test", "/x", &Method::GET), "/");
    assert_eq!(site.locate_with("a.test", "/h", &Method::GET), "/", "and so is the group of the host");
    assert_eq!(site.locate_with("a.test", "/x", &Method::OPTIONS), "405 DELETE, GET, HEAD, POST, PUT");
    assert_eq!(site.locate_with("a.test", "/h", &Method::PUT), "405 GET, HEAD, PATCH");
    assert_eq!(site.locate_with("b.test", "/h", &Method::PUT), "405 GET, HEAD");
    let twice = self::site(&[("/", "", "GET POST"), ("/x", "", "POST")]);
    assert_eq!(twice.locate_with("a.test", "/x", &Method::PUT), "405 GET, HEAD, POST", "each method once");
}

#[test]
fn get_brings_head() {
    let site = site(&[("/get", "", "GET"), ("/post", "", "POST")]);
    assert_eq!(site.locate_with("a.test", "/get", &Method::HEAD), "/get");
    assert_eq!(site.locate_with("a.test", "/post", &Method::HEAD), "405 POST");
    assert_eq!(site.locate_with("a.test", "/none", &Method::HEAD), "404");
}

#[test]
fn named_methods_are_tried_before_any() {
    let site = site(&[("/x", "", ""), ("/x", "", "POST")]);
    assert_eq!(
        site.search.find_location("", b"/x", &plain(&Method::POST)),
        LocationLookup::Found(LocationId(1))
    );
    assert_eq!(
        site.search.find_location("", b"/x", &plain(&Method::GET)),
        LocationLookup::Found(LocationId(0))
    );
}

#[test]
fn one_location_may_serve_several_hosts() {
    let site = site(&[("/x", "a.test *.b.test", "")]);
    assert_eq!(site.locate_with("a.test", "/x", &Method::GET), "/x");
    assert_eq!(site.locate_with("x.b.test", "/x", &Method::GET), "/x");
    assert_eq!(site.locate_with("c.test", "/x", &Method::GET), "404");
}

#[test]
fn an_identity_outlives_the_place_in_the_file() {
    let before = site(&[("/a", "", ""), ("/b", "a.test", "GET")]);
    let after = site(&[
        ("/new", "", ""),
        ("/b", "a.test", "GET"),
        ("/b", "a.test", "POST"),
        ("/b", "*a.test", "GET"),
    ]);
    assert_eq!(before.search.identity_of(LocationId(1)), after.search.identity_of(LocationId(1)));
    let mut identities: Vec<_> = (0..4).map(|index| after.search.identity_of(LocationId(index))).collect();
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len(), 4);
    assert_eq!(
        after.search.identity_of(LocationId(1)),
        889_339_772_367_846_638,
        "gateways count together by it, and saved counters are found by it"
    );
}

proptest! {
    /// The ordered search against the plain rule: the longest matching prefix.
    #[test]
    fn the_longest_prefix_is_found(
        prefixes in proptest::collection::btree_set("/[ab/]{0,6}", 1..12),
        path in "/[abc/]{0,8}",
    ) {
        let rows: Vec<_> = prefixes.iter().map(|path| (path.as_str(), "", "")).collect();
        let matching = prefixes.iter().filter(|prefix| path.starts_with(*prefix));
        let longest = matching.max_by_key(|prefix| prefix.len());
        prop_assert_eq!(site(&rows).get(&path), longest.map_or("404", String::as_str));
    }

    /// The winner among the candidates is always the location that the search finds.
    #[test]
    fn the_winner_among_the_candidates_is_the_one_that_is_located(
        rows in proptest::collection::vec((0..KINDS.len(), "[ab]{0,2}", 0..NARROW.len(), 0..METHODS.len()), 1..10),
        host in proptest::sample::select(vec!["a.test", "x.a.test", "b.test", ""]),
        path in "/[ab]{0,3}",
        method in proptest::sample::select(vec![Method::GET, Method::HEAD, Method::POST, Method::PUT]),
        scheme in proptest::sample::select(vec![Scheme::Http, Scheme::Https]),
        listener in proptest::sample::select(vec![None, Some("edge"), Some("back")]),
        headers in conditions::any_headers(),
    ) {
        let arrival = Arrival { method: &method, scheme, listener, values: Some(conditions::values(&headers)) };
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(kind, path, host, methods)| (format!("{}{path}", KINDS[kind]), NARROW[host], METHODS[methods]))
            .collect();
        let rows: Vec<_> = rows.iter().map(|(path, host, methods)| (path.as_str(), *host, *methods)).collect();
        let site = site(&rows);
        let candidates = site.search.list_candidates(host, path.as_bytes(), &arrival);
        let winners: Vec<_> = candidates.iter().filter(|candidate| candidate.loss.is_none()).collect();
        match site.search.find_location(host, path.as_bytes(), &arrival) {
            LocationLookup::Found(index) => {
                prop_assert_eq!(winners.iter().map(|winner| winner.location).collect::<Vec<_>>(), [index]);
            }
            LocationLookup::NotFound => {
                let origin =
                    [LossReason::Scheme, LossReason::Listener, LossReason::Condition].map(Some);
                prop_assert!(candidates.iter().all(|candidate| origin.contains(&candidate.loss)));
            }
            LocationLookup::MethodNotAllowed { .. } => {
                prop_assert!(candidates.iter().any(|candidate| candidate.loss == Some(LossReason::Method)));
                prop_assert!(winners.is_empty());
            }
        }
    }
}

const KINDS: [&str; 5] = ["= /", "/", "^~ /", "~ ", "~* "];
const NARROW: [&str; 5] = ["", "a.test", "*.a.test", "*.test", "a.test *.test"];
const METHODS: [&str; 12] = [
    "",
    "GET",
    "POST",
    "HEAD PUT",
    "http:",
    "https: GET",
    "@edge",
    "@edge @back http: POST",
    "?header:x-a=1",
    "?header:x-a=* POST",
    "?header:x-a=! @edge",
    "?header:x-a=~[12] ?header:x-b=!",
];

#[test]
fn every_loser_has_its_reason() {
    let site = site(&[
        ("= /a/b.gif", "", "POST"),
        ("/", "", ""),
        ("/a/", "", ""),
        (r"~ \.gif$", "", ""),
        ("~ b", "", ""),
        ("/a/b", "*.test", "PUT"),
        ("^~ /q/", "", ""),
        ("/a/", "c.test", ""),
    ]);
    let explain = |host: &str, path: &str| {
        let candidates = site.search.list_candidates(host, path.as_bytes(), &plain(&Method::GET));
        let losses = candidates.iter().map(|one| (one.location.0, one.loss)).collect::<Vec<_>>();
        (losses, candidates.into_iter().find(|one| one.loss.is_none()).map(|one| one.winning_reason()))
    };
    let (losses, reason) = explain("a.test", "/a/b.gif");
    let expected = [
        (5, Some(LossReason::Method)),
        (0, Some(LossReason::Method)),
        (2, Some(LossReason::Regex)),
        (1, Some(LossReason::Regex)),
        (3, None),
        (4, Some(LossReason::Later)),
    ];
    assert_eq!(losses, expected);
    assert_eq!(reason.as_deref(), Some("the first regular expression in file order that matches"));
    let (losses, _) = explain("a.test", "/q/b");
    assert_eq!(losses, [(6, None), (1, Some(LossReason::Shorter)), (4, Some(LossReason::NotTried))]);
    let (losses, reason) = explain("c.test", "/a/x");
    assert_eq!(losses, [(7, None), (2, Some(LossReason::Host)), (1, Some(LossReason::Host))]);
    assert!(reason.is_some_and(|reason| reason.ends_with("among the locations of this host")));
}
