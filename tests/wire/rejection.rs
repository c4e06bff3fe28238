//! Rejection responses, byte for byte where the contract says so.

use serde_json::json;

use crate::support::*;

/// A location that admits one request and rejects the next, with this `on_reject`.
fn rejecting_gateway(on_reject: &str) -> (Gateway, Response) {
    let gateway = Gateway::start(&format!(
        "on_reject: {on_reject}\n\
         limits:\n  per-ip: {{ rate: 1/10s, burst: 1 }}\n\
         locations:\n  - {{ path: /p/, respond: {{ body: ok }}, limits: per-ip }}\n"
    ));
    gateway.get("/p/x").expect(200);
    let rejected = gateway.get("/p/x?y=1");
    (gateway, rejected)
}

/// The default body is the contract's problem document with every field, and the headers beside it.
#[test]
fn a_problem_has_every_field() {
    let gateway = Gateway::start(
        "limits:\n  per-ip: { rate: 10/s, burst: 20 }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: per-ip }\n",
    );
    let shots = volley(gateway.addr(), (0..25).map(|_| get("/")));
    let rejected = shots.iter().map(|s| &s.response).find(|r| r.status == 429).expect("a rejection");
    assert_eq!(rejected.header("content-type").as_deref(), Some("application/problem+json"));
    assert_eq!(rejected.header("retry-after").as_deref(), Some("1"));
    assert_eq!(rejected.header("ratelimit-policy").as_deref(), Some("\"per-ip\";q=20;w=2"));
    assert_eq!(rejected.header("ratelimit").as_deref(), Some("\"per-ip\";r=0;t=1"));
    let body = rejected.json();
    assert!((1..=100).contains(&rejected.retry_after_ms()), "{body}");
    let request_id = body["request_id"].as_str().expect("a request id");
    assert!(!request_id.is_empty());
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "limit per-ip: 10 requests per second, burst 20",
        "limit": "per-ip",
        "retry_after_ms": rejected.retry_after_ms(),
        "violated-policies": ["per-ip"],
        "request_id": request_id,
    });
    assert_eq!(body, expected);
}

/// `envelope` is the fixed three-field form.
#[test]
fn an_envelope_has_its_three_fields() {
    let (_gateway, rejected) = rejecting_gateway("{ body: envelope }");
    assert_eq!(rejected.status, 429);
    assert!(rejected.header("content-type").expect("a type").starts_with("application/json"));
    assert_eq!(
        rejected.text(),
        r#"{"resp_code":-1,"resp_msg":"Too many requests, try again in 10 s","datas":{}}"#
    );
}

/// `none` is a status and headers without a body.
#[test]
fn no_body_means_no_body() {
    let (gateway, rejected) = rejecting_gateway("{ body: none }");
    assert_eq!((rejected.status, rejected.body.len()), (429, 0));
    assert_eq!(rejected.header("retry-after").as_deref(), Some("10"));
    let mut client = gateway.client();
    client.ask(&get("/p/")).expect(429);
    client.ask(&get("/p/")).expect(429);
}

/// A rejected HEAD has the headers of a rejection and no body.
#[test]
fn a_rejected_head_has_no_body() {
    let (gateway, _) = rejecting_gateway("{}");
    let mut client = gateway.client();
    let rejected = client.ask(&Ask::new("HEAD", "/p/x"));
    assert_eq!((rejected.status, rejected.header("retry-after").as_deref()), (429, Some("10")));
    client.ask(&get("/p/x")).expect(429);
}

/// A template's variables are filled in, and escaped where the type is JSON.
#[test]
fn a_template_is_filled_in() {
    let (_gateway, rejected) = rejecting_gateway(
        "{ status: 420, headers: { X-Why: slow }, body: { content_type: application/json, template: '\
           {\"s\":\"${status}\",\"l\":\"${limit}\",\"ra\":\"${retry_after}\",\
            \"ip\":\"${client_ip}\",\"h\":\"${host}\",\
           \"u\":\"${uri}\",\"ru\":\"${request_uri}\",\"loc\":\"${location}\",\"ms\":${retry_after_ms}}' } }",
    );
    assert_eq!(rejected.status, 420);
    assert_eq!(rejected.header("content-type").as_deref(), Some("application/json"));
    assert_eq!(rejected.header("x-why").as_deref(), Some("slow"));
    let body = rejected.json();
    let ms = body["ms"].as_u64().expect("a number");
    assert!((9000..=10_000).contains(&ms), "{body}");
    let expected = json!({
        "s": "420", "l": "per-ip", "ra": "10", "ip": "127.0.0.1", "h": "gateway.test",
        "u": "/p/x", "ru": "/p/x?y=1", "loc": "/p/", "ms": ms,
    });
    assert_eq!(body, expected);
}

/// `uri` is the normalised path, `request_uri` the target as sent: in rejections and in faults alike.
#[test]
fn templates_know_both_forms_of_the_path() {
    let rejecting_gateway = Refusing::new();
    let gateway = Gateway::start(&format!(
        "on_reject: {{ body: {{ content_type: text/plain, template: \"${{uri}} ${{request_uri}} ${{host}}\" }} }}\n\
         locations:\n  - {{ path: /down, upstream: \"{}\" }}\n",
        rejecting_gateway.url()
    ));
    for (target, status, uri) in [("//no//./where?x", 404, "/no/where"), ("/x/../down//a?y", 502, "/down/a")]
    {
        let response = gateway.ask(&get(target).host("Shop.TEST:80")).expect(status);
        assert_eq!(response.text(), format!("{uri} {target} shop.test"));
    }
}

/// Request content cannot break out of a JSON template.
#[test]
fn templates_escape_request_content() {
    let gateway = Gateway::start(
        "on_reject: { body: { content_type: application/json, template: '{\"u\":\"${request_uri}\"}' } }\n\
         locations:\n  - { path: /known, respond: { body: ok } }\n",
    );
    let rejected = gateway.raw(b"GET /?\"},{\"a\":\"b HTTP/1.1\r\nHost: a\r\n\r\n");
    if rejected.status == 404 {
        assert_eq!(rejected.json(), json!({ "u": "/?\"},{\"a\":\"b" }));
    } else {
        assert_eq!(rejected.status, 400);
    }
}

/// Gateway faults use the same format as rejections.
#[test]
fn faults_use_the_format_of_rejections() {
    let rejecting_gateway = Refusing::new();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /down, upstream: \"{}\" }}\n",
        rejecting_gateway.url()
    ));
    let not_found = gateway.get("/nowhere").expect(404);
    assert_eq!(not_found.header("content-type").as_deref(), Some("application/problem+json"));
    assert_eq!(not_found.json()["status"], 404);
    assert_eq!(not_found.json()["title"], "Not Found");
    let bad_gateway = gateway.get("/down").expect(502);
    assert_eq!(bad_gateway.json()["title"], "Bad Gateway");
    assert!(bad_gateway.json()["request_id"].is_string());
    let envelope = Gateway::start(
        "on_reject: { body: envelope }\nlocations:\n  - { path: /known, respond: { body: ok } }\n",
    );
    assert_eq!(envelope.get("/").expect(404).json()["resp_code"], -1);
}

/// Admitted responses have RateLimit fields too, which count down.
#[test]
fn admitted_responses_carry_the_limits() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "limits:\n  bucket: {{ rate: 1/m, burst: 3 }}\n  \
           queue: {{ algorithm: leaky_bucket, rate: 100/s, burst: 2, queue: 5 }}\n  \
           slots: {{ algorithm: concurrency, max_concurrent: 9 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: [bucket, queue, slots] }}\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    for left in [2, 1, 0] {
        let response = client.ask(&get("/")).expect(200);
        let policy = response.header("ratelimit-policy").expect("a policy");
        let slots = "\"slots\";q=9;qu=\"concurrent-requests\"";
        assert_eq!(policy, format!("\"bucket\";q=3;w=180, \"queue\";q=7;w=1, {slots}"));
        let limits = response.header("ratelimit").expect("the fields");
        assert!(limits.starts_with(&format!("\"bucket\";r={left};t=")), "{limits}");
        assert!(limits.ends_with(", \"slots\";r=8"), "{limits}");
    }
    client.ask(&get("/")).expect(429);
}

/// Several rates are several items; their name contains the rate.
#[test]
fn several_rates_are_several_items() {
    let gateway = Gateway::start(
        "limits:\n  two: { rate: [100/s, 300/60s] }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: two }\n",
    );
    let response = gateway.get("/").expect(200);
    let policy = response.header("ratelimit-policy").expect("a policy");
    assert_eq!(policy, "\"two;100/s\";q=100;w=1, \"two;300/60s\";q=300;w=60");
}

/// `legacy` sends X-RateLimit-*, of the tightest limit; `none` sends nothing; both can be combined.
#[test]
fn legacy_headers_describe_the_tightest_limit() {
    let gateway = |which: &str| {
        Gateway::start(&format!(
            "on_reject: {{ ratelimit_headers: {which} }}\n\
             limits:\n  wide: {{ rate: 1/s, burst: 50 }}\n  tight: {{ rate: 1/10s, burst: 2 }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: [wide, tight] }}\n"
        ))
    };
    let legacy = gateway("draft-03").get("/").expect(200);
    assert_eq!(legacy.header("x-ratelimit-limit").as_deref(), Some("2"));
    assert_eq!(legacy.header("x-ratelimit-remaining").as_deref(), Some("1"));
    let reset: u64 = legacy.header("x-ratelimit-reset").expect("a reset").parse().expect("seconds");
    assert!(reset <= 20, "reset in {reset} s");
    assert!(!legacy.headers.has("ratelimit") && !legacy.headers.has("ratelimit-policy"));
    let none = gateway("none").get("/").expect(200);
    assert!(!none.headers.has("ratelimit") && !none.headers.has("x-ratelimit-limit"));
    let both = gateway("[standard, legacy]").get("/").expect(200);
    assert!(both.headers.has("ratelimit") && both.headers.has("x-ratelimit-limit"));
}

/// A location's on_reject overrides the limit's, and that the top-level one, field by field.
#[test]
fn on_reject_is_layered() {
    let gateway = Gateway::start(
        "on_reject: { status: 420, body: none, headers: { X-From: top } }\n\
         limits:\n  mine:\n    key: location\n    rate: 1/m\n    \
           on_reject: { status: 430, headers: { X-From: limit } }\n\
         locations:\n  - { path: /plain, respond: { body: ok }, limits: mine }\n  \
           - path: /own\n    respond: { body: ok }\n    limits: mine\n    \
             on_reject: { status: 440, body: envelope }\n",
    );
    gateway.get("/plain").expect(200);
    let plain = gateway.get("/plain").expect(430);
    assert_eq!((plain.header("x-from").as_deref(), plain.body.len()), (Some("limit"), 0));
    gateway.get("/own").expect(200);
    let own = gateway.get("/own").expect(440);
    assert_eq!(own.header("x-from").as_deref(), Some("limit"));
    assert_eq!(own.json()["resp_code"], -1);
}

/// Retry-After is whole seconds, rounded up.
#[test]
fn retry_after_is_rounded_up() {
    for (rate, header) in [("1/1500ms", "2"), ("10/s", "1"), ("1/60s", "60")] {
        let gateway = Gateway::start(&format!(
            "locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: {{ rate: {rate}, burst: 1 }} }}\n"
        ));
        let mut client = gateway.client();
        client.ask(&get("/")).expect(200);
        assert_eq!(client.ask(&get("/")).expect(429).header("retry-after").as_deref(), Some(header));
    }
}

/// gRPC clients get a gRPC status: 8 for rates, 14 for concurrency.
#[test]
fn grpc_clients_get_a_grpc_status() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = Gateway::start(&format!(
        "limits:\n  slots: {{ algorithm: concurrency, max_concurrent: 1 }}\n\
         locations:\n  - {{ path: /r, respond: {{ body: ok }}, limits: 1/m }}\n  \
           - {{ path: /c, upstream: \"{}\", limits: slots }}\n",
        upstream.url()
    ));
    let grpc =
        |target: &str| get(target).header("Content-Type", "application/grpc+proto").header("TE", "trailers");
    gateway.ask(&grpc("/r")).expect(200);
    let rejected = gateway.ask(&grpc("/r")).expect(200);
    assert_eq!(rejected.header("grpc-status").as_deref(), Some("8"));
    let mut holder = gateway.client();
    holder.send(get("/c").bytes());
    upstream.wait_for(1);
    let rejected = gateway.ask(&grpc("/c")).expect(200);
    assert_eq!(rejected.header("grpc-status").as_deref(), Some("14"));
    gate.open();
}

/// The headers of `on_reject` know the request, whatever rejects it; a client cannot end their lines.
#[test]
fn headers_of_rejections_have_variables() {
    let gateway = Gateway::start(
        "on_reject: { headers: { Location: \"https://help.test${path}?id=${request_id}\", X-Who: \"${client_ip}\", \
         X-Account: \"${account}\" } }\n\
         account: { from: header:x-account }\nupstreams: { gone: 127.0.0.1:1 }\nlocations:\n  \
           - { path: /once, respond: {}, limits: { key: global, rate: 1/h } }\n  \
           - { path: /shut, respond: {}, access: { deny: 127.0.0.1 } }\n  \
           - { path: /gone, upstream: gone }\n  \
           - { path: /own, respond: {}, limits: { key: global, rate: 1/h }, on_reject: { headers: {} } }\n",
    );
    gateway.get("/once").expect(200);
    gateway.get("/own").expect(200);
    for (path, status) in [("/once", 429), ("/once", 429), ("/shut", 403), ("/gone", 502), ("/none", 404)] {
        let answer = gateway.ask(&get(path).header("X-Account", "a\tb")).expect(status);
        let id = answer.json()["request_id"].as_str().expect("an id").to_owned();
        assert_eq!(answer.header("location"), Some(format!("https://help.test{path}?id={id}")));
        assert_eq!(answer.header("x-who").as_deref(), Some("127.0.0.1"), "{path}");
        let account = (path != "/shut").then_some("a%09b");
        assert_eq!(answer.header("x-account").as_deref(), account, "{path}");
    }
    let grpc = gateway.ask(&get("/once").header("Content-Type", "application/grpc")).expect(200);
    assert_eq!(grpc.header("x-who").as_deref(), Some("127.0.0.1"));
    assert!(!gateway.get("/own").expect(429).headers.has("x-who"));
}
