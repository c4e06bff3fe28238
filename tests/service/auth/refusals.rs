//! Refusals of `/auth`: those of requests, those for nginx, and the strikes that they are.

use super::{ask, auth, auth_by, calls, trusting};
use crate::*;

#[test]
fn a_rejection_is_the_one_of_a_request() {
    let gateway = trusting(
        "limits: { per-ip: { key: ip, rate: 2/1h, burst: 2 } }\n\
         on_reject: { headers: { X-Why: limited } }\n\
         locations: [{ path: /, respond: {}, limits: per-ip }]",
    );
    let admitted = ask(&gateway, &auth("/a").header("Origin", "http://shop.test")).expect(200);
    assert_eq!((admitted.body.len(), admitted.header("content-length").as_deref()), (0, Some("0")));
    assert_eq!(admitted.header("ratelimit").as_deref(), Some("\"per-ip\";r=1;t=1800"));
    assert_eq!(admitted.header("ratelimit-policy").as_deref(), Some("\"per-ip\";q=2;w=3600"));
    assert!(!admitted.headers.has("x-ratelimit-status"));
    ask(&gateway, &auth("/b?c")).expect(200);
    let refused = ask(&gateway, &auth("/b?c")).expect(429);
    assert_eq!(refused.header("content-type").as_deref(), Some("application/problem+json"));
    assert_eq!(refused.header("x-why").as_deref(), Some("limited"));
    assert_eq!(refused.json()["limit"], "per-ip");
    let retry: u64 = refused.header("retry-after").expect("a time").parse().expect("a number");
    assert!((1_700..=1_800).contains(&retry), "{retry}");
    assert!(!refused.headers.has("x-ratelimit-status"));
    for (result, count) in [("admit", 2.0), ("reject", 1.0), ("bad_call", 0.0)] {
        assert_eq!(calls(&gateway, result), count, "{result}");
    }
    let lines = gateway.wait_log(3);
    let line = lines.iter().find(|line| line["status"] == 429).expect("a line of the rejection");
    for (name, value) in [
        ("protocol", "auth"),
        ("ip", "192.0.2.1"),
        ("method", "GET"),
        ("host", "shop.test"),
        ("path", "/b"),
        ("verdict", "reject"),
        ("limit", "per-ip"),
    ] {
        assert_eq!(line[name], value, "{line}");
    }
}

/// nginx understands no other status than 2xx, 401 and 403.
#[test]
fn a_refusal_for_nginx_is_403_and_tells_what_it_would_have_been() {
    let gateway = trusting(
        "limits:\n  per-ip: { key: ip, rate: 3/3h, burst: 3, cost: 2 }\n  \
         named: { key: 'header:Authorization', rate: 9/1h, burst: 9, missing_key: { reject: 401 } }\n\
         locations:\n  - { path: /, respond: {}, limits: per-ip }\n  \
         - { path: /named, respond: {}, limits: named }\n  \
         - { path: /office, respond: {}, access: { allow: 10.0.0.0/8 } }",
    );
    let for_nginx = |target: &str| ask(&gateway, &auth(target).header("X-Auth-Status", "403"));
    assert!(!for_nginx("/a").expect(200).headers.has("x-ratelimit-status"));
    let refused = for_nginx("/a").expect(403);
    let header =
        |name: &str| refused.header(name).unwrap_or_else(|| panic!("no {name}: {:?}", refused.headers));
    assert_eq!(
        (header("x-ratelimit-status").as_str(), header("x-ratelimit-name").as_str()),
        ("429", "per-ip")
    );
    // One unit is left, and one more is missing.
    assert_eq!(header("x-ratelimit-remaining"), "1");
    for name in ["x-ratelimit-reset", "retry-after"] {
        let seconds: u64 = header(name).parse().expect("a number");
        assert!((3_500..=3_600).contains(&seconds), "{name}: {seconds}");
    }
    assert_eq!(for_nginx("/office").expect(403).header("x-ratelimit-status").as_deref(), Some("403"));
    let missing = for_nginx("/named").expect(401);
    assert_eq!(missing.header("x-ratelimit-status").as_deref(), Some("401"));
    assert!(missing.headers.has("www-authenticate"));
    // Logs show the request as it was judged.
    let mut statuses: Vec<u64> =
        gateway.wait_log(4).iter().filter_map(|line| line["status"].as_u64()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 401, 403, 429]);
}

/// By a 2xx the proxy would let the request pass.
#[test]
fn no_refusal_is_a_success() {
    let gateway = trusting(
        "limits: { one: { key: ip, rate: 1/1h, burst: 1 } }\nlocations:\n  \
         - { path: /, respond: {}, limits: one }\n  \
         - { path: /canned, respond: {}, limits: one, on_reject: { degrade: { status: 200, body: sold out } } }\n  \
         - { path: /other, respond: {}, limits: one, on_reject: { degrade: demo } }",
    );
    ask(&gateway, &auth("/a")).expect(200);
    let grpc = auth("/a").header("Content-Type", "application/grpc").header("TE", "trailers");
    let refused = ask(&gateway, &grpc).expect(429);
    assert_eq!(refused.header("content-type").as_deref(), Some("application/problem+json"));
    assert!(!refused.headers.has("grpc-status"));
    assert_eq!(ask(&gateway, &auth("/canned")).expect(429).text(), "sold out");
    assert_eq!(ask(&gateway, &auth("/other")).expect(429).json()["error"], "degrade");
    let refused = ask(&gateway, &auth("/other").header("X-Auth-Status", "403")).expect(403);
    assert_eq!(refused.header("x-ratelimit-status").as_deref(), Some("429"));
    assert_eq!(calls(&gateway, "reject"), 4.0);
}

/// Through the gateway a preflight is answered by `cors`; a free 200 here would let it pass to the application.
#[test]
fn preflights_are_judged() {
    let gateway = trusting(
        "limits: { one: { key: ip, rate: 1/1h, burst: 1 } }\n\
         locations: [{ path: /, respond: {}, limits: one, cors: { origins: \"*\" } }]",
    );
    let preflight = auth_by("OPTIONS", "/a", "192.0.2.1")
        .header("Origin", "http://shop.test")
        .header("Access-Control-Request-Method", "POST");
    ask(&gateway, &preflight).expect(200);
    ask(&gateway, &preflight).expect(429);
}

#[test]
fn rejections_are_strikes_of_the_client() {
    let gateway = trusting(
        "bans: { after: 3/10m, for: 10m }\nlimits: { one: { key: ip, rate: 1/1h, burst: 1 } }\n\
         locations: [{ path: /, respond: {}, limits: one }]",
    );
    for status in [200, 429, 429, 429] {
        ask(&gateway, &auth("/a")).expect(status);
    }
    let banned = ask(&gateway, &auth("/a")).expect(429);
    assert!(banned.text().contains("banned"), "{}", banned.text());
    let for_nginx = ask(&gateway, &auth("/a").header("X-Auth-Status", "403")).expect(403);
    assert_eq!(for_nginx.header("x-ratelimit-status").as_deref(), Some("429"));
    assert!(!for_nginx.headers.has("x-ratelimit-name"));
    assert_eq!(calls(&gateway, "ban"), 2.0);
    // Neither another client nor the proxy is banned.
    ask(&gateway, &auth_by("GET", "/a", "192.0.2.2")).expect(200);
    // The gateway itself knows the ban.
    gateway.ask(&get("/a").header("X-Forwarded-For", "192.0.2.1")).expect(429);
}
