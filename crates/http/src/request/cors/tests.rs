//! Origins, preflights and fields, without a gateway.

use super::*;
use sluicegate_config as config;

fn cors(fields: &str) -> Arc<Cors> {
    let file = format!("locations: [{{ path: /, upstream: demo, cors: {{ {fields} }} }}]");
    let config = config::parse(&file, "x").unwrap_or_else(|report| panic!("{report}")).config;
    let cors = config.locations[0].cors.as_ref().expect("cors is written");
    Arc::new(Cors::new(cors, &config.server.request_id))
}

fn head(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, value.parse().unwrap());
    }
    headers
}

/// The fields as sorted lines.
fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    lines.sort();
    lines
}

fn allows(cors: &Arc<Cors>, origin: &str) -> bool {
    cors.answer_request(&head(&[("origin", origin)]), false).allows_origin()
}

#[test]
fn origins_are_compared_whole() {
    let listed = cors("origins: [https://app.example.com, 'http://localhost:3000', 'https://*.example.org']");
    for origin in [
        "https://app.example.com",
        "http://localhost:3000",
        "https://a.example.org",
        "https://a-1.b_2.example.org",
    ] {
        assert!(allows(&listed, origin), "{origin}");
    }
    for origin in [
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com.evil.test",
        "https://evil.test/https://app.example.com",
        "https://example.com",
        "https://APP.example.com",
        "http://localhost",
        "https://example.org",
        "https://.example.org",
        "https://a..example.org",
        "http://a.example.org",
        "https://a.example.org:8443",
        "https://a.example.org.evil.test",
        "https://evilexample.org",
        "https://evil.test/.example.org",
        "https://evil.test#.example.org",
        "https://evil.test:443@a.example.org",
        "null",
        "",
    ] {
        assert!(!allows(&listed, origin), "{origin}");
    }
    assert!(allows(&cors("origins: '*'"), "null"));
    let ports = cors("origins: 'http://*.localhost:3000'");
    assert!(allows(&ports, "http://a.localhost:3000") && !allows(&ports, "http://a.localhost:3001"));
}

#[test]
fn a_repeated_origin_is_none() {
    for rules in ["origins: '*'", "origins: https://a.test"] {
        let answer = cors(rules)
            .answer_request(&head(&[("origin", "https://a.test"), ("origin", "https://a.test")]), false);
        assert!(!answer.allows_origin());
    }
}

#[test]
fn only_an_options_with_both_fields_is_a_preflight() {
    let (origin, asks) = (("origin", "https://a.test"), ("access-control-request-method", "PUT"));
    let method = |method: Method, lines: &[(&'static str, &str)]| requested_method(&method, &head(lines));
    assert_eq!(method(Method::OPTIONS, &[origin, asks]), Some(Method::PUT));
    assert_eq!(method(Method::GET, &[origin, asks]), None);
    assert_eq!(method(Method::OPTIONS, &[origin]), None);
    assert_eq!(method(Method::OPTIONS, &[asks]), None);
    assert_eq!(method(Method::OPTIONS, &[origin, asks, asks]), None);
    for wrong in ["", "A B", "GET,PUT"] {
        assert_eq!(
            method(Method::OPTIONS, &[origin, ("access-control-request-method", wrong)]),
            None,
            "{wrong}"
        );
    }
}

fn preflight(rules: &str, request: &[(&'static str, &str)]) -> Vec<String> {
    let (request, mut headers) = (head(request), HeaderMap::new());
    cors(rules).answer_request(&request, true).write_preflight_fields(&request, &mut headers);
    lines(&headers)
}

const ORIGIN_A: (&str, &str) = ("origin", "https://a.test");
const VARY_LINE: &str = "vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers";

#[test]
fn a_preflight_is_told_what_it_may() {
    let request = [
        ORIGIN_A,
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "authorization,x-a"),
    ];
    assert_eq!(
        preflight("origins: https://a.test, credentials: true", &request),
        [
            "access-control-allow-credentials: true",
            "access-control-allow-headers: authorization,x-a",
            "access-control-allow-methods: PUT",
            "access-control-allow-origin: https://a.test",
            "access-control-max-age: 600",
            VARY_LINE,
        ]
    );
    assert_eq!(
        preflight("origins: '*', methods: [GET, POST], headers: [X-B, Content-Type], max_age: 1d", &request),
        [
            "access-control-allow-headers: x-b, content-type",
            "access-control-allow-methods: GET, POST",
            "access-control-allow-origin: *",
            "access-control-max-age: 86400",
            VARY_LINE,
        ]
    );
    assert_eq!(
        preflight("origins: '*', headers: none, max_age: 0s", &request[..2]),
        [
            "access-control-allow-methods: PUT",
            "access-control-allow-origin: *",
            "access-control-max-age: 0",
            VARY_LINE,
        ]
    );
    assert_eq!(preflight("origins: https://b.test", &request), [VARY_LINE]);
}

#[test]
fn what_a_preflight_asks_for_is_checked_before_it_is_sent_back() {
    let long = vec!["x"; 3000].join(",");
    for asked in ["", "a b", "a,,b", "a;b", long.as_str()] {
        let request =
            [ORIGIN_A, ("access-control-request-method", "patch"), ("access-control-request-headers", asked)];
        assert_eq!(
            preflight("origins: https://a.test", &request),
            ["access-control-allow-origin: https://a.test", "access-control-max-age: 600", VARY_LINE],
            "{asked:?}"
        );
    }
}

fn response(rules: &str, request: &[(&'static str, &str)], upstream: &[(&'static str, &str)]) -> Vec<String> {
    let mut headers = head(upstream);
    cors(rules).answer_request(&head(request), false).write_response_fields(&mut headers);
    lines(&headers)
}

const EXPOSED: &str = "access-control-expose-headers: Retry-After, RateLimit, RateLimit-Policy, x-request-id";

#[test]
fn a_response_may_be_read_by_an_allowed_origin() {
    assert_eq!(
        response("origins: https://a.test, credentials: true", &[ORIGIN_A], &[("x-a", "1")]),
        [
            "access-control-allow-credentials: true",
            "access-control-allow-origin: https://a.test",
            EXPOSED,
            "vary: Origin",
            "x-a: 1",
        ]
    );
    for request in [&[][..], &[("origin", "https://b.test")]] {
        assert_eq!(response("origins: https://a.test", request, &[]), ["vary: Origin"]);
    }
    assert_eq!(
        response("origins: '*'", &[ORIGIN_A], &[]),
        ["access-control-allow-origin: *", EXPOSED, "vary: Origin"]
    );
    assert_eq!(response("origins: '*'", &[], &[]), ["vary: Origin"]);
}

#[test]
fn the_fields_of_an_upstream_are_replaced() {
    let upstream = [
        ("access-control-allow-origin", "*"),
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-headers", "x-a"),
        ("access-control-allow-private-network", "true"),
        ("access-control-expose-headers", "X-Total"),
        ("vary", "Accept-Encoding"),
    ];
    assert_eq!(
        response("origins: https://a.test", &[ORIGIN_A], &upstream),
        [
            "access-control-allow-origin: https://a.test",
            EXPOSED,
            "access-control-expose-headers: X-Total",
            "vary: Accept-Encoding",
            "vary: Origin",
        ]
    );
    assert_eq!(
        response("origins: https://b.test", &[ORIGIN_A], &upstream),
        ["vary: Accept-Encoding", "vary: Origin"]
    );
}

#[test]
fn origin_is_added_to_vary_once() {
    for known in ["*", "Origin", "Accept, origin", "accept,ORIGIN ,x"] {
        let vary = format!("vary: {known}");
        assert_eq!(response("origins: https://a.test", &[], &[("vary", known)]), [vary]);
    }
    let near = response("origins: https://a.test", &[], &[("vary", "X-Origin, Original")]);
    assert_eq!(near, ["vary: Origin", "vary: X-Origin, Original"]);
}
