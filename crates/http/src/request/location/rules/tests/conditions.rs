//! Locations with conditions.

use http::HeaderMap;

use super::*;
use sluicegate_model::value::names::parse_source;
use sluicegate_model::{ConditionConfig, ValueSource, ValueTest};

/// A condition as `header:x-a=1`.
pub(super) fn condition(text: &str) -> ConditionConfig {
    let (source, written) = text.split_once('=').expect("a value");
    let test = match written {
        "*" => ValueTest::Present,
        "!" => ValueTest::Absent,
        _ => match written.strip_prefix('~') {
            Some(pattern) => ValueTest::Matches(PathRegex::compile(pattern, false).expect("a pattern")),
            None => ValueTest::Equals(written.to_owned()),
        },
    };
    let source = parse_source(source).expect("a source").expect("a source");
    ConditionConfig { source, test, written: written.to_owned() }
}

/// Lines of two headers, of which some are empty or occur twice.
pub(super) fn any_headers() -> impl Strategy<Value = HeaderMap> {
    let line = (
        proptest::sample::select(vec!["x-a", "x-a", "x-b"]),
        proptest::sample::select(vec!["1", "2", "x", ""]),
    );
    proptest::collection::vec(line, 0..3).prop_map(|lines| {
        let lines = lines.into_iter();
        lines.map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value))).collect()
    })
}

pub(super) fn values(headers: &HeaderMap) -> SourceInput<'_> {
    SourceInput { headers, query: None, token: None, body: None }
}

/// What a condition on a header means, read aloud.
pub(super) fn holds(condition: &ConditionConfig, headers: Option<&HeaderMap>) -> bool {
    let ValueSource::Header(name) = &condition.source else { panic!("a header") };
    let lines: Vec<&[u8]> =
        headers.map_or(Vec::new(), |all| all.get_all(name).iter().map(|one| one.as_bytes()).collect());
    match (&*lines, condition.written.as_str()) {
        ([] | [b""], written) => written == "!",
        ([one], "~[12]") => matches!(*one, b"1" | b"2"),
        ([one], written) => written == "*" || one == &written.as_bytes(),
        _ => false,
    }
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let line = |&(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value));
    lines.iter().map(line).collect()
}

fn locate(site: &LocationTable, path: &str, method: &Method, headers: &HeaderMap) -> String {
    let arrival = Arrival { values: Some(values(headers)), ..plain(method) };
    match site.search.find_location("", path.as_bytes(), &arrival) {
        LocationLookup::Found(LocationId(index)) => index.to_string(),
        LocationLookup::NotFound => "404".to_owned(),
        LocationLookup::MethodNotAllowed { allow } => format!("405 {}", allow.to_str().expect("methods")),
    }
}

#[test]
fn those_with_conditions_are_tried_first_in_file_order() {
    let site = site(&[
        ("/", "", ""),
        ("/a", "", ""),
        ("/a", "", "http:"),
        ("/a", "", "?header:x-a=~2"),
        ("/a", "", "http: GET ?header:x-a=*"),
        ("/a/b", "", "?header:x-a=1"),
        ("= /a", "", "?header:x-a=9"),
    ]);
    let find =
        |path: &str, value: &'static str| locate(&site, path, &Method::GET, &headers(&[("x-a", value)]));
    assert_eq!((find("/a", "9"), find("/a", "2"), find("/a", "1")), ("6".into(), "3".into(), "4".into()));
    assert_eq!((find("/a", ""), find("/a/b", "1")), ("2".into(), "5".into()), "an empty one is absent");
    assert_eq!((find("/a/b", "2"), find("/a/b", "")), ("3".into(), "2".into()), "the next shorter prefix");
    let twice = headers(&[("x-a", "1"), ("x-a", "1")]);
    assert_eq!(locate(&site, "/a", &Method::GET, &twice), "2");
}

#[test]
fn no_location_is_404_and_405_only_for_the_method() {
    let site = site(&[
        ("/a", "", "?header:x-a=1 POST"),
        ("/a", "", "?header:x-a=2 PUT"),
        ("/a", "", "?header:x-a=!"),
        ("~ ^/re", "", "?header:x-a=1 DELETE"),
    ]);
    let find = |path: &str, lines| locate(&site, path, &Method::GET, &headers(lines));
    assert_eq!(find("/a", &[("x-a", "1")]), "405 POST");
    assert_eq!(find("/a", &[("x-a", "2")]), "405 PUT");
    assert_eq!(find("/a", &[("x-a", "3")]), "404");
    assert_eq!(find("/a", &[]), "2");
    assert_eq!(find("/a", &[("x-a", "1"), ("x-a", "2")]), "404", "given twice, it is not absent either");
    assert_eq!((find("/re", &[("x-a", "1")]), find("/re", &[])), ("405 DELETE".into(), "404".into()));
}

/// The others keep their places: a request without the header goes where it went before.
#[test]
fn an_expression_with_conditions_comes_before_the_same_without() {
    let site = site(&[
        ("~ ^/a", "", ""),
        ("~ ^/", "", ""),
        ("~ ^/a", "", "?header:x-a=1"),
        ("~ ^/", "", "?header:x-a=1"),
        ("~* ^/a", "", "?header:x-a=2"),
    ]);
    let find =
        |path: &str, value: &'static str| locate(&site, path, &Method::GET, &headers(&[("x-a", value)]));
    assert_eq!((find("/a", ""), find("/b", "")), ("0".into(), "1".into()));
    assert_eq!((find("/a", "1"), find("/b", "1")), ("2".into(), "3".into()));
    assert_eq!(find("/a", "2"), "0", "another expression stays behind");
}

#[test]
fn conditions_are_a_part_of_the_identity_in_any_order() {
    let rows = [
        "",
        "?header:x-a=1",
        "?header:x-a=2",
        "?cookie:x-a=1",
        "?header:x-a=1 ?query:v=!",
        "?query:V=! ?header:x-a=1",
        "?header:x-a=~1",
    ];
    let rows: Vec<_> = rows.map(|words| location("/", "", words)).into();
    let search = Locations::new(&rows);
    let identities: Vec<_> = (0..rows.len()).map(|index| search.identity_of(LocationId(index))).collect();
    assert_eq!(identities[4], identities[5]);
    let distinct: std::collections::HashSet<_> = identities.iter().collect();
    assert_eq!(distinct.len(), 6);
}

#[test]
fn the_failed_condition_is_named() {
    let one = location("/", "", "?header:x-a=1 ?cookie:beta=* ?query:v=~^2 ?query:w=!");
    let unmet = |lines: &[(&'static str, &'static str)], query| {
        let headers = headers(lines);
        let arrival =
            Arrival { values: Some(SourceInput { query, ..values(&headers) }), ..plain(&Method::GET) };
        UnmetCondition::find(&one, &arrival).map(|unmet| unmet.to_string()).unwrap_or_default()
    };
    let all = [("x-a", "1"), ("cookie", "beta=x")];
    assert_eq!(unmet(&[], None), "its header:x-a=1 does not hold: it is absent or empty");
    assert_eq!(unmet(&[("x-a", "2")], None), "its header:x-a=1 does not hold: it has another value");
    assert_eq!(unmet(&all[..1], None), "its cookie:beta=* does not hold: it is absent or empty");
    assert_eq!(unmet(&all, Some("v=1")), "its query:v=~^2 does not hold: it has another value");
    assert_eq!(unmet(&all, Some("v=2&V=2")), "its query:v=~^2 does not hold: it is given twice");
    assert_eq!(unmet(&all, Some("v=2&w=1")), "its query:w=! does not hold: it is present");
    assert_eq!(unmet(&all, Some("v=2&w=")), "");
}
