//! Cross-origin requests: what a browser sends before and with them, and what its script may then read.

use crate::support::*;

const APP: &str = "https://app.example.com";

/// What a browser sends before `method target`.
fn preflight(method: &str, target: &str) -> Ask {
    Ask::new("OPTIONS", target).header("Origin", APP).header("Access-Control-Request-Method", method)
}

fn from_app(target: &str) -> Ask {
    get(target).header("Origin", APP)
}

fn cors_fields(response: &Response) -> Vec<&str> {
    let names = response.headers.0.iter().map(|(name, _)| name.as_str());
    names.filter(|name| name.starts_with("access-control-")).collect()
}

/// The script of an allowed origin can read the response and the fields about limits.
#[track_caller]
fn assert_readable(response: &Response) {
    assert_eq!(response.headers.all("access-control-allow-origin"), [APP], "{response:?}");
    assert_eq!(response.headers.all("vary"), ["Origin"]);
    let exposed = response.header("access-control-expose-headers").expect("exposed fields");
    assert_eq!(exposed, "Retry-After, RateLimit, RateLimit-Policy, x-request-id");
}

/// The answer to a preflight has the headers of the server and of the location, but only the gateway's CORS fields.
#[test]
fn preflights_have_the_headers_of_every_response() {
    let gateway = Gateway::start(&format!(
        "server: {{ headers: {{ set: {{ Strict-Transport-Security: max-age=1, \
           Access-Control-Allow-Origin: \"*\", Access-Control-Max-Age: \"1\" }} }} }}\n\
         locations: [{{ path: /, upstream: demo, cors: {{ origins: [{APP}] }},\n  \
           response_headers: {{ add: {{ Vary: Accept, X-Path: \"${{path}}\" }} }} }}]\n"
    ));
    for origin in [APP, "https://other.example.com"] {
        let asked = Ask::new("OPTIONS", "/x?y")
            .header("Origin", origin)
            .header("Access-Control-Request-Method", "PUT");
        let answer = gateway.ask(&asked).expect(204);
        assert_eq!(answer.header("strict-transport-security").as_deref(), Some("max-age=1"));
        assert_eq!(answer.header("x-path").as_deref(), Some("/x"));
        let vary = answer.headers.all("vary").join(", ");
        assert_eq!(vary, "Accept, Origin, Access-Control-Request-Method, Access-Control-Request-Headers");
        let (allowed, max_age) = if origin == APP { (vec![APP], vec!["600"]) } else { (vec![], vec![]) };
        assert_eq!(answer.headers.all("access-control-allow-origin"), allowed);
        assert_eq!(answer.headers.all("access-control-max-age"), max_age);
    }
}

/// However many: a preflight reaches neither upstream nor limit, and the rejection that follows is readable.
#[test]
fn preflights_cost_nothing_and_rejections_are_readable() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ limits: all }}\nlimits:\n  all: {{ key: global, rate: 1/h, burst: 2 }}\n  \
           one: {{ rate: 1/h }}\n\
         bans: {{ after: 1/1h, for: 1h }}\n\
         locations: [{{ path: /, upstream: \"{}\", limits: one,\n  \
           cors: {{ origins: [{APP}], credentials: true }} }}]\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    let mut ask_preflights = || {
        for _ in 0..5 {
            let asked = preflight("PUT", "/x?y").header("Access-Control-Request-Headers", "x-a,content-type");
            let answer = client.ask(&asked).expect(204);
            let fields = ["origin", "methods", "headers", "credentials"]
                .map(|name| answer.header(&format!("access-control-allow-{name}")).unwrap_or_default());
            assert_eq!(fields, [APP, "PUT", "x-a,content-type", "true"]);
            assert_eq!(answer.header("access-control-max-age").as_deref(), Some("600"));
            for name in ["content-length", "ratelimit", "retry-after", "access-control-expose-headers"] {
                assert_eq!(answer.header(name), None, "{name}");
            }
        }
    };
    ask_preflights();
    assert_readable(&gateway.ask(&from_app("/")).expect(200));
    let rejected = gateway.ask(&from_app("/")).expect(429);
    assert_readable(&rejected);
    assert_eq!(rejected.header("access-control-allow-credentials").as_deref(), Some("true"));
    assert!(rejected.header("retry-after").is_some() && rejected.header("ratelimit").is_some());
    // That was the strike of a ban, which scripts can read as well.
    let banned = gateway.ask(&from_app("/")).expect(429);
    assert_readable(&banned);
    assert!(banned.json()["detail"].as_str().is_some_and(|detail| detail.starts_with("banned")));
    ask_preflights();
    assert_eq!(upstream.count(), 1);
    let admitted = |limit: &str| {
        let limit = format!("limit=\"{limit}\"");
        gateway.metric("sluicegate_decisions_total", &[&limit, "verdict=\"admit\""])
    };
    assert_eq!((admitted("all"), admitted("one")), (1.0, 1.0));
    let lines = gateway.wait_log(13);
    let preflights: Vec<_> = lines.iter().filter(|line| line["method"] == "OPTIONS").collect();
    assert_eq!(preflights.len(), 10);
    for line in preflights {
        assert_eq!((&line["status"], &line["verdict"]), (&204.into(), &"admit".into()));
        assert_eq!((&line["location"], line.get("upstream")), (&"/".into(), None));
    }
}

/// The location is that of the request that follows, not that of the OPTIONS.
#[test]
fn a_preflight_belongs_to_the_location_of_its_method() {
    let upstream = Upstream::named("own");
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /api, methods: POST, respond: {{ body: ok }}, cors: {{ origins: '*' }} }}\n  \
           - {{ path: /only, methods: [GET, POST], respond: {{ body: ok }}, cors: {{ origins: '*' }} }}\n  \
           - {{ path: /api, methods: OPTIONS, upstream: \"{url}\" }}\n  \
           - {{ path: /plain, upstream: \"{url}\" }}\n",
        url = upstream.url()
    ));
    assert_eq!(gateway.ask(&preflight("POST", "/api")).expect(204).header("server"), None);
    for (method, path) in [("DELETE", "/api"), ("POST", "/plain"), ("a b", "/api")] {
        assert_eq!(gateway.ask(&preflight(method, path)).expect(200).text(), "own", "{method} {path}");
    }
    gateway.ask(&preflight("HEAD", "/only")).expect(204);
    let refused = gateway.ask(&preflight("DELETE", "/only")).expect(405);
    assert_eq!(refused.header("allow").as_deref(), Some("GET, HEAD, POST"));
    assert_eq!(cors_fields(&refused), [""; 0]);
    gateway.ask(&preflight("GET", "/nowhere")).expect(404);
    // Neither is a preflight.
    gateway.ask(&Ask::new("OPTIONS", "/only").header("Origin", APP)).expect(405);
    gateway.ask(&Ask::new("OPTIONS", "/only").header("Access-Control-Request-Method", "GET")).expect(405);
}

#[test]
fn a_foreign_origin_is_told_nothing() {
    let upstream = Upstream::new(|_| Reply::with(200, &[("Access-Control-Allow-Origin", "*")], "ok"));
    let gateway = Gateway::start(&format!(
        "locations: [{{ path: /, upstream: \"{}\", cors: {{ origins: 'https://*.example.com' }} }}]\n",
        upstream.url()
    ));
    gateway.ask(&preflight("GET", "/")).expect(204).header("access-control-allow-origin").expect("allowed");
    for origin in ["https://example.com", "https://app.example.com.evil.test", "null", ""] {
        let asked =
            Ask::new("OPTIONS", "/").header("Origin", origin).header("Access-Control-Request-Method", "GET");
        let answer = gateway.ask(&asked).expect(204);
        assert_eq!(cors_fields(&answer), [""; 0], "{origin}");
        assert!(answer.header("vary").is_some_and(|vary| vary.starts_with("Origin")));
        // The request itself is served; its script cannot read the response.
        let served = gateway.ask(&get("/").header("Origin", origin)).expect(200);
        assert_eq!((cors_fields(&served), served.headers.all("vary")), (vec![], vec!["Origin".to_owned()]));
    }
    let plain = gateway.get("/").expect(200);
    assert_eq!((cors_fields(&plain), plain.headers.all("vary")), (vec![], vec!["Origin".to_owned()]));
    assert_readable(&gateway.ask(&from_app("/")).expect(200));
}

#[test]
fn access_lists_hold_for_preflights() {
    let gateway = Gateway::start(&format!(
        "access: {{ deny: 127.0.0.2 }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, cors: {{ origins: [{APP}] }} }}]\n"
    ));
    let denied = Client::connect_from("127.0.0.2", gateway.addr()).ask(&preflight("GET", "/")).expect(403);
    assert_eq!(denied.header("access-control-allow-methods"), None);
    gateway.ask(&preflight("GET", "/")).expect(204);
}

/// Whoever answers in the location: the upstream, the gateway, a limit, a fault.
#[test]
fn every_response_of_the_location_is_readable() {
    let (gone, gate) = (Upstream::new(|_| Reply::with(404, &[], "gone")), Gate::default());
    let slow = Upstream::held_by(&gate);
    let cors = format!("cors: {{ origins: [{APP}] }}");
    let gateway = Gateway::start(&format!(
        "server: {{ max_body: 10B }}\n\
         limits:\n  slot: {{ key: global, algorithm: concurrency, max_concurrent: 1 }}\n  \
           keyed: {{ key: \"header:X-Key\", missing_key: {{ reject: 401 }}, rate: 1/h }}\n  \
           calm: {{ key: global, rate: 1/h, on_reject: {{ degrade: {{ status: 203 }} }} }}\n\
         locations:\n  - {{ path: /gone, upstream: \"{}\", {cors} }}\n  \
           - {{ path: /here, respond: {{ body: ok }}, {cors} }}\n  \
           - {{ path: /moved, redirect: {{ to: / }}, {cors} }}\n  \
           - {{ path: /down, upstream: \"{}\", {cors} }}\n  \
           - {{ path: /demo, upstream: demo, {cors} }}\n  \
           - {{ path: /busy, upstream: \"{}\", limits: slot, {cors} }}\n  \
           - {{ path: /late, upstream: \"{}\", timeout: 200ms, {cors} }}\n  \
           - {{ path: /keyed, respond: {{ body: ok }}, limits: keyed, {cors} }}\n  \
           - {{ path: /calm, respond: {{ body: ok }}, limits: calm, {cors} }}\n  \
           - {{ path: /plain, respond: {{ body: ok }} }}\n",
        gone.url(),
        Refusing::new().url(),
        slow.url(),
        slow.url(),
    ));
    let mut waiting = gateway.client();
    waiting.send(from_app("/busy").bytes());
    slow.wait_for(1);
    for (path, status) in [
        ("/gone", 404),
        ("/here", 200),
        ("/moved", 308),
        ("/down", 502),
        ("/demo", 200),
        ("/busy", 503),
        ("/late", 504),
        ("/keyed", 401),
        ("/calm", 200),
        ("/calm", 203),
    ] {
        let response = gateway.ask(&from_app(path));
        assert_eq!(response.status, status, "{path}");
        assert_readable(&response);
    }
    let large = post("/here", b"eleven byte").header("Origin", APP);
    assert_readable(&gateway.ask(&large).expect(413));
    gate.open();
    assert_readable(&waiting.response().expect(200));
    let plain = gateway.ask(&from_app("/plain")).expect(200);
    assert_eq!((cors_fields(&plain), plain.header("vary")), (vec![], None));
    let options = gateway.ask(&preflight("GET", "/plain")).expect(200);
    assert_eq!(options.text(), "ok");
}

#[test]
fn the_fields_of_an_upstream_give_way() {
    let upstream = Upstream::new(|_| {
        let fields = [
            ("Access-Control-Allow-Origin", "https://other.test"),
            ("Access-Control-Allow-Credentials", "true"),
            ("Access-Control-Expose-Headers", "X-Total"),
            ("Vary", "Accept-Encoding"),
        ];
        Reply::with(200, &fields, "ok")
    });
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{url}\", cors: {{ origins: [{APP}] }} }}\n  \
           - {{ path: /plain, upstream: \"{url}\" }}\n",
        url = upstream.url()
    ));
    let response = gateway.ask(&from_app("/")).expect(200);
    assert_eq!(response.headers.all("access-control-allow-origin"), [APP]);
    assert_eq!(response.header("access-control-allow-credentials"), None);
    assert_eq!(response.headers.all("access-control-expose-headers").last().unwrap(), "X-Total");
    assert_eq!(response.headers.all("vary"), ["Accept-Encoding", "Origin"]);
    let plain = gateway.ask(&from_app("/plain")).expect(200);
    assert_eq!(plain.headers.all("access-control-allow-origin"), ["https://other.test"]);
}

/// Preflights pass where the gateway is full, and their connection goes on.
#[test]
fn a_full_gateway_answers_preflights() {
    let gate = Gate::default();
    let slow = Upstream::held_by(&gate);
    let gateway = Gateway::start(&format!(
        "server: {{ max_in_flight: 1 }}\n\
         locations: [{{ path: /, upstream: \"{}\", cors: {{ origins: [{APP}] }} }}]\n",
        slow.url()
    ));
    let mut waiting = gateway.client();
    waiting.send(from_app("/").bytes());
    slow.wait_for(1);
    let mut client = gateway.client();
    for _ in 0..3 {
        client.ask(&preflight("GET", "/")).expect(204);
        assert_readable(&client.ask(&from_app("/")).expect(503));
    }
    gate.open();
    waiting.response().expect(200);
}

#[test]
fn http2_gets_the_same() {
    let gateway = Gateway::start(&format!(
        "limits: {{ one: {{ rate: 1/h }} }}\n\
         locations: [{{ path: /, respond: {{ body: ok }}, limits: one, cors: {{ origins: [{APP}] }} }}]\n"
    ));
    let mut client = Client2::connect(gateway.addr());
    let mut ask = |method: &str| {
        let request = ::http::Request::builder().method(method).uri(format!("http://{}/", gateway.addr()));
        let request = request.header("origin", APP).header("access-control-request-method", "GET");
        client.ask(request.body(()).expect("a request"), b"", None).expect("an answer")
    };
    for (method, status) in [("OPTIONS", 204), ("GET", 200), ("OPTIONS", 204), ("GET", 429)] {
        let answer = ask(method);
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(answer.headers["access-control-allow-origin"], APP);
    }
}

#[test]
fn explain_tells_of_preflights() {
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, methods: POST, respond: {{ body: ok }}, limits: 1/h,\n      \
           cors: {{ origins: [{APP}] }} }}\n"
    ));
    for (origin, then) in [
        (APP, "answered by cors with 204; the origin is allowed, and no limit counts it"),
        ("https://b.test", "answered by cors with 204; the origin is not allowed, so the browser stops here"),
    ] {
        let headers = [format!("Origin: {origin}"), "Access-Control-Request-Method: POST".to_owned()];
        let body = serde_json::json!({ "method": "OPTIONS", "url": "/x", "headers": headers }).to_string();
        let asked = post("/explain", body.as_bytes()).header("Accept", "application/json");
        let explained = gateway.ask_admin(&asked).expect(200).json();
        assert_eq!(
            (&explained["verdict"]["outcome"], &explained["verdict"]["then"]),
            (&"admit".into(), &then.into())
        );
        assert_eq!(
            (&explained["location"]["index"], &explained["limits"]),
            (&0.into(), &serde_json::json!([]))
        );
        assert_eq!(explained["passed_over"], serde_json::json!([]));
    }
}

/// Browsers do not apply CORS to WebSockets: the switch passes as it is.
#[test]
fn websockets_are_left_alone() {
    let upstream = Upstream::new(|_| {
        Reply::raw("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
            .close()
    });
    let gateway = Gateway::start(&format!(
        "locations: [{{ path: /, upstream: \"{}\", cors: {{ origins: [{APP}] }} }}]\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    client.send(from_app("/").header("Connection", "upgrade").header("Upgrade", "websocket").bytes());
    let switched = client.head_response().expect(101);
    assert_eq!((cors_fields(&switched), switched.header("vary")), (vec![], None));
}
