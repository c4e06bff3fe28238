//! A location with a warning that it is unreachable is reached by no request.

use http::Method;
use proptest::prelude::*;
use sluicegate::config::diagnostics::codes;
use sluicegate::config::{self, LocationId};
use sluicegate::request::location::{LocationLookup, Locations};

const PATHS: [&str; 12] =
    ["= /", "= /a", "/", "/a", "/a/b", "^~ /", "^~ /a", "~ ^/", "~ (.*)", "~ a", "~ b$", "~* A"];
const HOSTS: [&str; 6] =
    ["any", "a.test", "b.test", "\"*.test\"", "[a.test, \"*.test\"]", "[a.test, b.test]"];
const METHODS: [&str; 6] = ["any", "GET", "HEAD", "POST", "[GET, POST]", "[HEAD, POST]"];

fn file(rows: &[(usize, usize, usize)]) -> String {
    rows.iter().fold("locations:\n".to_owned(), |text, &(path, host, methods)| {
        let (path, host, methods) = (PATHS[path], HOSTS[host], METHODS[methods]);
        text + &format!("  - {{ path: \"{path}\", host: {host}, methods: {methods}, upstream: demo }}\n")
    })
}

/// The locations that some request of a full grid reaches.
fn reached(locations: &Locations) -> Vec<usize> {
    let mut reached = Vec::new();
    for host in ["a.test", "b.test", "c.test", "other", ""] {
        for path in ["/", "/a", "/ab", "/a/b", "/a/bc", "/c", "/A", "/x/b", "/cb"] {
            for method in [Method::GET, Method::HEAD, Method::POST, Method::PUT] {
                if let LocationLookup::Found(LocationId(index)) =
                    locations.find_location(host, path.as_bytes(), &method)
                {
                    reached.push(index);
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
        rows in proptest::collection::vec((0..PATHS.len(), 0..HOSTS.len(), 0..METHODS.len()), 1..7),
    ) {
        let text = file(&rows);
        // A repeated location is an error, and then there are no warnings.
        let Ok(loaded) = config::parse(&text, "gateway.yaml") else { return Ok(()) };
        let reached = reached(&Locations::new(&loaded.config.locations));
        for warning in loaded.warnings.iter().filter(|warning| warning.code == codes::UNREACHABLE) {
            let index = warning.line - 2;
            prop_assert!(!reached.contains(&index), "{}\n{text}", warning.message);
        }
    }
}
