//! Edits of headers: for the whole server, and with variables.

use crate::support::*;

const HEADERS: &str = "server: { headers: { set: { X-Frame-Options: DENY, X-From: server, X-Kept: a }, \
                       add: { X-Id: \"${request_id} ${location}\" }, remove: [Server, X-Kept] } }\n";

#[test]
fn every_answer_has_the_headers_of_the_server() {
    let upstream = Upstream::new(|_| Reply::with(200, &[("Server", "app/1"), ("X-Kept", "no")], "hello"));
    let gateway = Gateway::start(&format!(
        "{HEADERS}upstreams: {{ gone: 127.0.0.1:1 }}\nlocations:\n  \
           - {{ path: /up, upstream: \"{}\", response_headers: {{ set: {{ X-From: \"own ${{upstream}}\" }} }} }}\n  \
           - {{ path: /text, name: text, respond: {{}}, response_headers: {{ remove: X-Frame-Options }} }}\n  \
           - {{ path: /away, redirect: {{ to: / }} }}\n  - {{ path: /gone, upstream: gone }}\n  \
           - {{ path: /once, respond: {{}}, limits: {{ key: global, rate: 1/h }} }}\n  \
           - {{ path: /twice, respond: {{}}, limits: [{{ key: global, rate: 1/h }}, 9/s] }}\n  \
           - {{ path: /shut, respond: {{}}, access: {{ deny: 127.0.0.1 }} }}\n  \
           - {{ path: /post, methods: POST, respond: {{}} }}\n  - {{ path: /demo, upstream: demo }}\n",
        upstream.url()
    ));
    gateway.get("/once").expect(200);
    gateway.get("/twice").expect(200);
    for (path, status) in [
        ("/up", 200),
        ("/text", 200),
        ("/away", 308),
        ("/gone", 502),
        ("/once", 429),
        ("/twice", 429),
        ("/shut", 403),
        ("/post", 405),
        ("/demo", 200),
        ("/none", 404),
    ] {
        let answer = gateway.get(path).expect(status);
        let frame = (path != "/text").then_some("DENY");
        assert_eq!(answer.header("x-frame-options").as_deref(), frame, "{path}");
        let from = if path == "/up" { format!("own {}", upstream.url()) } else { "server".to_owned() };
        assert_eq!(answer.header("x-from"), Some(from), "{path}");
        assert!(!answer.headers.has("server") && !answer.headers.has("x-kept"), "{path}");
        let id = answer.header("x-id").expect("an id");
        let location = match path {
            "/none" | "/post" => None,
            "/text" => Some("text"),
            path => Some(path),
        };
        assert_eq!(
            (id.split(' ').next().map(str::len), id.split(' ').nth(1)),
            (Some(26), location),
            "{path}"
        );
    }
}

/// Values that clients choose, in every place of a message that variables reach.
#[test]
fn a_client_cannot_inject_a_line() {
    let variables = "\"${account}|${tier}|${host}|${request_uri}|${path}\"";
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "account: {{ from: query:who, tier: {{ from: query:tier }} }}\n\
         server: {{ headers: {{ add: {{ X-All: {variables} }} }} }}\nlocations:\n  \
           - {{ path: /up, upstream: \"{}\", request_headers: {{ set: {{ X-Account: \"${{account}}\", X-All: {variables} }} }}, \
               response_headers: {{ set: {{ X-Own: {variables} }} }} }}\n  \
           - {{ path: /away, redirect: {{ to: \"https://${{host}}${{path}}?who=${{account}}&uri=${{uri}}\", status: 302 }} }}\n  \
           - {{ path: /text, respond: {{ body: \"${{scheme}} ${{path}}\", content_type: application/json }} }}\n",
        upstream.url()
    ));
    let query = "?who=a%0d%0aX-Evil:%201%00%25%c3%bc%20&tier=g%0d%0aX-Evil:1";
    let account = "a%0D%0AX-Evil:%201%00%25%C3%BC%20";
    let path = "/x%0D%0AX-Evil:1%FF%25%3F%23";
    for (start, status) in [("/up", 200), ("/none", 404)] {
        let target = format!("{start}/x%0d%0aX-Evil:1%ff%25%3f%23{query}");
        let answer = gateway.get(&target).expect(status);
        let all = format!("{account}|default|gateway.test|{target}|{start}{path}");
        for name in ["x-all", "x-own"].iter().take(if status == 200 { 2 } else { 1 }) {
            assert_eq!(answer.header(name).as_deref(), Some(&*all), "{name}");
        }
        assert!(!answer.headers.has("x-evil"), "{answer:?}");
        if status == 200 {
            let seen = upstream.requests().pop().expect("a request");
            assert_eq!(seen.header("x-account").as_deref(), Some(account));
            assert_eq!(seen.header("x-all").as_deref(), Some(&*all));
            assert!(!seen.headers.has("x-evil"), "{seen:?}");
        }
    }
    let away = gateway.get(&format!("/away/x%0d%0aX-Evil:1%ff%25%3f%23{query}")).expect(302);
    let expected = "https://gateway.test/away/x%0D%0AX-Evil:1%FF%25%3F%23\
        ?who=a%0D%0AX-Evil%3A%201%00%25%C3%BC%20&uri=/away/x%0D%0AX-Evil:1%FF%25%3F%23";
    assert_eq!(away.header("location").as_deref(), Some(expected));
    assert_eq!(gateway.get("/text/%0a%22").expect(200).text(), "http /text/\\n\\\"");
}

/// A header with the account is the gateway's word alone: a client without an account cannot send one.
#[test]
fn an_empty_value_replaces_what_the_client_sent() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "account: {{ from: query:who }}\nlocations:\n  - path: /\n    upstream: \"{}\"\n    request_headers: \
           {{ set: {{ X-Account: \"${{account}}\" }}, add: {{ X-More: \"${{account}}\" }} }}\n",
        upstream.url()
    ));
    for (target, account) in
        [("/", None), ("/?who=", None), ("/?who=acme", Some("acme")), ("/?who=%20", Some("%20"))]
    {
        gateway.ask(&get(target).header("X-Account", "root").header("X_Account", "root")).expect(200);
        let seen = upstream.requests().pop().expect("a request");
        assert_eq!(seen.header("x-account").as_deref(), account, "{target}");
        assert_eq!(seen.header("x-more").as_deref(), account, "{target}");
        assert!(!seen.headers.has("x_account"));
    }
}

/// The values are those of the request as it came: before `strip`, and over HTTP/2.
#[test]
fn values_are_of_the_request_as_it_came() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ trusted_proxies: 127.0.0.1 }}\nupstreams: {{ app: \"{}\" }}\nlocations:\n  \
           - {{ path: /api/, name: api, upstream: app, strip: /api, request_headers: {{ set: \
               {{ X-All: \"${{client_ip}} ${{host}} ${{request_uri}} ${{path}} ${{scheme}} ${{location}} ${{upstream}} \
               ${{tier}} $${{x}}\", X-Same-Id: \"${{request_id}}\" }} }} }}\n",
        upstream.url().trim_start_matches("http://")
    ));
    let ask = get("/api//x?q=%41").host("A.test:80").header("X-Forwarded-For", "203.0.113.7");
    gateway.ask(&ask.header("X-Forwarded-Proto", "https")).expect(200);
    let seen = upstream.requests().pop().expect("a request");
    let all = "203.0.113.7 a.test /api//x?q=%41 /api/x https api app default ${x}";
    assert_eq!(seen.header("x-all").as_deref(), Some(all));
    assert_eq!(seen.header("x-same-id"), seen.header("x-request-id"));
    let mut h2 = H2::open(gateway.addr());
    h2.ask(1, &[(":method", "GET"), (":scheme", "http"), (":path", "/api/y"), (":authority", "b.test")]);
    assert!(matches!(h2.outcome(1), Outcome::Answered(200, _)));
    let seen = upstream.requests().pop().expect("a request");
    let all = "127.0.0.1 b.test /api/y /api/y http api app default ${x}";
    assert_eq!(seen.header("x-all").as_deref(), Some(all));
}
