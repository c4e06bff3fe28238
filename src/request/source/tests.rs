//! Sources with one value, with none, and with too many.

use http::HeaderValue;
use proptest::prelude::*;

use super::*;

fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(name, HeaderValue::from_bytes(line.as_bytes()).expect("a header value"));
    }
    headers
}

fn value<'a>(source: &ValueSource, headers: &'a HeaderMap, query: Option<&'a str>) -> SourceValue<'a> {
    super::read_source(source, &SourceInput { headers, query, token: None, body: None })
}

fn one(text: &str) -> SourceValue<'_> {
    SourceValue::One(Cow::Borrowed(text.as_bytes()))
}

#[test]
fn a_header_occurs_once_or_not_at_all() {
    let source = ValueSource::Header(HeaderName::from_static("x-key"));
    assert_eq!(value(&source, &headers("x-key", &["a"]), None), one("a"));
    assert_eq!(value(&source, &headers("x-key", &["a, b"]), None), one("a, b"));
    assert_eq!(value(&source, &headers("x-key", &["ü"]), None), one("ü"));
    assert_eq!(value(&source, &headers("x-key", &[""]), None), SourceValue::Absent);
    assert_eq!(value(&source, &headers("x-other", &["a"]), None), SourceValue::Absent);
    assert_eq!(value(&source, &headers("x-key", &["a", "b"]), None), SourceValue::Repeated);
    assert_eq!(value(&source, &headers("x-key", &["a", "a"]), None), SourceValue::Repeated);
    assert_eq!(value(&source, &headers("x-key", &["a", ""]), None), SourceValue::Repeated);
    assert_eq!(value(&source, &HeaderMap::new(), Some("x-key=a")), SourceValue::Absent);
}

#[test]
fn a_cookie_is_one_pair_of_all_cookie_lines() {
    let source = ValueSource::Cookie("sid".to_owned());
    let rows: [(&[&str], SourceValue<'_>); 16] = [
        (&["sid=a"], one("a")),
        (&["x=1; sid=a; y=2"], one("a")),
        (&["x=1;sid=a"], one("a")),
        (&["x=1", "sid=a"], one("a")),
        (&["sid=a=b"], one("a=b")),
        (&["sid=\"a\""], one("\"a\"")),
        (&["xsid=a; sidx=b; x=sid"], SourceValue::Absent),
        (&["SID=a"], SourceValue::Absent),
        (&["sid="], SourceValue::Absent),
        (&["sid"], SourceValue::Absent),
        (&[], SourceValue::Absent),
        (&["sid=a; sid=b"], SourceValue::Repeated),
        (&["sid=a", "x=1; sid=b"], SourceValue::Repeated),
        (&["sid=a; sid="], SourceValue::Repeated),
        (&["sid=; sid"], SourceValue::Absent),
        (&["sid=a", " sid = a ;sid=a"], one("a")),
    ];
    for (lines, expected) in rows {
        assert_eq!(value(&source, &headers("cookie", lines), None), expected, "{lines:?}");
    }
}

#[test]
fn a_query_parameter_is_compared_decoded() {
    let source = ValueSource::Query("key a".to_owned());
    let rows = [
        ("key+a=v", one("v")),
        ("key%20a=v", one("v")),
        ("x&%6bey%20a=%76&y=2", one("v")),
        ("key+a=a+b%2Bc", one("a b+c")),
        ("key+a=100%", one("100%")),
        ("key+a=%zz%4", one("%zz%4")),
        ("key+a=v=w?x", one("v=w?x")),
        ("key+a", SourceValue::Absent),
        ("key+a=", SourceValue::Absent),
        ("", SourceValue::Absent),
        ("KEY+A=v", SourceValue::Absent),
        ("x=key+a=v", SourceValue::Absent),
        ("key+a=v&key%20a=v", SourceValue::Repeated),
    ];
    for (query, expected) in rows {
        assert_eq!(value(&source, &HeaderMap::new(), Some(query)), expected, "{query}");
    }
    assert_eq!(value(&source, &HeaderMap::new(), None), SourceValue::Absent);
}

#[test]
fn a_plain_value_is_borrowed() {
    let source = ValueSource::Query("k".to_owned());
    assert!(matches!(
        value(&source, &HeaderMap::new(), Some("a=b&k=v")),
        SourceValue::One(Cow::Borrowed(b"v"))
    ));
}

proptest! {
    #[test]
    fn a_value_comes_back_however_it_is_escaped(text in "\\PC{1,12}", escape in any::<bool>()) {
        let sent: String = text.bytes().map(|byte| match byte {
            b if !escape && b.is_ascii_alphanumeric() => char::from(b).to_string(),
            b => format!("%{b:02x}"),
        }).collect();
        let query = format!("a=b&k={sent}");
        let none = HeaderMap::new();
        prop_assert_eq!(value(&ValueSource::Query("k".to_owned()), &none, Some(&query)), one(&text));
    }
}
