//! One value, none, or one too many.

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

fn value<'a>(source: &Source, headers: &'a HeaderMap, query: Option<&'a str>) -> Value<'a> {
    super::value(source, headers, query, None)
}

fn one(text: &str) -> Value<'_> {
    Value::One(Cow::Borrowed(text.as_bytes()))
}

#[test]
fn a_header_is_there_once_or_not_at_all() {
    let source = Source::Header(HeaderName::from_static("x-key"));
    assert_eq!(value(&source, &headers("x-key", &["a"]), None), one("a"));
    assert_eq!(value(&source, &headers("x-key", &["a, b"]), None), one("a, b"));
    assert_eq!(value(&source, &headers("x-key", &["ü"]), None), one("ü"));
    assert_eq!(value(&source, &headers("x-key", &[""]), None), Value::Absent);
    assert_eq!(value(&source, &headers("x-other", &["a"]), None), Value::Absent);
    assert_eq!(value(&source, &headers("x-key", &["a", "b"]), None), Value::Twice);
    assert_eq!(value(&source, &headers("x-key", &["a", "a"]), None), Value::Twice);
    assert_eq!(value(&source, &headers("x-key", &["a", ""]), None), Value::Twice);
    assert_eq!(value(&source, &HeaderMap::new(), Some("x-key=a")), Value::Absent);
}

#[test]
fn a_cookie_is_one_pair_of_all_cookie_lines() {
    let source = Source::Cookie("sid".to_owned());
    let rows: [(&[&str], Value<'_>); 13] = [
        (&["sid=a"], one("a")),
        (&["x=1; sid=a; y=2"], one("a")),
        (&["x=1;sid=a"], one("a")),
        (&["x=1", "sid=a"], one("a")),
        (&["sid=a=b"], one("a=b")),
        (&["sid=\"a\""], one("\"a\"")),
        (&["xsid=a; sidx=b; x=sid"], Value::Absent),
        (&["SID=a"], Value::Absent),
        (&["sid="], Value::Absent),
        (&["sid"], Value::Absent),
        (&[], Value::Absent),
        (&["sid=a; sid=b"], Value::Twice),
        (&["sid=a", "sid=a"], Value::Twice),
    ];
    for (lines, expected) in rows {
        assert_eq!(value(&source, &headers("cookie", lines), None), expected, "{lines:?}");
    }
}

#[test]
fn a_query_parameter_is_compared_decoded() {
    let source = Source::Query("key a".to_owned());
    let rows = [
        ("key+a=v", one("v")),
        ("key%20a=v", one("v")),
        ("x&%6bey%20a=%76&y=2", one("v")),
        ("key+a=a+b%2Bc", one("a b+c")),
        ("key+a=100%", one("100%")),
        ("key+a=%zz%4", one("%zz%4")),
        ("key+a=v=w?x", one("v=w?x")),
        ("key+a", Value::Absent),
        ("key+a=", Value::Absent),
        ("", Value::Absent),
        ("KEY+A=v", Value::Absent),
        ("x=key+a=v", Value::Absent),
        ("key+a=v&key%20a=v", Value::Twice),
    ];
    for (query, expected) in rows {
        assert_eq!(value(&source, &HeaderMap::new(), Some(query)), expected, "{query}");
    }
    assert_eq!(value(&source, &HeaderMap::new(), None), Value::Absent);
}

#[test]
fn a_plain_value_is_borrowed() {
    let source = Source::Query("k".to_owned());
    assert!(matches!(value(&source, &HeaderMap::new(), Some("a=b&k=v")), Value::One(Cow::Borrowed(b"v"))));
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
        prop_assert_eq!(value(&Source::Query("k".to_owned()), &none, Some(&query)), one(&text));
    }
}
