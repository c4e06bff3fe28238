//! Valid and invalid targets, as the parser of heads returns them.

use super::*;

fn check(method: Method, target: &str) -> Result<Vec<u8>, String> {
    let mut uri: Uri = target.parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    take_authority(&mut uri);
    let target = check_target(&method, &uri).map_err(|error| format!("{error:?}"))?;
    target.normalised_path().map(Cow::into_owned).map_err(|error| format!("{error:?}"))
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
fn other_targets_are_rejected() {
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
    assert_eq!(check_target(&Method::OPTIONS, &Uri::from_static("*")), Ok(RequestTarget::Asterisk));
    assert_eq!(check(Method::GET, "*"), Err("Asterisk".to_owned()));
    assert!(check(Method::OPTIONS, "*?x").is_err());
}

#[test]
fn connect_and_trace_are_rejected_with_any_target() {
    for target in ["/", "a.test:80", "http://a.test/", "*"] {
        assert_eq!(check(Method::CONNECT, target), Err("Method".to_owned()), "{target}");
        assert_eq!(check(Method::TRACE, target), Err("Method".to_owned()), "{target}");
    }
}

#[test]
fn a_method_with_a_lower_case_letter_is_rejected() {
    for method in ["post", "Get", "GeT", "connect", "PURGEd", "x-y"] {
        let method = Method::from_bytes(method.as_bytes()).expect("a token");
        assert_eq!(check(method.clone(), "/"), Err("MethodCase".to_owned()), "{method}");
    }
    for method in ["POST", "PURGE", "M-SEARCH", "X1", "_"] {
        let method = Method::from_bytes(method.as_bytes()).expect("a token");
        assert_eq!(check(method.clone(), "/"), Ok(b"/".to_vec()), "{method}");
    }
}

#[test]
fn the_judged_target_is_the_forwarded_one() {
    let rows = [
        ("/", "/", None),
        ("/a?b", "/a?b", None),
        ("/#f", "/", None),
        ("*", "*", None),
        ("http://b.test", "/", Some("b.test")),
        ("http://b.test/", "/", Some("b.test")),
        ("http://b.test/#f", "/", Some("b.test")),
        ("http://b.test:80?x=1", "/?x=1", Some("b.test:80")),
        ("http://b.test?#f", "/?", Some("b.test")),
        ("https://b.test/a?x#f", "/a?x", Some("b.test")),
    ];
    for (target, sent, named) in rows {
        let mut uri: Uri = target.parse().expect(target);
        let authority = take_authority(&mut uri);
        assert_eq!(authority.as_ref().map(Authority::as_str), named, "{target}");
        assert_eq!(uri.path_and_query().map(PathAndQuery::as_str), Some(sent), "{target}");
        assert_eq!(uri.path(), sent.split('?').next().unwrap_or_default(), "{target}");
        assert!(check_target(&Method::OPTIONS, &uri).is_ok(), "{target}");
    }
}

/// A fragment instead of a path leaves no path, although a URI without one counts as `/`.
#[test]
fn a_fragment_is_no_path() {
    for target in
        ["http://b.test#", "http://b.test#f", "http://b.test:80#x", "https://[::1]#/x?y", "http://b.test#?"]
    {
        assert_eq!(check(Method::GET, target), Err("NotAPath".to_owned()), "{target}");
        assert_eq!(check(Method::OPTIONS, target), Err("NotAPath".to_owned()), "{target}");
    }
    // As `:path` over HTTP/2, with an authority and without.
    for path in ["#", "#b", "#/b", "#?b"] {
        let path: PathAndQuery = path.parse().expect("a fragment is taken");
        let absolute = Uri::builder().scheme("http").authority("b.test").path_and_query(path.clone());
        for mut uri in [absolute.build().expect("a URI"), Uri::from(path)] {
            take_authority(&mut uri);
            assert_eq!(check_target(&Method::GET, &uri), Err(TargetError::NotAPath), "{uri:?}");
        }
    }
}

#[test]
fn a_query_without_room_for_its_slash_is_rejected() {
    let query = format!("http://b.test?{}", "x".repeat(usize::from(u16::MAX) - 20));
    assert_eq!(check(Method::GET, &query[..query.len() - 20]), Ok(b"/".to_vec()));
    let path: PathAndQuery = format!("?{}", "x".repeat(usize::from(u16::MAX) - 2)).parse().expect("it fits");
    let absolute = Uri::builder().scheme("http").authority("b.test").path_and_query(path);
    let mut uri = absolute.build().expect("a URI");
    take_authority(&mut uri);
    assert_eq!(check_target(&Method::GET, &uri), Err(TargetError::NotAPath));
}
