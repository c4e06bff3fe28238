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
    let rows: [(&[&str], SourceValue<'_>); 15] = [
        (&["sid=a"], one("a")),
        (&["x=1; sid=a; y=2"], one("a")),
        (&["x=1;sid=a"], one("a")),
        (&["x=1", "sid=a"], one("a")),
        (&["sid=a=b"], one("a=b")),
        (&["sid=\"a\""], one("\"a\"")),
        (&["xsid=a; sidx=b; x=sid"], SourceValue::Absent),
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

/// Names that some server reads as one: PHP folds dots, spaces and brackets, nginx and ASP.NET ignore the case.
#[test]
fn names_that_a_server_reads_as_one_are_one() {
    let alike = ["my_sid", "my.sid", "my sid", "my[sid", "MY_SID", "My.Sid"];
    let others = ["mysid", "my-sid", "my__sid", "my_sid_", "_my_sid", "my[sid]"];
    for limit_name in &alike[..3] {
        let source = ValueSource::Cookie((*limit_name).to_owned());
        let cookies = |line: &str| value(&source, &headers("cookie", &[line]), None) == SourceValue::Repeated;
        for name in alike {
            let line = format!("{name}=a");
            assert_eq!(value(&source, &headers("cookie", &[&line]), None), one("a"), "{name}");
            assert!(cookies(&format!("{limit_name}=a; {name}=b")), "{name}");
        }
        for name in others {
            assert!(!cookies(&format!("{limit_name}=a; {name}=b")), "{name}");
        }
    }
    // Python and JavaScript remove white space beyond ASCII from names and values.
    for space in ["\u{a0}", "\u{85}", "\u{2003}", "\u{3000}", " \u{a0}\t"] {
        let (name, value_at) = (format!("{space}my_sid{space}=a"), format!("my_sid={space}a{space}"));
        for line in [name, value_at] {
            let source = ValueSource::Cookie("my_sid".to_owned());
            assert_eq!(value(&source, &headers("cookie", &[&line]), None), one("a"), "{line:?}");
        }
    }
    assert_eq!(trim_spaces(b"\xa0 \x85a\xa0b\xa0"), b"a\xa0b");
    let source = ValueSource::Query("my_sid".to_owned());
    let parameter = |query: &str| value(&source, &HeaderMap::new(), Some(query)) == SourceValue::Repeated;
    for name in alike.into_iter().chain(["%6dy.sid", "my+sid", "+my_sid", "my%5Bsid", "my_sid%00x"]) {
        assert!(parameter(&format!("my_sid=a&{name}=b")), "{name}");
    }
    for name in others {
        assert!(!parameter(&format!("my_sid=a&{name}=b")), "{name}");
    }
}

/// PHP, Rails and the parsers of Node read the brackets as a part of the value.
#[test]
fn a_parameter_with_brackets_is_the_one_in_front() {
    let source = ValueSource::Query("k".to_owned());
    let rows = [
        ("k=a&k[]=b", SourceValue::Repeated),
        ("k[]=a&k[]=b", SourceValue::Repeated),
        ("k%5B%5D=b&k=a", SourceValue::Repeated),
        ("k=a&K[x][y]=b", SourceValue::Repeated),
        ("k[]=b", one("b")),
        ("k=a&x[k]=b&kk[]=c&[k]=d&k%255B%255D=e", one("a")),
    ];
    for (query, expected) in rows {
        assert_eq!(value(&source, &HeaderMap::new(), Some(query)), expected, "{query}");
    }
    let inner = ValueSource::Query("k[x]".to_owned());
    assert_eq!(value(&inner, &HeaderMap::new(), Some("k[x]=a&k=b&k[y]=c")), one("a"));
    let cookie = headers("cookie", &["k=a; k[x]=b"]);
    assert_eq!(value(&ValueSource::Cookie("k".to_owned()), &cookie, None), SourceValue::Repeated);
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
