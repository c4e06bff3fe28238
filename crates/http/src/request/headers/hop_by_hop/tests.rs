//! Hop-by-hop fields that are removed, and ambiguous framings that are rejected.

use super::*;

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

fn names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

fn protected() -> Vec<HeaderName> {
    let mut names = ALWAYS_PROTECTED.to_vec();
    names.push(HeaderName::from_static("x-account-id"));
    names
}

fn strip(headers: &mut HeaderMap) -> HopOptions {
    let summary = HeaderSummary::scan_request(headers);
    strip_request(headers, summary, &protected())
}

const HOP_BY_HOP: [(&str, &str); 9] = [
    ("connection", "keep-alive, X-Private"),
    ("keep-alive", "timeout=5"),
    ("proxy-connection", "keep-alive"),
    ("proxy-authenticate", "Basic"),
    ("proxy-authorization", "Basic eDp5"),
    ("te", "gzip"),
    ("trailer", "x-sum"),
    ("transfer-encoding", "chunked"),
    ("upgrade", "h2c"),
];

fn with_hop_by_hop() -> HeaderMap {
    let mut headers = headers(&HOP_BY_HOP);
    headers.insert("x-private", HeaderValue::from_static("1"));
    headers.insert("accept", HeaderValue::from_static("*/*"));
    headers.insert("content-type", HeaderValue::from_static("text/plain"));
    headers
}

#[test]
fn a_request_loses_its_hop_by_hop_fields() {
    let mut headers = with_hop_by_hop();
    assert_eq!(strip(&mut headers), HopOptions::default(), "no option names upgrade");
    assert_eq!(names(&headers), ["accept", "content-type"]);
}

#[test]
fn a_response_loses_the_same_and_may_keep_its_trailer() {
    let mut response = with_hop_by_hop();
    strip_response(&mut response, false).unwrap();
    assert_eq!(names(&response), ["accept", "content-type"]);
    let mut announcing = with_hop_by_hop();
    announcing.append("connection", HeaderValue::from_static("trailer, content-length"));
    announcing.remove("transfer-encoding");
    announcing.insert("content-length", HeaderValue::from_static("5"));
    strip_response(&mut announcing, true).unwrap();
    assert_eq!(names(&announcing), ["accept", "content-length", "content-type", "trailer"]);
}

#[test]
fn each_header_is_found_alone() {
    for (name, value) in HOP_BY_HOP {
        let mut request = headers(&[(name, value), (name, value), ("accept", "*/*")]);
        strip(&mut request);
        assert_eq!(names(&request), ["accept"], "{name} in a request");
        let mut response = headers(&[(name, value), ("accept", "*/*")]);
        strip_response(&mut response, false).unwrap();
        assert_eq!(names(&response), ["accept"], "{name} in a response");
    }
}

#[test]
fn a_head_without_them_stays_whole() {
    let lines = [("host", "a.test"), ("user-agent", "x"), ("te-x", "1"), ("upgrade-insecure-requests", "1")];
    let mut request = headers(&lines);
    assert_eq!(strip(&mut request), HopOptions::default());
    assert_eq!(request, headers(&lines));
}

#[test]
fn connection_cannot_remove_protected_fields() {
    let mut headers = headers(&[
        ("connection", "close, Host, X-Forwarded-For ,content-length,,\"\", X-Account-Id, x-real-ip"),
        ("connection", "Forwarded, x-forwarded-proto, x-forwarded-host, Cookie"),
        ("host", "a.test"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "a.test"),
        ("forwarded", "for=192.0.2.1"),
        ("x-real-ip", "192.0.2.1"),
        ("content-length", "3"),
        ("x-account-id", "alice"),
        ("cookie", "a=b"),
    ]);
    strip(&mut headers);
    let expected = [
        "content-length",
        "forwarded",
        "host",
        "x-account-id",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
    ];
    assert_eq!(names(&headers), expected);
}

#[test]
fn te_becomes_exactly_trailers_or_nothing() {
    let rows: [(&[&'static str], bool); 8] = [
        (&["trailers, gzip"], true),
        (&["Trailers"], true),
        (&["gzip;q=0.5 , trailers"], true),
        (&["gzip", "trailers"], true),
        (&["gzip"], false),
        (&["trailers;q=0.5"], false),
        (&["trailers;q=0"], false),
        (&["xtrailers"], false),
    ];
    for (values, accepts) in rows {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_static("TE"));
        for value in values {
            headers.append(TE, HeaderValue::from_static(value));
        }
        assert_eq!(strip(&mut headers).trailers, accepts, "{values:?}");
        let left: Vec<_> = headers.get_all(TE).iter().collect();
        assert_eq!(left, if accepts { vec!["trailers"] } else { vec![] }, "{values:?}");
    }
}

#[test]
fn an_upgrade_needs_both_headers() {
    let upgrade = |lines| strip(&mut headers(lines)).upgrade;
    assert_eq!(
        upgrade(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]),
        Some(HeaderValue::from_static("websocket"))
    );
    assert_eq!(upgrade(&[("connection", "keep-alive"), ("upgrade", "websocket")]), None);
    assert_eq!(upgrade(&[("connection", "upgrade")]), None);
}

#[test]
fn a_request_is_framed_one_way() {
    let check = |lines: &[_]| check_request_framing(&headers(lines), Version::HTTP_11);
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&[("content-length", "3")]), Ok(()));
    assert_eq!(check(&[("transfer-encoding", "chunked")]), Ok(()));
    assert_eq!(check(&[("transfer-encoding", "Chunked")]), Ok(()));
    let rejected = [
        "identity",
        "xchunked",
        "chunked, identity",
        "chunked, chunked",
        "gzip, chunked",
        ",chunked",
        "chunked,",
        "chunked;q=1",
        "\"chunked\"",
        "",
    ];
    for coding in rejected {
        assert_eq!(
            check(&[("transfer-encoding", coding)]),
            Err(FramingError::TransferEncoding),
            "{coding:?}"
        );
    }
    let twice = [("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
    assert_eq!(check(&twice), Err(FramingError::TransferEncoding));
    let both = [("transfer-encoding", "chunked"), ("content-length", "3")];
    assert_eq!(check(&both), Err(FramingError::TwoFramings));
    let old = check_request_framing(&headers(&[("transfer-encoding", "chunked")]), Version::HTTP_10);
    assert_eq!(old, Err(FramingError::OldVersion));
    assert_eq!(check_request_framing(&headers(&[("content-length", "3")]), Version::HTTP_10), Ok(()));
}

#[test]
fn a_response_is_framed_one_way() {
    let check = |lines: &[_]| strip_response(&mut headers(lines), false);
    for fine in ["0", "3", "18446744073709551615"] {
        assert_eq!(check(&[("content-length", fine)]), Ok(()));
    }
    for bad in ["", "+3", "-1", "0x3", "3 3", "1_0", "3, 4", "2, 2", "18446744073709551616"] {
        assert_eq!(check(&[("content-length", bad)]), Err(FramingError::ContentLength), "{bad:?}");
    }
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&[("transfer-encoding", "chunked")]), Ok(()));
    for coding in ["gzip", "gzip, chunked", "chunked, chunked", "identity", ""] {
        assert_eq!(
            check(&[("transfer-encoding", coding)]),
            Err(FramingError::TransferEncoding),
            "{coding:?}"
        );
    }
    let same = [("content-length", "2"), ("content-length", "2")];
    assert_eq!(check(&same), Err(FramingError::ContentLength));
    let twice = [("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
    assert_eq!(check(&twice), Err(FramingError::TransferEncoding));
    for both in [
        [("transfer-encoding", "chunked"), ("content-length", "3")],
        [("content-length", "3"), ("transfer-encoding", "chunked")],
    ] {
        assert_eq!(check(&both), Err(FramingError::TwoFramings));
    }
}

#[test]
fn sources_of_the_account_are_protected() {
    let yaml = "account: { from: jwt:sub, tier: { from: header:x-tier }, \
                jwt: { secret: 0123456789abcdef0123456789abcdef, header: x-token } }\n\
                locations: [{ path: /, upstream: demo }]\n";
    let loaded = sluicegate_config::parse(yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    let protected = protected_names(&loaded.config);
    for name in ["x-tier", "x-token"] {
        assert!(protected.contains(&HeaderName::from_static(name)), "{name}");
    }
}
