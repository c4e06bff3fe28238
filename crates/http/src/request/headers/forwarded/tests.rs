//! The forwarded fields behind trusted proxies and for untrusted peers.

use super::*;

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

fn read(headers: &HeaderMap, name: &str) -> Vec<String> {
    headers.get_all(name).iter().map(|value| value.to_str().expect("text").to_owned()).collect()
}

/// Rewrites a head as the upstream gets it.
fn rewrite(forwarded: &ForwardedHeaders, headers: &mut HeaderMap, arrival: ForwardedHop<'_>) {
    let (summary, mut added) = (HeaderSummary::scan_request(headers), AddedFields::default());
    forwarded.rewrite_headers(headers, summary, arrival, &mut added);
    assert!(added.iter().all(|(name, _)| !headers.contains_key(name)), "an added field would come twice");
    added.move_into(headers);
}

fn rewritten(trusted_peer: bool, lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = headers(lines);
    let peer = peer_value("::ffff:192.0.2.9".parse().expect("an address"));
    let forwarded = ForwardedHeaders { client_header: Some(HeaderName::from_static("cf-connecting-ip")) };
    let arrival = ForwardedHop { peer: Some(&peer), trusted_peer, scheme: Scheme::Http };
    rewrite(&forwarded, &mut headers, arrival);
    headers
}

const CLAIMS: [(&str, &str); 11] = [
    ("host", "a.test:8080"),
    ("x-forwarded-for", "6.6.6.6"),
    ("x-forwarded-for", "7.7.7.7, 8.8.8.8"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-proto", "wss"),
    ("x-forwarded-host", "evil.test"),
    ("x-forwarded-host", "worse.test"),
    ("forwarded", "for=6.6.6.6"),
    ("x-real-ip", "6.6.6.6"),
    ("cf-connecting-ip", "6.6.6.6"),
    ("accept", "*/*"),
];

#[test]
fn a_strangers_claims_are_replaced_or_dropped() {
    let headers = rewritten(false, &CLAIMS);
    assert_eq!(read(&headers, "x-forwarded-for"), ["192.0.2.9"]);
    assert_eq!(read(&headers, "x-forwarded-proto"), ["http"]);
    assert_eq!(read(&headers, "x-forwarded-host"), ["a.test:8080"]);
    for name in ["forwarded", "x-real-ip", "cf-connecting-ip"] {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(headers["accept"], "*/*");
    assert_eq!(headers["host"], "a.test:8080");
}

#[test]
fn a_trusted_proxy_is_believed_and_appended() {
    let headers = rewritten(true, &CLAIMS);
    assert_eq!(read(&headers, "x-forwarded-for"), ["6.6.6.6, 7.7.7.7, 8.8.8.8, 192.0.2.9"]);
    assert_eq!(read(&headers, "x-forwarded-proto"), ["https", "wss"]);
    assert_eq!(read(&headers, "x-forwarded-host"), ["evil.test", "worse.test"]);
    for name in ["forwarded", "x-real-ip", "cf-connecting-ip"] {
        assert_eq!(read(&headers, name).len(), 1, "{name}");
    }
}

#[test]
fn what_a_trusted_proxy_left_out_is_added() {
    let headers = rewritten(true, &[("host", "a.test"), ("x-forwarded-for", "")]);
    assert_eq!(read(&headers, "x-forwarded-for"), ["192.0.2.9"]);
    assert_eq!(read(&headers, "x-forwarded-proto"), ["http"]);
    assert_eq!(read(&headers, "x-forwarded-host"), ["a.test"]);
}

#[test]
fn a_request_without_a_host_claims_none() {
    let headers = rewritten(false, &[("x-forwarded-host", "evil.test")]);
    assert!(!headers.contains_key("x-forwarded-host"));
    assert!(!rewritten(true, &[]).contains_key("x-forwarded-host"));
}

#[test]
fn a_unix_peer_has_no_address_to_add() {
    let mut headers = headers(&[("x-forwarded-for", "192.0.2.1")]);
    let arrival = ForwardedHop { peer: None, trusted_peer: true, scheme: Scheme::Https };
    rewrite(&ForwardedHeaders::default(), &mut headers, arrival);
    assert_eq!(read(&headers, "x-forwarded-for"), ["192.0.2.1"]);
    assert_eq!(read(&headers, "x-forwarded-proto"), ["https"]);
}

#[test]
fn bytes_of_invalid_text_are_joined_as_they_are() {
    let mut headers = HeaderMap::new();
    headers.append("x-forwarded-for", HeaderValue::from_bytes(b"\xFF").expect("obs-text"));
    let peer = peer_value("2001:db8::1".parse().expect("an address"));
    let arrival = ForwardedHop { peer: Some(&peer), trusted_peer: true, scheme: Scheme::Http };
    rewrite(&ForwardedHeaders::default(), &mut headers, arrival);
    assert_eq!(headers["x-forwarded-for"].as_bytes(), b"\xFF, 2001:db8::1");
}

#[test]
fn only_a_trusted_proxy_tells_the_scheme() {
    let find = |trusted_peer, connection, lines: &[&'static str]| {
        let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-proto", *line)).collect();
        let headers = headers(&lines);
        find_scheme(&headers, HeaderSummary::scan_request(&headers), trusted_peer, connection)
    };
    for connection in [Scheme::Http, Scheme::Https] {
        assert_eq!(find(true, connection, &[]), connection);
        for lines in [&["https"][..], &["http"], &["wss", "ws"]] {
            assert_eq!(find(false, connection, lines), connection, "{lines:?}");
        }
        for (lines, scheme) in [
            (&["https"][..], Scheme::Https),
            (&["HTTPS "], Scheme::Https),
            (&["http, https"], Scheme::Https),
            (&["https,http"], Scheme::Http),
            (&["https", "http"], Scheme::Http),
            (&["wss"], Scheme::Https),
            (&["ws"], Scheme::Http),
        ] {
            assert_eq!(find(true, connection, lines), scheme, "{lines:?}");
        }
        for lines in [&["gopher"][..], &[""], &["https,"], &["https http"], &["https", "x"]] {
            assert_eq!(find(true, connection, lines), connection, "{lines:?}");
        }
    }
}
