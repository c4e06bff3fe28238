//! Which targets pass, as the parser of the head hands them over.

use super::*;

fn check(method: Method, target: &str) -> Result<Vec<u8>, String> {
    let uri: Uri = target.parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    let target = check_target(&method, &uri).map_err(|error| format!("{error:?}"))?;
    target.path().map(Cow::into_owned).map_err(|error| format!("{error:?}"))
}

#[test]
fn origin_and_absolute_targets_lead_to_a_path() {
    let rows = [
        ("/", "/"),
        ("/a/./b?c=/../", "/a/b"),
        ("//foo?bar=///", "/foo"),
        ("http://a.test", "/"),
        ("http://a.test/", "/"),
        ("http://a.test?x=1", "/"),
        ("http://a.test/a/../b?x", "/b"),
        ("https://a.test:8443/x", "/x"),
        ("HTTP://a.test/x", "/x"),
        ("http://[::1]:80/x", "/x"),
        ("/x#fragment", "/x"),
    ];
    for (target, path) in rows {
        assert_eq!(check(Method::GET, target), Ok(path.as_bytes().to_vec()), "{target}");
    }
}

#[test]
fn other_targets_are_refused() {
    for target in
        ["admin", "a.test:80", "http://", "/%", "/%1", "/a\u{2}", "/a b", "ftp://a.test/", "http://u@a.test/"]
    {
        assert!(check(Method::GET, target).is_err(), "{target:?}");
    }
    assert_eq!(check(Method::GET, "admin"), Err("NotAPath".to_owned()));
    assert_eq!(check(Method::GET, "a.test:80"), Err("NotAPath".to_owned()));
    assert_eq!(check(Method::GET, "ftp://a.test/"), Err("Scheme".to_owned()));
    assert_eq!(check(Method::GET, "http://u:p@a.test/"), Err("UserInfo".to_owned()));
    for target in ["/\u{e4}", "/?\u{e4}", "http://a.test/\u{e4}"] {
        assert_eq!(check(Method::GET, target), Err("NotAscii".to_owned()), "{target}");
    }
}

#[test]
fn the_asterisk_belongs_to_options() {
    assert_eq!(check(Method::OPTIONS, "*"), Ok(b"/".to_vec()));
    assert_eq!(check_target(&Method::OPTIONS, &Uri::from_static("*")), Ok(Target::Asterisk));
    assert_eq!(check(Method::GET, "*"), Err("Asterisk".to_owned()));
    assert!(check(Method::OPTIONS, "*?x").is_err());
}

#[test]
fn connect_and_trace_are_refused_whatever_their_target() {
    for target in ["/", "a.test:80", "http://a.test/", "*"] {
        assert_eq!(check(Method::CONNECT, target), Err("Method".to_owned()), "{target}");
        assert_eq!(check(Method::TRACE, target), Err("Method".to_owned()), "{target}");
    }
    assert!(
        check(Method::from_bytes(b"connect").expect("a token"), "/").is_ok(),
        "methods are case-sensitive"
    );
}
