//! Envoy's rate limit service as a gRPC server: errors, deadlines, health, and bytes that no client sends.

use super::client::*;
use crate::*;

const SHOP: &str = "
service:
  listen: 127.0.0.1:0
  domains: { shop: [{ match: { remote_address: \"*\" }, limits: per-ip }] }
limits:
  per-ip: { rate: 1000/1h, burst: 1000 }
locations: []
";

const CHECK: &str = "/grpc.health.v1.Health/Check";
const ADDRESS: &[(&str, &str)] = &[("remote_address", "192.0.2.1")];

#[test]
fn bad_calls_name_the_field() {
    let gateway = Gateway::start(SHOP);
    let mut envoy = Envoy::connect(&gateway);
    for (call, field) in [
        (call_of("", &[ADDRESS]), "domain"),
        (call_of("shop", &[]), "descriptors:"),
        (call_of("shop", &[ADDRESS, &[]]), "descriptors[1].entries"),
        (call_of("shop", &[&[("a", "1"), ("", "2")]]), "descriptors[0].entries[1].key"),
        (call_of("shop", &[ADDRESS; 65]), "descriptors:"),
    ] {
        let message = envoy.call(&call).failed(3);
        assert!(message.contains(field), "{field}: {message}");
    }
    assert_eq!(envoy.ask("shop", &[ADDRESS]).ok().statuses[0].remaining, 999);
}

#[test]
fn the_protocol_is_that_of_grpc() {
    let gateway = Gateway::start(SHOP);
    let mut envoy = Envoy::connect(&gateway);
    let good = frame(&call_of("shop", &[ADDRESS]));
    envoy.send("/envoy.service.ratelimit.v3.RateLimitService/Other", &[], &good).failed(12);
    envoy.send("/unknown.Service/Method", &[], &good).failed(12);
    envoy.send(SHOULD_RATE_LIMIT, &[("content-type", "text/plain")], &good).failed(12);
    let encoded = envoy.send(SHOULD_RATE_LIMIT, &[("grpc-encoding", "gzip")], &good);
    assert_eq!(encoded.response.headers["grpc-accept-encoding"], "identity");
    encoded.failed(12);
    let mut flagged = good.to_vec();
    flagged[0] = 1;
    envoy.send(SHOULD_RATE_LIMIT, &[], &flagged).failed(12);
    envoy.send(SHOULD_RATE_LIMIT, &[("grpc-encoding", "identity")], &good).ok();
    let long = call_of("shop", &[&[("remote_address", &"x".repeat(70_000))]]);
    envoy.call(&long).failed(8);
    envoy.ask("shop", &[ADDRESS]).ok();
}

#[test]
fn deadlines_are_honoured() {
    let gateway = Gateway::start(SHOP);
    let mut envoy = Envoy::connect(&gateway);
    let good = frame(&call_of("shop", &[ADDRESS]));
    envoy.send(SHOULD_RATE_LIMIT, &[("grpc-timeout", "1n")], &good).failed(4);
    envoy.send(SHOULD_RATE_LIMIT, &[("grpc-timeout", "soon")], &good).failed(3);
    let answer = envoy.send(SHOULD_RATE_LIMIT, &[("grpc-timeout", "10S")], &good).ok();
    assert_eq!(answer.statuses[0].remaining, 999, "a late call takes nothing");
}

/// A caller waits in a queue only as long as its deadline allows, and without one not at all.
#[test]
fn a_caller_waits_as_its_deadline_allows() {
    let gateway = Gateway::start(
        "service: { listen: 127.0.0.1:0, domains: { d: [{ match: { a: \"*\" }, limits: paced }] } }
limits: { paced: { algorithm: leaky_bucket, key: global, rate: 4/1s, burst: 1, queue: 10 } }
locations: []
",
    );
    let mut envoy = Envoy::connect(&gateway);
    let good = frame(&call_of("d", &[&[("a", "1")]]));
    let mut ask = |timeout: &str| {
        let headers = [("grpc-timeout", timeout)];
        let headers = if timeout.is_empty() { &[][..] } else { &headers[..] };
        envoy.send(SHOULD_RATE_LIMIT, headers, &good).ok().overall
    };
    assert_eq!(ask(""), OK);
    assert_eq!(ask(""), OVER_LIMIT);
    assert_eq!(ask("20m"), OVER_LIMIT);
    let began = std::time::Instant::now();
    assert_eq!(ask("5S"), OK);
    assert!(began.elapsed() >= ms(100), "{:?}", began.elapsed());
}

#[test]
fn callers_without_the_token_are_refused() {
    let gateway = Gateway::start(&SHOP.replace("127.0.0.1:0", "127.0.0.1:0\n  token: secret-token"));
    let mut envoy = Envoy::connect(&gateway);
    let good = frame(&call_of("shop", &[ADDRESS]));
    envoy.send(SHOULD_RATE_LIMIT, &[], &good).failed(16);
    envoy.send(CHECK, &[], &[0, 0, 0, 0, 0]).failed(16);
    envoy.send(SHOULD_RATE_LIMIT, &[("authorization", "Bearer secret-token")], &good).ok();
    let page = [("authorization", "Bearer secret-token"), ("origin", "https://example.com")];
    envoy.send(SHOULD_RATE_LIMIT, &page, &good).failed(7);
}

#[test]
fn the_health_of_the_process_is_told() {
    let gateway = Gateway::start(SHOP);
    let mut envoy = Envoy::connect(&gateway);
    for (service, expected) in
        [("", 0), ("envoy.service.ratelimit.v3.RateLimitService", 0), ("ratelimit", 0), ("other", 5)]
    {
        let question = frame(&Pair { key: service.to_owned(), value: String::new() });
        let told = envoy.send(CHECK, &[], &question);
        assert_eq!(told.code, expected, "{service}: {}", told.message);
        if expected == 0 {
            assert_eq!(told.body, [0, 0, 0, 0, 2, 8, 1], "SERVING");
        }
    }
}

/// A watcher learns that the process stops, and does not hold it up.
#[test]
fn a_watcher_learns_that_the_process_stops() {
    let mut gateway = Gateway::start(SHOP);
    let address = service(&gateway);
    let watcher = std::thread::spawn(move || {
        let mut envoy = Envoy::connect_to(address);
        envoy.send("/grpc.health.v1.Health/Watch", &[], &[0, 0, 0, 0, 0])
    });
    let watched = ["protocol=\"rls\"", "call=\"health\"", "result=\"done\""];
    eventually("a watcher", || gateway.metric("sluicegate_service_calls_total", &watched) == 1.0);
    gateway.term();
    let told = watcher.join().expect("the watcher");
    // SERVING first, NOT_SERVING last.
    assert_eq!(told.body, [0, 0, 0, 0, 2, 8, 1, 0, 0, 0, 0, 2, 8, 2]);
    assert_eq!(told.code, 14, "{}", told.message);
    assert_eq!(gateway.wait_exit(), 0);
}

/// Whatever the bytes, there is an answer, and the connection and the process live on.
#[test]
fn malformed_bodies_are_answered() {
    let gateway = Gateway::start(SHOP);
    let mut envoy = Envoy::connect(&gateway);
    let good = frame(&call_of("shop", &[ADDRESS, &[("path", "/api/"), ("x", "\u{fc}")]]));
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below.max(1) as u64) as usize
    };
    for round in 0..600 {
        let mut body = good.to_vec();
        for _ in 0..=next(4) {
            match next(4) {
                0 => body.truncate(next(body.len() + 1)),
                1 if !body.is_empty() => {
                    let at = next(body.len());
                    body[at] = next(256) as u8;
                }
                2 => body.insert(next(body.len() + 1), next(256) as u8),
                _ => body.extend(std::iter::repeat_n(next(256) as u8, next(40))),
            }
        }
        // Half of them get a length that fits again.
        if round % 2 == 0 && body.len() >= 5 {
            let length = (body.len() - 5) as u32;
            body[1..5].copy_from_slice(&length.to_be_bytes());
            body[0] = 0;
        }
        let code = envoy.send(SHOULD_RATE_LIMIT, &[], &body).code;
        assert!([0, 3, 12].contains(&code), "{code}: {body:?}");
    }
    envoy.ask("shop", &[ADDRESS]).ok();
}
