//! `when`, `rewrite`, `add_prefix` and `max_body` of locations, as clients and upstreams see them.

use crate::support::h2_raw::request;
use crate::support::*;

/// Each location names itself to the upstream, and changes the path in its own way.
fn choosing_gateway(upstream: &Upstream) -> Gateway {
    let url = upstream.url();
    let location = |name: &str, fields: &str| {
        format!(
            "  - {{ upstream: \"{url}\", request_headers: {{ set: {{ X-Chosen: {name} }} }}, {fields} }}\n"
        )
    };
    let locations = [
        location("main", "path: /"),
        location("header", "path: /, when: { \"header:X-Env\": canary }, add_prefix: /canary"),
        location("cookie", "path: /, when: { \"cookie:beta\": \"*\" }, add_prefix: /beta"),
        location(
            "query",
            "path: /, when: { \"query:v\": \"~ ^2\" }, rewrite: { from: \"^/(.*)$\", to: \"/v2/$1\" }",
        ),
        location("absent", "path: /absent/, when: { \"header:X-Old\": \"!\" }, strip: /absent"),
    ];
    Gateway::start(&format!("locations:\n{}", locations.concat()))
}

/// Target, fields, the location and the target that it forwards.
type Row = (&'static str, &'static [(&'static str, &'static str)], &'static str, &'static str);

/// The same for HTTP/1 and HTTP/2.
#[rustfmt::skip]
const ROWS: [Row; 45] = [
    ("/x", &[], "main", "/x"),
    ("/x", &[("x-env", "canary")], "header", "/canary/x"),
    ("/x", &[("X-ENV", "canary")], "header", "/canary/x"),
    ("/x", &[("X-Env", " canary\t")], "header", "/canary/x"),
    ("/x", &[("X-Env", " ")], "main", "/x"),
    ("/x", &[("X-Env", "Canary")], "main", "/x"),
    ("/x", &[("X-Env", "canary2")], "main", "/x"),
    ("/x", &[("X-Env", "")], "main", "/x"),
    ("/x", &[("X-Env", "canary, canary")], "main", "/x"),
    ("/x", &[("X-Env", "canary"), ("X-Env", "canary")], "main", "/x"),
    ("/x", &[("X-Env", "canary"), ("x-env", "other")], "main", "/x"),
    ("/x", &[("X-Env", "canary"), ("X-Env", "")], "main", "/x"),
    ("/x", &[("X_Env", "canary")], "main", "/x"),
    ("/x", &[("X-Env", "canary"), ("X_Env", "other")], "header", "/canary/x"),
    ("/x", &[("Cookie", "beta=1")], "cookie", "/beta/x"),
    ("/x", &[("Cookie", "a=b; beta=1;c=d")], "cookie", "/beta/x"),
    ("/x", &[("Cookie", "a=b"), ("Cookie", "beta=1")], "cookie", "/beta/x"),
    ("/x", &[("Cookie", " Beta =1")], "cookie", "/beta/x"),
    ("/x", &[("Cookie", "beta=1; beta=1")], "cookie", "/beta/x"),
    ("/x", &[("Cookie", "beta=1; beta=2")], "main", "/x"),
    ("/x", &[("Cookie", "beta=1"), ("Cookie", "beta=2")], "main", "/x"),
    ("/x", &[("Cookie", "beta=1; beta=")], "main", "/x"),
    ("/x", &[("Cookie", "beta=")], "main", "/x"),
    ("/x", &[("Cookie", "beta")], "main", "/x"),
    ("/x", &[("Cookie", "x=beta=1")], "main", "/x"),
    ("/x", &[("X-Env", "canary"), ("Cookie", "beta=1")], "header", "/canary/x"),
    ("/x?v=2", &[], "query", "/v2/x?v=2"),
    ("/x?%76=2", &[], "query", "/v2/x?%76=2"),
    ("/x?v=%32.1", &[], "query", "/v2/x?v=%32.1"),
    ("/x?a&v=21&b=%2F%2f+", &[], "query", "/v2/x?a&v=21&b=%2F%2f+"),
    ("/x?v[]=2", &[], "query", "/v2/x?v[]=2"),
    ("/x?V=2", &[("Cookie", "other=1")], "query", "/v2/x?V=2"),
    ("/x?v=+2", &[], "main", "/x?v=+2"),
    ("/x?v=12", &[], "main", "/x?v=12"),
    ("/x?v=2&v=2", &[], "main", "/x?v=2&v=2"),
    ("/x?v=2&%56=3", &[], "main", "/x?v=2&%56=3"),
    ("/x?v=", &[], "main", "/x?v="),
    ("/x?w=2;v=2", &[], "main", "/x?w=2;v=2"),
    ("/x;v=2", &[], "main", "/x;v=2"),
    ("/x%3Fv=2", &[], "main", "/x%3Fv=2"),
    ("/absent/x", &[], "absent", "/x"),
    ("/absent/x", &[("X-Old", "")], "absent", "/x"),
    ("/absent/x", &[("X-Old", " ")], "absent", "/x"),
    ("/absent/x", &[("X-Old", "1")], "main", "/absent/x"),
    ("/absent/x", &[("X-Old", "1"), ("X-Old", "2")], "main", "/absent/x"),
];

#[track_caller]
fn assert_seen(upstream: &Upstream, row: &Row) {
    let (_, fields, chosen, sent) = row;
    let seen = upstream.requests().pop().expect("a request");
    assert_eq!(
        (seen.headers.all("x-chosen"), seen.target.as_str()),
        (vec![(*chosen).to_owned()], *sent),
        "{row:?}"
    );
    assert!(!seen.headers.has("x_env"), "{row:?}");
    let own = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("x-env")).count();
    assert_eq!(seen.headers.all("x-env").len(), own, "{row:?}");
}

/// No spelling evades a condition or meets one that servers would not read so.
#[test]
fn conditions_are_read_as_keys_are() {
    let upstream = Upstream::ok();
    let gateway = choosing_gateway(&upstream);
    let mut client = gateway.client();
    for row in &ROWS {
        let ask = row.1.iter().fold(get(row.0), |ask, (name, value)| ask.header(name, value));
        client.ask(&ask).expect(200);
        assert_seen(&upstream, row);
    }
    let mut h2 = H2::open(gateway.addr());
    for (stream, row) in (1..).step_by(2).zip(&ROWS) {
        let fields: Vec<_> = row.1.iter().map(|(name, value)| (name.to_lowercase(), *value)).collect();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        h2.ask(stream, &request("GET", row.0, &fields));
        assert!(matches!(h2.outcome(stream), Outcome::Answered(200, _)), "{row:?}");
        assert_seen(&upstream, row);
    }
    assert_eq!(upstream.count(), 2 * ROWS.len());
}

/// Only HTTP/1 has these: a field named by Connection, and trailers.
#[test]
fn heads_of_http1_have_no_other_way_in() {
    let upstream = Upstream::ok();
    let gateway = choosing_gateway(&upstream);
    let chunked = "Transfer-Encoding: chunked\r\nTrailer: X-Env\r\n\r\n1\r\na\r\n0\r\nX-Env: canary\r\n";
    for (rest, chosen) in [
        ("X-Env: \t canary \t\r\n\r\n", "header"),
        ("X-Env: canary\r\nConnection: X-Env\r\n\r\n", "header"),
        ("Connection: Cookie\r\nCookie: beta=1\r\n\r\n", "cookie"),
        (&format!("{chunked}\r\n"), "main"),
    ] {
        gateway.raw(format!("POST /x HTTP/1.1\r\nHost: a\r\n{rest}")).expect(200);
        let seen = upstream.requests().pop().expect("a request");
        assert_eq!(seen.header("x-chosen").as_deref(), Some(chosen), "{rest}");
        assert_eq!(seen.headers.has("x-env"), chosen == "header", "{rest}");
        assert_eq!(seen.headers.has("cookie"), chosen == "cookie", "{rest}");
    }
}

/// A location is passed over for its conditions as for its methods, and only the latter is a 405.
#[test]
fn other_locations_are_tried_where_no_condition_holds() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /a/b, when: { \"header:X-A\": 1 }, methods: POST, respond: { body: ab } }\n  \
           - { path: /a, when: { \"header:X-A\": \"~* ^[ab]$\" }, respond: { body: a } }\n",
    );
    let find = |value: &str| gateway.ask(&get("/a/b").header("X-A", value));
    assert_eq!(find("1").expect(405).header("allow").as_deref(), Some("POST"));
    assert_eq!(find("B").expect(200).text(), "a");
    find("2").expect(404);
    gateway.get("/a/b").expect(404);
}

/// Limits and logs know the path as it was sent; every try, and the upstream in place of a rejection, the new one.
#[test]
fn each_upstream_gets_the_new_path() {
    let failing = Upstream::new(|_| Reply::with(503, &[], ""));
    let (upstream, fallback) = (Upstream::ok(), Upstream::ok());
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\", \"{}\"], balance: round_robin, eject: none, \
           retries: {{ when: 503, budget: none }} }}\n  fallback: [\"{}\"]\n\
         limits: {{ once: {{ key: uri, rate: 1/h, on_reject: {{ degrade: fallback }} }} }}\n\
         locations:\n  - {{ path: /api/, upstream: app, limits: once, strip: /api, add_prefix: /v1,\n      \
           rewrite: {{ from: \"^/old/(.*)$\", to: \"/new/$1\" }} }}\n",
        failing.url(),
        upstream.url(),
        fallback.url()
    ));
    let targets = ["/api/old/a%3Fb%2525?q=%41&&", "/api/old/b", "/api/c%0A//d?", "/api/new/b"];
    let sent = ["/v1/new/a%3Fb%2525?q=%41&&", "/v1/new/b", "/v1/c%0A/d?", "/v1/new/b"];
    let mut client = gateway.client();
    for target in targets {
        client.ask(&get(target)).expect(200);
        client.ask(&get(target)).expect(200);
    }
    assert_eq!(upstream.targets(), sent);
    assert_eq!(fallback.targets(), sent);
    assert!(failing.count() > 0 && failing.targets().iter().all(|target| sent.contains(&target.as_str())));
    let lines = gateway.wait_log(8);
    assert_eq!((&lines[0]["path"], &lines[7]["path"]), (&"/api/old/a%3Fb%2525".into(), &"/api/new/b".into()));
}

#[test]
fn a_new_path_never_leaves_its_folder() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /al, upstream: \"{}\", rewrite: {{ from: \"^/al(.*)$\", to: \"/files/$1\" }} }}\n",
        upstream.url()
    ));
    for target in ["/al../x", "/al%2e%2e/x", "/al..%2Fx", "/al%2e/x", "/al.."] {
        gateway.get(target).expect(400);
    }
    assert_eq!(upstream.count(), 0);
    for target in ["/al//x", "/al/../al/x", "/al..x"] {
        gateway.get(target).expect(200);
    }
    assert_eq!(upstream.targets(), ["/files/x", "/files/x", "/files/..x"]);
}

/// The size of a location is in place of the server's, for bodies with a length, without one, and those that are read.
#[test]
fn each_location_has_a_size_of_bodies() {
    let upstream = Upstream::ok();
    let location = |path: &str, more: &str| {
        format!("  - {{ path: {path}, upstream: \"{}\", {more} }}\n", upstream.url())
    };
    let locations = [
        location("/server", "max_body: auto"),
        location("/large", "max_body: 2KiB"),
        location("/small", "max_body: 100B"),
        location("/any", "max_body: none"),
        location("/read", "max_body: 2KiB, limits: model, body_peek: 4KiB"),
    ];
    let gateway = Gateway::start(&format!(
        "server: {{ max_body: 1KiB }}\nlimits: {{ model: {{ key: json:/model, rate: 1000/s }} }}\n\
         locations:\n{}",
        locations.concat()
    ));
    for (path, most) in
        [("/server", 1024), ("/large", 2048), ("/small", 100), ("/any", 100_000), ("/read", 2048)]
    {
        let body = |length: usize| format!("{{\"model\":\"{}\"}}", "m".repeat(length - 12)).into_bytes();
        gateway.ask(&post(path, &body(most))).expect(200);
        let chunked = |length: usize| {
            let text = String::from_utf8(body(length)).expect("text");
            let mut client = gateway.client();
            client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
            let _ = client.try_send(format!("{length:x}\r\n{text}\r\n0\r\n\r\n"));
            client.response()
        };
        chunked(most).expect(200);
        let is_bounded = path != "/any";
        gateway.ask(&post(path, &body(most + 1))).expect(if is_bounded { 413 } else { 200 });
        chunked(most + 1).expect(if is_bounded { 413 } else { 200 });
    }
    gateway.ask(&post("/nowhere", &[b'x'; 1025])).expect(413);
    gateway.ask(&post("/nowhere", &[b'x'; 1024])).expect(404);
}

#[test]
fn explanations_name_the_condition_that_failed_and_the_new_path() {
    let dir = Scratch::new();
    let file = dir.file(
        "gateway.yaml",
        "listen: 127.0.0.1:0\nadmin: none\nlocations:\n  \
           - { path: /, when: { \"cookie:beta\": \"*\", \"header:X-Env\": canary },\n      \
             upstream: \"http://127.0.0.1:1\", rewrite: { from: \"^/(.*)$\", to: \"/v2/$1\" }, add_prefix: /c }\n  \
           - { path: /, upstream: \"http://127.0.0.1:2\" }\n",
    );
    let file = file.display().to_string();
    let explain = |more: &[&str]| {
        let args = [&["explain", "GET", "/a%20b?q", "-c", &file][..], more].concat();
        Run::default().args(&args).finish(dir.path()).stdout
    };
    let main = explain(&["-H", "Cookie: beta=1", "-H", "X-Env: a", "-H", "X-Env: b"]);
    assert!(main.contains("not / (cookie:beta=*, header:x-env=canary) -> "), "{main}");
    assert!(main.contains(": its header:x-env=canary does not hold: it is given twice\n"), "{main}");
    assert!(main.contains(" as GET /a%20b?q\n"), "{main}");
    assert!(explain(&[]).contains(": its cookie:beta=* does not hold: it is absent or empty\n"));
    let canary = explain(&["-H", "Cookie: beta=1", "-H", "X-Env: canary"]);
    assert!(canary.contains("(path: ^/(.*)$ becomes /v2/$1; /c in front)"), "{canary}");
    assert!(canary.contains(" as GET /c/v2/a%20b?q\n"), "{canary}");
    let demo = dir
        .file("demo.yaml", "listen: 127.0.0.1:0\nlocations: [{ path: /, upstream: demo, add_prefix: /c }]\n");
    let demo = Run::default()
        .args(&["explain", "GET", "/x?q", "-c", &demo.display().to_string()])
        .finish(dir.path());
    assert!(
        demo.stdout.ends_with("answered by the built-in upstream demo as GET /c/x?q\n"),
        "{}",
        demo.stdout
    );
}
