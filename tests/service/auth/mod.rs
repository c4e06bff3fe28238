//! `/auth` with a plain client in the place of the proxy: bad calls, refusals, and what is judged.

mod proxies;
mod refusals;

use super::*;

const TOKEN: &str = "s3cret-token-of-the-proxy";

/// The head that nginx, Traefik and Caddy send for `GET target` of 192.0.2.1.
pub(super) fn auth(target: &str) -> Ask {
    auth_by("GET", target, "192.0.2.1")
}

pub(super) fn auth_by(method: &str, target: &str, client: &str) -> Ask {
    described(&[
        ("X-Forwarded-For", client),
        ("X-Forwarded-Method", method),
        ("X-Forwarded-Uri", target),
        ("X-Forwarded-Host", "shop.test"),
        ("X-Forwarded-Proto", "http"),
    ])
}

fn described(headers: &[(&str, &str)]) -> Ask {
    headers.iter().fold(get("/auth"), |ask, (name, value)| ask.header(name, value))
}

pub(super) fn ask(gateway: &Gateway, ask: &Ask) -> Response {
    Client::connect(service(gateway)).ask(ask)
}

/// A gateway that trusts this host as a proxy; nothing of it forwards but to itself.
pub(super) fn trusting(lines: &str) -> Gateway {
    Gateway::start(&format!(
        "service: {{ listen: 127.0.0.1:0 }}\nserver: {{ trusted_proxies: 127.0.0.1 }}\n{lines}\n"
    ))
}

const PER_IP: &str = "limits: { per-ip: { key: ip, rate: 2/1h, burst: 2 } }\n\
                      locations: [{ path: /, respond: {}, limits: per-ip }]";

pub(super) fn calls(gateway: &Gateway, result: &str) -> f64 {
    let result = format!("result=\"{result}\"");
    gateway.metric("sluicegate_service_calls_total", &["protocol=\"auth\"", "call=\"auth\"", &result])
}

#[test]
fn a_header_that_is_missing_repeated_or_malformed_is_named() {
    let gateway = trusting(PER_IP);
    let whole = [
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/a"),
        ("X-Forwarded-Host", "shop.test"),
        ("X-Forwarded-Proto", "http"),
    ];
    let mut bad = 0.0;
    let mut expect_bad = |headers: &[(&str, &str)], field: &str, word: &str| {
        let refused = ask(&gateway, &described(headers)).expect(400).json();
        assert_eq!(refused["error"], "bad_call", "{refused}");
        assert_eq!(refused["field"], field, "{refused}");
        let message = refused["message"].as_str().expect("a message");
        assert!(message.contains(field) && message.contains(word), "{message}");
        bad += 1.0;
    };
    for (missing, (name, _)) in whole.iter().enumerate() {
        let mut headers = whole.to_vec();
        headers.remove(missing);
        expect_bad(&headers, name, "missing");
        // The client's address is a list, which may have several lines.
        if missing > 0 {
            headers.push((name, ""));
            expect_bad(&headers, name, "empty");
            headers.push((name, whole[missing].1));
            expect_bad(&headers, name, "more than once");
        }
    }
    let long = format!("/{}", "x".repeat(70_000));
    for (place, value) in [
        (2, "a"),
        (2, "http://shop.test/a"),
        (2, "?x=1"),
        (2, "shop.test:80"),
        (2, "/a b"),
        (4, "ftp"),
        (4, "http,"),
        (1, "G ET"),
        (1, "GET/"),
    ] {
        let mut headers = whole.to_vec();
        headers[place].1 = value;
        expect_bad(&headers, whole[place].0, "must be");
    }
    for status in ["401", "403 ", "", "yes"] {
        let mut headers = whole.to_vec();
        headers.push(("X-Auth-Status", status));
        if status.trim() != "403" {
            expect_bad(&headers, "X-Auth-Status", "403");
        }
    }
    expect_bad(
        &[&whole[..], &[("X-Auth-Status", "403"), ("X-Auth-Status", "403")]].concat(),
        "X-Auth-Status",
        "once",
    );
    assert_eq!(calls(&gateway, "bad_call"), bad);
    // Longer heads are not read at all.
    let mut headers = whole;
    headers[2].1 = &long;
    let refused = ask(&gateway, &described(&headers));
    assert!(matches!(refused.status, 414 | 431), "{}", refused.status);
    // Nothing was charged.
    ask(&gateway, &auth("/a")).expect(200);
    ask(&gateway, &auth("/a")).expect(200);
    ask(&gateway, &auth("/a")).expect(429);
}

#[test]
fn only_trusted_proxies_are_believed() {
    let gateway = trusting(PER_IP);
    let mut stranger = Client::connect_from("127.0.0.9", service(&gateway));
    for call in [auth("/a"), auth("/a").header("X-Auth-Status", "403"), get("/auth")] {
        let refused = stranger.ask(&call).expect(400).json();
        assert_eq!(refused["field"], "server.trusted_proxies");
        assert!(refused["message"].as_str().is_some_and(|text| text.contains("127.0.0.9")), "{refused}");
    }
    // It names another client in front of the one that the proxy saw.
    for spoofed in ["203.0.113.1", "203.0.113.2", "203.0.113.3"] {
        let status = ask(&gateway, &auth_by("GET", "/a", &format!("{spoofed}, 192.0.2.1"))).status;
        assert_eq!(status, if spoofed.ends_with('3') { 429 } else { 200 });
    }
    // A unix socket has the mode of a file to protect it.
    let path = gateway.dir().join("calls.sock");
    let gateway = Gateway::start(&format!(
        "service: {{ listen: {{ address: \"unix:{}\", mode: \"0600\" }} }}\n{PER_IP}\n",
        path.display()
    ));
    Client::connect_unix(&path).ask(&auth("/a")).expect(200);
    drop(gateway);
}

#[test]
fn the_path_is_auth_and_nothing_else() {
    let gateway = trusting(PER_IP);
    for path in ["/auth/", "/auth/a", "/AUTH", "/%61uth", "/authx", "//auth"] {
        let call = Ask::new("GET", path).header("X-Forwarded-Uri", "/a");
        ask(&gateway, &call).expect(404);
    }
    ask(&gateway, &Ask::new("GET", "/auth?x=1")).expect(400);
}

#[test]
fn the_token_has_a_header_of_its_own_and_reaches_no_log() {
    let gateway = Gateway::start(&format!(
        "service: {{ listen: 127.0.0.1:0, token: {TOKEN} }}\nserver: {{ trusted_proxies: 127.0.0.1 }}\n\
         log: {{ level: trace }}\naccess_log: {{ hash_keys: false, headers: [Sluicegate-Token, X-Trace] }}\n\
         account: {{ from: header:Authorization }}\n\
         limits: {{ each: {{ key: account, rate: 1/1h, burst: 1 }}, token: {{ key: 'header:Sluicegate-Token', missing_key: skip, rate: 1/1h, burst: 1 }} }}\n\
         locations: [{{ path: /, respond: {{}}, limits: [each, token] }}]\n"
    ));
    let call = |account: &str| auth("/a").header("Authorization", account).header("X-Trace", "t1");
    // The client's Authorization opens nothing, even if it knows the token.
    let bearer = format!("Bearer {TOKEN}");
    for sent in [None, Some(""), Some("wrong"), Some(&bearer[..])] {
        let call = sent.iter().fold(call(&bearer), |call, sent| call.header("Sluicegate-Token", sent));
        let refused = ask(&gateway, &call).expect(400).json();
        assert_eq!((&refused["error"], &refused["field"]), (&json!("bad_token"), &json!("Sluicegate-Token")));
    }
    let twice = call("a").header("Sluicegate-Token", TOKEN).header("Sluicegate-Token", TOKEN);
    assert_eq!(ask(&gateway, &twice).expect(400).json()["field"], "Sluicegate-Token");
    // The token is no part of the judged request: the limit by it misses its key, and counts nobody together.
    for account in ["a", "b"] {
        ask(&gateway, &call(account).header("Sluicegate-Token", TOKEN)).expect(200);
    }
    let refused = ask(&gateway, &call("a").header("Sluicegate-Token", TOKEN)).expect(429);
    assert_eq!(calls(&gateway, "denied"), 4.0);
    let lines: String = gateway.wait_log(8).iter().map(Value::to_string).collect();
    assert!(lines.contains("t1"), "{lines}");
    for text in
        [&gateway.stderr(), &lines, &gateway.metrics(), &refused.text(), &format!("{:?}", refused.headers)]
    {
        assert!(!text.contains(TOKEN), "{text}");
    }
}

#[test]
fn the_described_request_is_judged_whatever_the_call_is() {
    let gateway = trusting(
        "limits: { one: { key: [ip, uri, method, host], rate: 1/1h, burst: 1 } }\nlocations:\n  \
         - { path: /admin, respond: {}, access: { deny: 0.0.0.0/0 } }\n  \
         - { host: tls.test, scheme: https, path: /, respond: {}, access: { deny: 0.0.0.0/0 } }\n  \
         - { path: /, respond: {}, limits: one }",
    );
    for hidden in ["/admin", "/%61dmin", "/x/../admin", "//admin", "/./admin/x", "/admin?x", "/admin#x"] {
        assert_eq!(ask(&gateway, &auth(hidden)).status, 403, "{hidden}");
    }
    for malformed in ["/%2", "/%00", "/a%"] {
        assert_eq!(ask(&gateway, &auth(malformed)).status, 400, "{malformed}");
    }
    let of = |host: &str, proto: &str| {
        let headers = [
            ("X-Forwarded-For", "192.0.2.1"),
            ("X-Forwarded-Method", "PUT"),
            ("X-Forwarded-Uri", "/h"),
            ("X-Forwarded-Host", host),
            ("X-Forwarded-Proto", proto),
        ];
        ask(&gateway, &described(&headers)).status
    };
    assert_eq!([of("TLS.test:443", "https"), of("tls.test", "http"), of("tls.test", "wss")], [403, 200, 403]);
    assert_eq!([of("a b", "http"), of("a@b", "http")], [400, 400]);
    // The method, the host and the version of the call are no part of it.
    let mut client = Client::connect(service(&gateway));
    let call = |method: &str, target: &str| {
        String::from_utf8(auth(target).bytes())
            .expect("a text")
            .replace("GET /auth", &format!("{method} /auth"))
    };
    for method in ["GET", "POST", "OPTIONS", "DELETE", "PROPFIND"] {
        client.send(call(method, &format!("/{method}")));
        client.response().expect(200);
        client.send(call(method, &format!("/{method}")));
        client.response().expect(429);
    }
    client.send(call("HEAD", "/HEAD"));
    client.head_response().expect(200);
    let old = call("GET", "/old").replace("HTTP/1.1", "HTTP/1.0").replace("Host: gateway.test\r\n", "");
    let mut client = Client::connect(service(&gateway));
    client.send(old);
    client.response().expect(200);
    client.assert_closed();
    let mut client = Client2::connect(service(&gateway));
    for status in [200, 429] {
        let request = ::http::Request::get("http://gateway.test/auth")
            .header("X-Forwarded-For", "192.0.2.1")
            .header("X-Forwarded-Method", "GET")
            .header("X-Forwarded-Uri", "/second")
            .header("X-Forwarded-Host", "shop.test")
            .header("X-Forwarded-Proto", "https");
        let answer = client.ask(request.body(()).expect("a request"), b"", None).expect("an answer");
        assert_eq!(answer.status, status);
    }
}

#[test]
fn a_body_is_discarded() {
    let gateway = trusting("locations: [{ path: /, respond: {} }]");
    let mut client = Client::connect(service(&gateway));
    let with_body = |body: &[u8]| auth("/a").body(body);
    for _ in 0..3 {
        client.ask(&with_body(&[b'x'; 10_000])).expect(200);
    }
    let chunked = auth("/a").header("Transfer-Encoding", "chunked");
    client.send([&chunked.bytes()[..], b"3\r\nabc\r\n0\r\n\r\n"].concat());
    client.response().expect(200);
    client.ask(&auth("/a")).expect(200);
    // A large one is not read: the connection ends in its place.
    client.send(auth("/a").header("Content-Length", 1_u64 << 40).bytes());
    client.response().expect(200);
    client.assert_closed();
    let mut client = Client::connect(service(&gateway));
    client.send(auth("/a").header("Expect", "100-continue").header("Content-Length", 5).bytes());
    let answer = client.response().expect(200);
    assert_eq!(answer.interim, [0_u16; 0]);
}

/// No call tells the end of a request, so a slot could only leak.
#[test]
fn concurrency_limits_do_not_judge() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = trusting(&format!(
        "limits:\n  slots: {{ algorithm: concurrency, key: ip, max_concurrent: 1 }}\n  \
         rate: {{ key: ip, rate: 6/1h, burst: 6 }}\n\
         locations: [{{ path: /, upstream: \"{}\", limits: [slots, rate] }}]",
        upstream.url()
    ));
    let request = get("/a").header("X-Forwarded-For", "192.0.2.1");
    let mut held = gateway.client();
    held.send(request.bytes());
    upstream.wait_for(1);
    gateway.ask(&request).expect(503);
    // The one slot is taken, which holds back requests alone.
    let mut client = Client::connect(service(&gateway));
    for _ in 0..5 {
        client.ask(&auth("/a")).expect(200);
    }
    client.ask(&auth("/a")).expect(429);
    gate.open();
    held.response().expect(200);
    assert_eq!(gateway.metric("sluicegate_service_leases", &[]), 0.0);
    // It is free again.
    gateway.ask(&request).expect(429);
    gateway.ask(&get("/a").header("X-Forwarded-For", "192.0.2.2")).expect(200);
}

/// The response passes elsewhere, so what was reserved stays charged.
#[test]
fn reservations_stay() {
    let gateway = trusting(
        "limits: { tokens: { key: ip, rate: 100/1h, burst: 100, charge: { reserve: 40, units: header:x-tokens } } }\n\
         locations: [{ path: /, respond: {}, limits: tokens }]",
    );
    let mut client = Client::connect(service(&gateway));
    for left in [60, 20] {
        let answer = client.ask(&auth("/a")).expect(200);
        let field = answer.header("ratelimit").expect("a field");
        assert!(field.starts_with(&format!("\"tokens\";r={left};t=")), "{field}");
    }
    client.ask(&auth("/a")).expect(429);
}

#[test]
fn a_call_waits_as_its_location_allows_and_leaves_with_its_proxy() {
    let gateway = trusting(
        "limits: { paced: { algorithm: leaky_bucket, key: global, rate: 1/2s, burst: 1, queue: 50, max_wait: none } }\n\
         locations:\n  - { path: /, respond: {}, limits: paced }\n  \
         - { path: /short, respond: {}, limits: paced, timeout: 1s }",
    );
    ask(&gateway, &auth("/a")).expect(200);
    // Over HTTP/1 with a body that is never sent, and over HTTP/1 without.
    let mut leaving: Vec<Client> = (0..20).map(|_| Client::connect(service(&gateway))).collect();
    for (place, client) in leaving.iter_mut().enumerate() {
        let call = auth("/a");
        client.send(if place % 2 == 0 { call } else { call.header("Content-Length", 100) }.bytes());
    }
    gateway.wait_queued(20);
    ask(&gateway, &auth("/short")).expect(503);
    let mut last = Client::connect(service(&gateway));
    last.send(auth("/a").bytes());
    gateway.wait_queued(21);
    drop(leaving);
    // Behind 20 others it would have waited 42 seconds.
    last.response_within(ms(6_000)).expect("an answer").expect(200);
    eventually("an empty queue", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
    assert_eq!(calls(&gateway, "wait"), 1.0);
}

/// A limit in the store judges calls and requests together, and its slots stay with requests.
#[test]
fn shared_limits_judge_calls() {
    let redis = Redis::start();
    let gateway = trusting(&format!(
        "state: {{ store: redis, redis: {{ url: \"{}\", timeout: 200ms }} }}\n\
         limits:\n  rate: {{ key: ip, rate: 3/1h, burst: 3 }}\n  \
         slots: {{ algorithm: concurrency, key: ip, max_concurrent: 1 }}\n\
         locations: [{{ path: /, respond: {{}}, limits: [rate, slots] }}]",
        redis.url()
    ));
    let is_ready = || !gateway.admin_get("/readyz").text().contains("degraded: redis");
    eventually("a gateway that uses Redis", is_ready);
    let mut client = Client::connect(service(&gateway));
    client.ask(&auth("/a")).expect(200);
    client.ask(&auth("/a")).expect(200);
    gateway.ask(&get("/a").header("X-Forwarded-For", "192.0.2.1")).expect(200);
    assert_eq!(client.ask(&auth("/a")).expect(429).json()["limit"], "rate");
    // The first decisions may be made before the link to the store is up; the store gets them as a debt.
    eventually("counters in the store", || !redis.keys().is_empty());
}
