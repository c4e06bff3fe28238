//! Locations for one scheme or listener, and their names.

use std::sync::Arc;

use crate::support::tls::shake_hands;
use crate::support::*;

/// A plain and a TLS listener, named so, before these lines.
fn two_listeners(rest: &str) -> (Authority, Gateway) {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let tls = authority.entry("a");
    let gateway = Run::default().start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", name: plain }}, \
                  {{ address: \"127.0.0.1:0\", name: secure, tls: {{ {tls} }} }}]\n{rest}"
    ));
    eventually("both listeners", || gateway.stderr().matches("listening http").count() == 2);
    (authority, gateway)
}

/// The address that is announced under this scheme.
fn address(gateway: &Gateway, scheme: &str) -> std::net::SocketAddr {
    let text = gateway.stderr();
    let start = format!("listening {scheme}://");
    let rest = text.split(&start).nth(1).unwrap_or_else(|| panic!("{text}"));
    let end = rest.find(|c: char| c.is_whitespace() || c == '"' || c == '\u{1b}').unwrap_or(rest.len());
    rest[..end].parse().expect("an address")
}

fn over_tls(authority: &Authority, gateway: &Gateway) -> Client {
    let config = Arc::new(authority.client(None));
    Client::over_tls(shake_hands(address(gateway, "https"), &config, "a.test").expect("a handshake"))
}

const SITE: &str = "locations:\n  \
    - { path: /, scheme: http, redirect: { to: \"https://${host}${request_uri}\" } }\n  \
    - { path: /, scheme: https, respond: { body: \"${scheme} site\" } }\n  \
    - { path: = /only, listener: plain, respond: { body: plain } }\n  \
    - { path: /inner/, listener: secure, methods: GET, respond: { body: inner } }\n";

#[test]
fn plain_requests_are_redirected_and_tls_requests_are_served() {
    let (authority, gateway) = two_listeners(SITE);
    let plain = |ask: &Ask| Client::connect(address(&gateway, "http")).ask(ask);
    let away = plain(&get("/x?y=1").host("a.test:8080")).expect(308);
    assert_eq!(away.header("location").as_deref(), Some("https://a.test/x?y=1"));
    // Nobody is trusted: a client cannot tell the scheme.
    plain(&get("/x").header("X-Forwarded-Proto", "https")).expect(308);
    assert_eq!(plain(&get("/only")).expect(200).text(), "plain");
    let mut client = over_tls(&authority, &gateway);
    let forged = get("/x").header("X-Forwarded-Proto", "http");
    assert_eq!(client.ask(&forged).expect(200).text(), "https site");
    assert_eq!(client.ask(&get("/only")).expect(200).text(), "https site");
    assert_eq!(client.ask(&get("/inner/x")).expect(200).text(), "inner");
    // The location of another listener is no 405: the next one takes the request.
    plain(&post("/inner/x", b"")).expect(308);
    let curled = authority.curl(address(&gateway, "https"), &["--http2", "https://a.test/inner/"]);
    assert_eq!(curled.expect("200 2").body, "inner");
}

#[test]
fn only_methods_of_fitting_locations_are_allowed() {
    let (authority, gateway) = two_listeners(
        "locations:\n  - { path: /a, listener: secure, methods: POST, respond: {} }\n  \
           - { path: /b, listener: secure, methods: POST, respond: {} }\n  \
           - { path: /b, scheme: http, methods: PUT, respond: {} }\n",
    );
    let mut plain = Client::connect(address(&gateway, "http"));
    plain.ask(&get("/a")).expect(404);
    assert_eq!(plain.ask(&get("/b")).expect(405).header("allow").as_deref(), Some("PUT"));
    let mut secure = over_tls(&authority, &gateway);
    assert_eq!(secure.ask(&get("/a")).expect(405).header("allow").as_deref(), Some("POST"));
    assert_eq!(secure.ask(&get("/b")).expect(405).header("allow").as_deref(), Some("POST"));
}

#[test]
fn a_trusted_proxy_tells_the_scheme() {
    let gateway = Gateway::start(&format!(
        "listen: {{ address: \"127.0.0.1:0\", name: plain }}\n\
        server: {{ trusted_proxies: 127.0.0.1 }}\n{}",
        SITE.replace("secure", "plain")
    ));
    let served = |proto: &str| gateway.ask(&get("/x").header("X-Forwarded-Proto", proto)).status;
    assert_eq!(["https", "HTTPS", "wss", "http, https"].map(served), [200; 4]);
    assert_eq!(["http", "ws", "https, http", "gopher", ""].map(served), [308; 5]);
    assert_eq!(gateway.get("/x").status, 308);
    let other = Client::connect_from("127.0.0.2", gateway.addr());
    assert_eq!({ other }.ask(&get("/x").header("X-Forwarded-Proto", "https")).status, 308, "not trusted");
}

/// A reload names the listener of an open connection.
#[test]
fn open_connections_follow_the_name_of_their_listener() {
    let listen =
        |fields: &str| format!("listen: {{ address: \"127.0.0.1:0\" {fields} }}\nadmin: 127.0.0.1:0\n");
    let site = "locations:\n  - { path: /, respond: { body: any } }\n";
    let named =
        |name: &str| format!("{site}  - {{ path: /, listener: {name}, respond: {{ body: {name} }} }}\n");
    let gateway = Gateway::start(&(listen("") + site));
    let mut client = gateway.client();
    let mut body = || client.ask(&get("/")).expect(200).text();
    assert_eq!(body(), "any");
    gateway.change(&(listen(", name: edge") + &named("edge")));
    eventually("the first name", || body() == "edge");
    gateway.change(&(listen(", name: inner") + &named("inner")));
    eventually("another name", || body() == "inner");
    gateway.change(&(listen("") + site));
    eventually("no name", || body() == "any");
}

#[test]
fn names_stand_in_metrics_logs_and_headers_instead_of_patterns() {
    let gateway = Gateway::start(
        "admin: 127.0.0.1:0\nlocations:\n  \
           - { path: \"~* [.](css|js)$\", name: assets, respond: {}, limits: [1000/s, { name: burst, rate: 1/h }] }\n",
    );
    let admitted = gateway.get("/a.css").expect(200);
    let policy = admitted.header("ratelimit-policy").expect("the policy");
    assert!(
        policy.contains("\"assets#1\"") && policy.contains("\"burst\"") && !policy.contains('~'),
        "{policy}"
    );
    let rejected = gateway.get("/a.js").expect(429);
    assert_eq!(rejected.json()["limit"], "burst");
    let lines = gateway.wait_log(2);
    assert!(lines.iter().all(|line| line["location"] == "assets"), "{lines:?}");
    assert!(lines.iter().any(|line| line["limit"] == "burst"), "{lines:?}");
    let metrics = gateway.metrics();
    assert!(metrics.contains("location=\"assets\"") && metrics.contains("limit=\"burst\""), "{metrics}");
    assert!(!metrics.contains("[.]"), "{metrics}");
}

#[test]
fn explain_knows_scheme_and_listener() {
    let (_authority, gateway) = two_listeners(SITE);
    let file = gateway.file().display().to_string();
    let explain = |url: &str, more: &[&str]| {
        let output = std::process::Command::new(program())
            .args(["explain", "GET", url, "-c", &file])
            .args(more)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
    };
    for (url, more, location) in [
        ("https://a.test/x", &[][..], "/ (https) -> answers 200"),
        ("http://a.test/x", &[], "/ (http) -> redirects to https://${host}${request_uri} with 308"),
        ("/x", &[], "/ (http) -> redirects to https://${host}${request_uri} with 308"),
        ("/x", &["--listener", "secure"], "/ (https) -> answers 200"),
        ("/only", &["--listener", "plain"], "= /only (listener plain) -> answers 200"),
        ("https://a.test/only", &[], "/ (https) -> answers 200"),
        ("https://a.test/inner/", &[], "/inner/ (GET, listener secure) -> answers 200"),
    ] {
        let (code, text) = explain(url, more);
        assert!(code == Some(0) && text.contains(&format!("location  {location}")), "{url} {more:?}\n{text}");
    }
    let (_, text) = explain("http://a.test/inner/", &[]);
    assert!(
        text.contains("arrival   http, listener plain") && text.contains("it is for another listener"),
        "{text}"
    );
    assert!(text.contains("its scheme does not match"), "{text}");
    let (code, text) = explain("/x", &["--listener", "secur"]);
    assert!(code == Some(2) && text.contains("no listener is named `secur`"), "{text}");
}

/// Two slashes at the beginning of a Location name a host, and the path of a request is chosen by whoever made the link.
#[test]
fn a_redirect_to_the_path_stays_on_its_host() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /a, redirect: { to: \"/${request_uri}\" } }\n  \
           - { path: /, redirect: { to: \"${request_uri}\" } }\n",
    );
    for (target, location) in [
        ("//evil.test/x?y", "/evil.test/x?y"),
        ("///evil.test/", "/evil.test/"),
        ("/%2fevil.test/", "/%2fevil.test/"),
        ("/b//c", "/b//c"),
        ("/a/b", "/a/b"),
    ] {
        let answer = gateway.get(target).expect(308);
        assert_eq!(answer.header("location").as_deref(), Some(location), "{target}");
    }
}
