//! A location with a warning that it is unreachable is reached by no request.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;
use sluicegate_config as config;
use sluicegate_http::request::location::{Arrival, LocationLookup, Locations};
use sluicegate_http::request::source::SourceInput;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::{LocationId, Scheme};

const PATHS: [&str; 15] = [
    "= /",
    "= /a",
    "/",
    "/a",
    "/a/b",
    "^~ /",
    "^~ /a",
    "^~ /a/",
    "~ ^/",
    "~ (.*)",
    "~ a",
    "~ b$",
    "~* A",
    "~ ^/a/b",
    "~ ^/(a/|c)",
];
const HOSTS: [&str; 6] =
    ["any", "a.test", "b.test", "\"*.test\"", "[a.test, \"*.test\"]", "[a.test, b.test]"];
const METHODS: [&str; 6] = ["any", "GET", "HEAD", "POST", "[GET, POST]", "[HEAD, POST]"];

/// Scheme, listener and conditions of a location.
const ORIGINS: [(&str, &str, &str); 10] = [
    ("any", "any", "none"),
    ("http", "any", "none"),
    ("https", "any", "none"),
    ("any", "a", "none"),
    ("http", "[b, a]", "none"),
    ("https", "b", "none"),
    ("any", "any", "{ \"header:x-a\": 1 }"),
    ("any", "any", "{ \"header:x-a\": \"*\" }"),
    ("http", "any", "{ \"header:x-a\": \"!\" }"),
    ("any", "[b, a]", "{ \"header:x-b\": \"!\", \"header:X-A\": 1 }"),
];

/// The locations begin on the third line. The trusted proxy may tell any scheme.
fn file(rows: &[(usize, usize, usize, usize)]) -> String {
    let head = "listen: [{ address: \":1\", name: a }, { address: \":2\", name: b }]\n\
                server: { trusted_proxies: 10.0.0.1 }\nlocations:\n";
    rows.iter().fold(head.to_owned(), |text, &(path, host, methods, origin)| {
        let (path, host, methods, (scheme, listener, when)) =
            (PATHS[path], HOSTS[host], METHODS[methods], ORIGINS[origin]);
        let origin = format!("scheme: {scheme}, listener: {listener}, when: {when}");
        text + &format!(
            "  - {{ path: \"{path}\", host: {host}, methods: {methods}, {origin}, upstream: demo }}\n"
        )
    })
}

/// The locations that some request of a full grid reaches.
fn reached(locations: &Locations) -> Vec<usize> {
    let mut reached = Vec::new();
    let lines: [&[(&'static str, &'static str)]; 4] =
        [&[], &[("x-a", "1")], &[("x-a", "1"), ("x-b", "1")], &[("x-a", "2"), ("x-b", "1")]];
    let field = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
    let mut heads: Vec<HeaderMap> = lines.iter().map(|lines| lines.iter().map(field).collect()).collect();
    heads.truncate(if locations.has_conditions { 4 } else { 1 });
    for host in ["a.test", "b.test", "c.test", "other", ""] {
        for path in ["/", "/a", "/ab", "/a/b", "/a/bc", "/c", "/A", "/x/b", "/cb"] {
            for method in [Method::GET, Method::HEAD, Method::POST, Method::PUT] {
                for scheme in [Scheme::Http, Scheme::Https] {
                    for listener in [None, Some("a"), Some("b")] {
                        for headers in &heads {
                            let values = Some(SourceInput { headers, query: None, token: None, body: None });
                            let arrival = Arrival { method: &method, scheme, listener, values };
                            let found = locations.find_location(host, path.as_bytes(), &arrival);
                            if let LocationLookup::Found(LocationId(index)) = found {
                                reached.push(index);
                            }
                        }
                    }
                }
            }
        }
    }
    reached
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_reachable_location_is_warned_of(
        rows in proptest::collection::vec(
            (0..PATHS.len(), 0..HOSTS.len(), 0..METHODS.len(), 0..ORIGINS.len()), 1..7,
        ),
    ) {
        let text = file(&rows);
        // A repeated location is an error, and then there are no warnings.
        let Ok(loaded) = config::parse(&text, "gateway.yaml") else { return Ok(()) };
        let reached = reached(&Locations::new(&loaded.config.locations));
        for warning in loaded.warnings.iter().filter(|warning| warning.code == codes::UNREACHABLE) {
            let index = warning.line - 4;
            prop_assert!(!reached.contains(&index), "{}\n{text}", warning.message);
        }
    }
}
