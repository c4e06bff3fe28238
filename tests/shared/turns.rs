//! Turns of rejected requests, on gateways that share a Redis: one row for all of them.

use std::time::Instant;

use crate::support::fleet::counting_on;
use crate::support::*;

/// One request passes, and the others get turns at the rate of the limit.
fn start(redis_url: &str, rate: &str) -> Fleet {
    let head = counting_on(redis_url, "200ms");
    let rest = format!(
        "limits:\n  own: {{ rate: 100/s }}\n  \
         all: {{ key: global, rate: {rate}, burst: 1, on_reject: {{ retry_after: turns, turns_at_most: 5m }} }}\n"
    );
    let fleet = Fleet::start(2, |_, upstream| {
        format!("{head}{rest}locations: [{{ path: /, upstream: \"{upstream}\", limits: [own, all] }}]\n")
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(2);
    fleet
}

fn ask(gateway: &Gateway, client: usize) -> Response {
    gateway.ask(&get("/").header("X-Forwarded-For", format!("10.0.0.{client}")))
}

/// The milliseconds that a rejected request is told, by every field.
#[track_caller]
fn told(gateway: &Gateway, client: usize) -> u64 {
    let rejected = ask(gateway, client).expect(429);
    let (ms, seconds) = (rejected.retry_after_ms(), rejected.header("retry-after").expect("a time"));
    assert_eq!(seconds, ms.div_ceil(1000).to_string());
    let fields = rejected.header("ratelimit").expect("the fields");
    assert!(fields.contains(&format!("\"all\";r=0;t={seconds}")), "{fields}");
    ms
}

/// Asks each gateway in turn; the turn of each client is `step` ms behind the one before.
#[track_caller]
fn expect_row(gateways: &[&Gateway], step: u64) {
    let began = Instant::now();
    let first = told(gateways[0], 1);
    for place in 1..8 {
        let turn = told(gateways[place % gateways.len()], place + 1);
        let (latest, passed) = (first + place as u64 * step, began.elapsed().as_millis() as u64 + 2);
        assert!(turn <= latest + 1 && turn + passed >= latest, "{turn} of {latest}, {passed} ms later");
    }
}

#[test]
fn two_gateways_hand_out_one_row() {
    let redis = Redis::start();
    let fleet = start(&redis.url(), "1/10s");
    let [one, two] = [&fleet.gateways[0], &fleet.gateways[1]];
    ask(one, 1).expect(200);
    expect_row(&[one, two], 10_000);
    // A client that comes early is told the same turn, and takes no other.
    let (early, last) = (told(two, 2), told(one, 20));
    assert!((15_000..=20_000).contains(&early), "{early}");
    let next = told(two, 21);
    assert!((last + 5_000..=last + 10_001).contains(&next), "{last} {next}");
    // A look tells the next turn and takes none.
    let query = serde_json::json!({ "method": "GET", "url": "/", "ip": "10.0.0.99" }).to_string();
    let explained =
        one.ask_admin(&post("/explain", query.as_bytes()).header("Accept", "text/plain")).expect(200);
    let text = explained.text();
    assert!(text.contains("(its turn in 1") && text.contains("it would fit in "), "{text}");
    assert!(!text.contains("it would fit in 11") && !text.contains("it would fit in 109"), "{text}");
}

#[test]
fn in_an_outage_each_gateway_has_a_row_of_its_own() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let fleet = start(&proxy.url(), "1/10s");
    proxy.refuse();
    fleet.wait_degraded();
    for gateway in &fleet.gateways {
        // Half of the rate is its part.
        while ask(gateway, 1).status == 200 {}
        expect_row(&[gateway], 20_000);
    }
}
