//! Responses that are cut when nothing is left of a limit in Redis.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{DEGRADED, counting_on};
use crate::support::*;

const LIMIT: u64 = 640_000;
const STEP: u64 = LIMIT / 64;
/// Bytes of a piece of a response, of which one comes every 5 ms.
const PIECE: usize = 4_000;
const PER_MS: u64 = PIECE as u64 / 5;
/// Windows, whose units in Redis a test reads.
const ALGORITHMS: [&str; 3] = ["fixed_window", "sliding_window", "sliding_log"];

/// A response of so many pieces.
fn streaming(pieces: usize) -> Reply {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", pieces * PIECE);
    stream_pieces(Reply::raw(head), pieces).close()
}

fn stream_pieces(reply: Reply, pieces: usize) -> Reply {
    (0..pieces).fold(reply, |reply, _| reply.then("x".repeat(PIECE)).pause(ms(5)))
}

/// Gateways whose limit of an algorithm cuts responses.
fn cutting(count: usize, upstream: Upstream, url: &str, algorithm: &str, fields: &str) -> Fleet {
    let head = counting_on(url, "150ms");
    let burst = if algorithm == "token_bucket" { format!(", burst: {LIMIT}") } else { String::new() };
    let fleet = Fleet::before(upstream, count, |_, upstream| {
        format!(
            "{head}limits:\n  egress: {{ key: global, algorithm: {algorithm}, rate: {LIMIT}/30d{burst}, \
               charge: {{ units: bytes, over: cut, clear: 204 }}{fields} }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: egress }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(count);
    fleet
}

/// A request on a connection that ends with its response.
fn once(target: &str) -> Vec<u8> {
    get(target).header("Connection", "close").bytes()
}

/// Bytes that one response delivers until it ends.
fn deliver(gateway: &Gateway) -> u64 {
    let mut client = gateway.client();
    client.send(once("/"));
    client.raw_head(PATIENCE).expect("a head");
    client.until_close().0.len() as u64
}

/// The units of the only counter in Redis.
fn stored(redis: &Redis) -> u64 {
    let keys = redis.keys().into_iter().map(|(name, _)| name);
    let mut counters = keys.filter(|name| name.windows(3).any(|part| part == b":S:"));
    let Some(name) = counters.next() else { return 0 };
    assert!(counters.next().is_none(), "another counter");
    let mut connection = redis.connect();
    let value: Vec<u8> = ::redis::cmd("GET").arg(name).query(&mut connection).expect("a string");
    value.first_chunk().map_or(0, |units| f64::from_le_bytes(*units) as u64)
}

#[track_caller]
fn wait_stored(redis: &Redis, units: u64) {
    wait_stored_within(redis, units, 0);
}

/// As [`wait_stored`]. A step that was asked for when the connection broke may stay charged: `more` units.
#[track_caller]
fn wait_stored_within(redis: &Redis, units: u64, more: u64) {
    for pause in [0, 400] {
        thread::sleep(ms(pause));
        let mut last = u64::MAX;
        eventually(&format!("{units} units in Redis"), || {
            let found = stored(redis);
            if std::mem::replace(&mut last, found) != found {
                println!("{found} of {units} units");
            }
            (units..=units + more).contains(&found)
        });
    }
}

/// What passes above the limit is at most a step, and what streams during two round trips to Redis.
#[test]
fn a_response_is_cut_within_the_bound() {
    let cases = [0, 10].into_iter().flat_map(|delay| ALGORITHMS.map(|algorithm| (delay, algorithm)));
    at_once(cases, |(delay, algorithm)| {
        undisturbed(|| {
            let redis = Redis::start();
            let proxy = Proxy::start(redis.addr());
            let upstream = Upstream::new(|_| streaming(400));
            let fleet = cutting(1, upstream, &proxy.url(), algorithm, "");
            proxy.delay(ms(delay));
            let start = Instant::now();
            let delivered = deliver(&fleet.gateways[0]);
            let speed = delivered.div_ceil(start.elapsed().as_millis() as u64).max(PER_MS);
            if fleet.metric(DEGRADED, &[]) > 0.0 {
                return None;
            }
            // A round trip takes the delay twice, and on a busy machine some more.
            let most = LIMIT + STEP + 2 * speed * (2 * delay + 10) + PIECE as u64;
            println!("{algorithm}, {delay} ms: {delivered} of {LIMIT}, {most} at most");
            assert!((LIMIT..=most).contains(&delivered), "{algorithm}: {delivered} of {most}");
            wait_stored(&redis, delivered);
            let log = fleet.gateways[0].wait_log(1);
            assert_eq!((&log[0]["verdict"], &log[0]["error"]), (&"reject".into(), &"limit used up".into()));
            assert_eq!((&log[0]["charged"], &log[0]["limit"]), (&delivered.into(), &"egress".into()));
            assert_eq!(fleet.metric("sluicegate_reserved_units", &[]), 0.0);
            let last = fleet.gateways[0].get("/");
            if fleet.metric(DEGRADED, &[]) > 0.0 {
                return None;
            }
            last.expect(429);
            Some(())
        });
    });
}

/// Responses of two gateways share what is left, and one ledger.
#[test]
fn two_gateways_cut_at_one_limit() {
    at_once(ALGORITHMS, |algorithm| undisturbed(|| cut_at_one_limit(algorithm)));
}

fn cut_at_one_limit(algorithm: &str) -> Option<()> {
    let redis = Redis::start();
    let fleet = cutting(2, Upstream::new(|_| streaming(300)), &redis.url(), algorithm, "");
    let delivered: Vec<u64> = thread::scope(|scope| {
        let gateways = [0, 1, 0, 1].map(|index| &fleet.gateways[index]);
        let streams = gateways.map(|gateway| scope.spawn(|| deliver(gateway)));
        streams.into_iter().map(|stream| stream.join().expect("it ends")).collect()
    });
    if fleet.metric(DEGRADED, &[]) > 0.0 {
        return None;
    }
    let sum: u64 = delivered.iter().sum();
    let most = LIMIT + 4 * (STEP + 2 * PER_MS * 10 + PIECE as u64);
    println!("{algorithm}: {delivered:?}, {sum} of {LIMIT}, {most} at most");
    assert!(sum >= LIMIT - 3 * STEP, "{algorithm}: {sum} of {most}");
    wait_stored(&redis, sum);
    // Beyond that only if a round trip took longer than 10 ms.
    (sum <= most).then_some(())
}

/// What fits passes whole, and no more is charged than that; a bucket gives the rest back, too.
#[test]
fn a_response_that_fits_is_not_cut() {
    at_once([&ALGORITHMS[..], &["token_bucket"]].concat(), |algorithm| {
        undisturbed(|| {
            let redis = Redis::start();
            let fleet = cutting(2, Upstream::new(|_| streaming(50)), &redis.url(), algorithm, "");
            for gateway in &fleet.gateways {
                assert_eq!(deliver(gateway), 50 * PIECE as u64, "{algorithm}");
            }
            if fleet.metric(DEGRADED, &[]) > 0.0 {
                return None;
            }
            if algorithm != "token_bucket" {
                wait_stored(&redis, 100 * PIECE as u64);
            }
            let line = fleet.gateways[0].wait_log(1).remove(0);
            assert_eq!((&line["verdict"], &line["charged"]), (&"admit".into(), &line["bytes"]), "{line}");
            Some(())
        });
    });
}

/// A client that hangs up pays what was delivered; what was taken ahead comes back, also from a call on its way.
#[test]
fn a_client_that_leaves_pays_what_was_delivered() {
    undisturbed(|| {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.addr());
        let fleet = cutting(1, Upstream::new(|_| streaming(400)), &proxy.url(), "fixed_window", "");
        proxy.delay(ms(15));
        for count in 0..5 {
            let mut client = fleet.gateways[0].client();
            client.send(once("/"));
            client.raw_head(PATIENCE).expect("a head");
            client.skip(30_000 + 1_700 * count, PATIENCE);
            client.reset();
        }
        let charged: u64 = fleet.gateways[0]
            .wait_log(5)
            .iter()
            .map(|line| line["charged"].as_u64().expect("a number"))
            .sum();
        if fleet.metric(DEGRADED, &[]) > 0.0 {
            return None;
        }
        wait_stored(&redis, charged);
        Some(())
    });
}

/// In an outage the share of the gateway decides, and Redis is charged at recovery what was delivered: by responses
/// that Redis had admitted, and by those that the share did.
#[test]
fn an_outage_leaves_the_cut_to_the_share() {
    let cases = ALGORITHMS.into_iter().flat_map(|algorithm| [true, false].map(|begins| (algorithm, begins)));
    at_once(cases, |(algorithm, begins_before)| {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.addr());
        let upstream = Upstream::new(|_| streaming(400));
        let fleet = cutting(2, upstream, &proxy.url(), algorithm, "");
        let mut client = fleet.gateways[0].client();
        let mut begun = 0;
        if begins_before {
            client.send(once("/"));
            client.raw_head(PATIENCE).expect("a head");
            begun = 60_000;
            client.skip(begun, PATIENCE);
            proxy.refuse();
        } else {
            proxy.refuse();
            fleet.wait_degraded();
            client.send(once("/"));
            client.raw_head(PATIENCE).expect("a head");
        }
        let delivered = (begun + client.until_close().0.len()) as u64;
        println!("{algorithm}, {begins_before}: {delivered} of {LIMIT}");
        // Half of the limit, and what Redis granted before.
        let most = LIMIT / 2 + (begun as u64 + 40_000) + STEP + 160 * PER_MS;
        assert!((LIMIT / 2 - 10_000..=most).contains(&delivered), "{delivered} of {most}");
        fleet.gateways[0].get("/").expect(429);
        proxy.forward();
        fleet.wait_enforcing();
        wait_stored_within(&redis, delivered, if begins_before { 2 * STEP } else { 0 });
    });
}

/// The share of a gateway knows the units that Redis has granted to a response since its request was admitted.
#[test]
fn an_outage_does_not_grant_a_response_its_units_again() {
    at_once(ALGORITHMS, |algorithm| {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.addr());
        let fleet = cutting(1, Upstream::new(|_| streaming(400)), &proxy.url(), algorithm, "");
        let mut client = fleet.gateways[0].client();
        client.send(once("/"));
        client.raw_head(PATIENCE).expect("a head");
        let begun = 400_000;
        client.skip(begun, PATIENCE);
        proxy.refuse();
        let delivered = (begun + client.until_close().0.len()) as u64;
        println!("{algorithm}: {delivered} of {LIMIT}");
        let most = LIMIT + STEP + 160 * PER_MS;
        assert!((LIMIT - 2 * STEP..=most).contains(&delivered), "{algorithm}: {delivered} of {most}");
    });
}

/// `on_failure: reject` cuts a response when the store does not answer, and `allow` does not.
#[test]
fn on_failure_decides_about_a_streaming_response() {
    at_once([("reject", false), ("allow", true)], |(on_failure, is_whole)| {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.addr());
        let upstream = Upstream::new(|_| streaming(200));
        let fields = format!(", on_failure: {on_failure}");
        let fleet = cutting(1, upstream, &proxy.url(), "fixed_window", &fields);
        let mut client = fleet.gateways[0].client();
        client.send(once("/"));
        client.raw_head(PATIENCE).expect("a head");
        client.skip(60_000, PATIENCE);
        proxy.refuse();
        let delivered = 60_000 + client.until_close().0.len() as u64;
        assert_eq!(delivered == 200 * PIECE as u64, is_whole, "{on_failure}: {delivered}");
        assert!(is_whole || delivered < 60_000 + 2 * STEP + 400 * PER_MS, "{on_failure}: {delivered}");
        proxy.forward();
        fleet.wait_enforcing();
        wait_stored_within(&redis, delivered, 2 * STEP);
    });
}

/// A killed Redis has lost what it counted: it is charged what the share admitted, and the response was cut.
#[test]
fn a_killed_redis_does_not_let_a_response_run() {
    let mut redis = Redis::start();
    let fleet = cutting(2, Upstream::new(|_| streaming(400)), &redis.url(), "fixed_window", "");
    let (client, patience) = (fleet.gateways[0].client(), Duration::from_secs(20));
    let mut client = client;
    client.send(once("/"));
    client.raw_head(PATIENCE).expect("a head");
    client.skip(60_000, PATIENCE);
    redis.kill();
    let delivered = 60_000 + client.rest(patience).0.len() as u64;
    assert!((LIMIT / 2 - 10_000..LIMIT).contains(&delivered), "{delivered}");
    redis.restart();
    fleet.wait_enforcing();
    eventually("the debts in Redis", || stored(&redis) >= LIMIT / 2 - 100_000);
    assert!(stored(&redis) <= delivered, "{} of {delivered}", stored(&redis));
}

/// While gateways disagree about the numbers, the share of the caller's own tier lets a response go on that Redis
/// refuses, and not that of another tier of the same key, which is used up.
#[test]
fn the_share_of_the_own_tier_extends_a_response() {
    const OTHERS: u64 = 60_000;
    const BEGUN: u64 = 100_000;
    at_once(ALGORITHMS, |algorithm| {
        undisturbed(|| {
            let redis = Redis::start();
            let gate = Gate::default();
            let held = gate.clone();
            let upstream = Upstream::new(move |seen| match &*seen.target {
                "/held" => {
                    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1600000\r\nConnection: close\r\n\r\n";
                    let begun = stream_pieces(Reply::raw(head), 25).until(&held);
                    stream_pieces(begun, 375).close()
                }
                _ => streaming(400),
            });
            let head = counting_on(&redis.url(), "150ms");
            let fleet = Fleet::before(upstream, 2, |place, upstream| {
                let (charge, rate) = ("{ units: bytes, over: cut }", OTHERS + place as u64);
                format!(
                    "{head}account: {{ from: header:x-account, tier: {{ members: {{ ann: gold }} }} }}\n\
                     limits:\n  egress: {{ key: global, algorithm: {algorithm}, rate: {rate}/30d, \
                       charge: {charge}, tiers: {{ gold: {{ rate: {LIMIT}/30d }} }} }}\n\
                     locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: egress }}\n"
                )
            });
            fleet.wait_enforcing();
            fleet.wait_nodes(2);
            let [one, other] = [&fleet.gateways[0], &fleet.gateways[1]];
            let differ = || one.metric("sluicegate_limit_numbers_differ", &["limit=\"egress\""]) == 1.0;
            eventually("other numbers", differ);
            assert!(deliver(one) < OTHERS + 400 * PER_MS, "the other tier is used up");
            let gold = |target| get(target).header("Connection", "close").header("X-Account", "ann").bytes();
            let mut client = one.client();
            client.send(gold("/held"));
            client.raw_head(PATIENCE).expect("a head");
            client.skip(BEGUN as usize, PATIENCE);
            let mut clients = [0, 1].map(|_| other.client());
            clients.iter_mut().for_each(|client| client.send(gold("/")));
            for client in &mut clients {
                client.raw_head(PATIENCE).expect("a head");
                client.until_close();
            }
            gate.open();
            let delivered = BEGUN + client.until_close().0.len() as u64;
            if fleet.metric(DEGRADED, &[]) > 0.0 {
                return None;
            }
            println!("{algorithm}: {delivered} of {}", LIMIT / 2);
            let most = LIMIT / 2 + 2 * STEP + 160 * PER_MS;
            assert!((LIMIT / 2 - 2 * STEP..=most).contains(&delivered), "{algorithm}: {delivered} of {most}");
            Some(())
        });
    });
}

/// What a streaming response has taken stays taken when another response clears the key.
#[test]
fn an_extended_reservation_outlives_a_clear() {
    at_once(ALGORITHMS, |algorithm| {
        undisturbed(|| {
            let redis = Redis::start();
            let gate = Gate::default();
            let held = gate.clone();
            let upstream = Upstream::new(move |seen| match &*seen.target {
                "/clears" => Reply::with(204, &[], ""),
                "/held" => {
                    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nConnection: close\r\n\r\n";
                    let begun = Reply::raw(head).then("x".repeat(50_000)).pause(ms(50));
                    begun.then("x".repeat(40_000)).until(&held).then("x".repeat(10_000)).close()
                }
                _ => Reply::with(200, &[], &"y".repeat(500)),
            });
            let fleet = cutting(2, upstream, &redis.url(), algorithm, "");
            let mut client = fleet.gateways[0].client();
            client.send(once("/held"));
            client.raw_head(PATIENCE).expect("a head");
            client.skip(90_000, PATIENCE);
            eventually("an extension", || stored(&redis) >= 90_000);
            thread::sleep(ms(300));
            let before = stored(&redis);
            fleet.gateways[1].get("/other").expect(200);
            fleet.gateways[1].get("/clears").expect(204);
            eventually("a cleared key", || stored(&redis) <= before);
            assert!(stored(&redis) >= 90_000, "{algorithm}: {} of {before}", stored(&redis));
            fleet.gateways[1].get("/other").expect(200);
            gate.open();
            assert_eq!(client.until_close().0.len(), 10_000);
            if fleet.metric(DEGRADED, &[]) > 0.0 {
                return None;
            }
            wait_stored(&redis, 100_000 + 500);
            Some(())
        });
    });
}
