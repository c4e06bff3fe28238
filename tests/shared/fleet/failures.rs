//! Several gateways while their Redis does not answer, and when it answers again.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{counting_on, is_degraded, with_status};
use crate::support::*;

const DEGRADED: &str = "sluicegate_degraded_decisions_total";
/// Enforcement is promised within a second of an answer; the rest is for a busy machine.
const RECOVERY: Duration = ms(1000 + 1500);

/// Clients ask for one location each, `/0`, `/1` …, and pause a little in between.
fn own_location(_: usize, client: usize, _: usize) -> Ask {
    thread::sleep(ms(5));
    get(&format!("/{client}"))
}

/// Gateways with a location for each of `limits`, in their order.
fn locations(count: usize, url: impl Fn(usize) -> String, timeout: &str, limits: &[&str]) -> Fleet {
    Fleet::start(count, |index, upstream| {
        let mut file = counting_on(&url(index), timeout);
        file += "locations:\n";
        for (index, limit) in limits.iter().enumerate() {
            file += &format!("  - {{ path: /{index}, upstream: \"{upstream}\", limits: {{ {limit} }} }}\n");
        }
        file
    })
}

fn has_limit_headers(headers: &Headers) -> bool {
    ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining"]
        .iter()
        .any(|n| headers.has(n))
}

fn is_reported_degraded(fired: &Fired) -> bool {
    fired.headers.get("sluicegate-state").as_deref() == Some("degraded")
}

/// Requests that one client of each gateway sent.
fn of(fired: &[Fired], client: usize) -> Vec<&Fired> {
    fired.iter().filter(|one| one.client == client).collect()
}

/// Checks that every answer came within `most`. A gateway thread may be stalled unnoticed, but not often, and not for
/// as long as a request without a deadline would wait.
#[track_caller]
fn assert_answered_within(most: Duration, fired: &[Fired]) {
    let mut took: Vec<_> = fired.iter().map(|one| one.answered - one.sent).collect();
    took.sort();
    let usual = took[took.len() * 95 / 100];
    assert!(usual <= most, "one answer of twenty took {usual:?}, {most:?} are allowed");
    let slowest = took[took.len() - 1];
    assert!(slowest <= most + ms(500), "an answer took {slowest:?}, {most:?} are allowed");
}

/// How often a gateway logged that Redis does not answer, and that it answers again.
fn count_redis_log_lines(gateway: &Gateway) -> [usize; 2] {
    let log = gateway.stderr();
    ["redis does not answer", "redis answers again"].map(|words| log.matches(words).count())
}

/// A Redis that is killed and comes back empty, three times. Each limit falls back as configured, Redis decides
/// again a second after it answers, and forgotten units are admitted once more at most.
#[test]
fn limits_follow_their_mode_when_redis_dies_and_comes_back_empty() {
    const MOST: usize = 300;
    let modes = ["reject", "allow", "local"]
        .map(|mode| format!("key: global, algorithm: fixed_window, rate: {MOST}/1h, on_failure: {mode}"));
    let mut redis = Redis::start();
    let url = redis.url();
    let fleet = locations(3, |_| url.clone(), "50ms", &modes.each_ref().map(String::as_str));
    fleet.wait_enforcing();
    let fired = thread::scope(|scope| {
        let clients = scope.spawn(|| {
            fleet.fire(3, Until::Span(ms(5000)), |gateway, client, turn| {
                thread::sleep(ms(3));
                own_location(gateway, client, turn)
            })
        });
        for _ in 0..3 {
            thread::sleep(ms(300));
            redis.kill();
            fleet.wait_degraded();
            thread::sleep(ms(300));
            redis.restart();
            let answers = Instant::now();
            fleet.wait_enforcing();
            assert!(answers.elapsed() < RECOVERY, "Redis decides after {:?}", answers.elapsed());
        }
        clients.join().expect("the clients finish")
    });
    let [strict, open, local] = [0, 1, 2].map(|client| of(&fired, client));
    let count = |of: &[&Fired], status: u16| of.iter().filter(|one| one.status == status).count();
    assert!(count(&strict, 503) > 0, "no request was rejected while Redis was away");
    assert_eq!(count(&strict, 200) + count(&strict, 429) + count(&strict, 503), strict.len());
    assert!(count(&strict, 200) <= 4 * MOST, "{} passed", count(&strict, 200));
    for (of, how) in [(&open, "allow"), (&local, "local")] {
        assert_eq!(count(of, 200) + count(of, 429), of.len(), "{how}: neither 200 nor 429");
        assert!(of.iter().any(|one| one.status == 200 && is_reported_degraded(one)), "{how}");
        assert!(fleet.metric(DEGRADED, &[&format!("how=\"{how}\"")]) > 0.0);
    }
    // Four lives of Redis, and three times the share that the gateways divide.
    assert!(count(&local, 200) <= 4 * MOST + 3 * (MOST + 3), "{} passed", count(&local, 200));
}

/// A Redis with full memory cannot count; each limit falls back as configured, and the metrics give the reason.
#[test]
fn a_full_redis_is_a_failure_of_its_own_kind() {
    let redis = Redis::start_with(&["--maxmemory-policy", "noeviction"]);
    let limits = ["rate: 100/1h, on_failure: reject", "rate: 100/1h, on_failure: allow"];
    let fleet = locations(1, |_| redis.url(), "200ms", &limits);
    fleet.wait_enforcing();
    let gateway = &fleet.gateways[0];
    gateway.get("/0").expect(200);
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    gateway.get("/0").expect(503);
    gateway.get("/1").expect(200);
    assert!(gateway.metric("sluicegate_redis_calls_total", &["result=\"full\""]) > 0.0);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    fleet.wait_enforcing();
    eventually("a request that Redis counts", || gateway.get("/0").status == 200);
}

/// No server listens on the port of Redis. A limit that insists on Redis rejects with 503, another one admits;
/// neither response names a limit, and both are counted.
#[test]
fn a_redis_that_never_was_closes_or_opens_as_written() {
    let closed = Refusing::new();
    let limits = ["rate: 1/1h, on_failure: reject", "rate: 1/1h, on_failure: allow"];
    let fleet = locations(1, |_| format!("redis://{}", closed.addr()), "20ms", &limits);
    let gateway = &fleet.gateways[0];
    assert!(is_degraded(gateway));
    for (target, how, status) in [("/0", "reject", 503), ("/1", "allow", 200)] {
        let counted = || gateway.metric(DEGRADED, &[&format!("how=\"{how}\"")]);
        for turn in 1..=3 {
            let answer = gateway.get(target).expect(status);
            assert!(!has_limit_headers(&answer.headers), "{:?}", answer.headers);
            assert_eq!(counted(), f64::from(turn), "{how}");
        }
    }
    assert_eq!(fleet.upstream.count(), 3);
}

/// Packets vanish without a reset. Requests are answered within the deadline, the shares admit no more than the
/// limit and one per gateway, and Redis is not flooded.
#[test]
fn a_silent_partition_is_bridged_without_a_storm() {
    const SPAN: Duration = ms(3000);
    let redis = Redis::start();
    let proxies: Vec<_> = (0..3).map(|_| Proxy::start(redis.addr())).collect();
    let limit = "key: global, algorithm: fixed_window, rate: 30/1h, on_failure: local";
    let fleet = locations(3, |index| proxies[index].url(), "100ms", &[limit]);
    fleet.wait_enforcing();
    fleet.wait_nodes(3);
    let before: Vec<_> = proxies.iter().map(|proxy| proxy.attempts().len()).collect();
    let start = Instant::now();
    proxies.iter().for_each(Proxy::stop_forwarding);
    let noise = Noise::listen();
    let fired = fleet.fire(1, Until::Span(SPAN), own_location);
    let late = noise.late();
    assert_eq!(with_status(&fired, 200) + with_status(&fired, 429), fired.len());
    assert!((1..=33).contains(&with_status(&fired, 200)), "{} passed", with_status(&fired, 200));
    assert_answered_within(ms(100) + late, &fired);
    for (proxy, before) in proxies.iter().zip(before) {
        let attempts: Vec<_> = proxy.attempts()[before..].iter().map(|&at| at - start).collect();
        // Five failures in a row, then steps of 200, 400 and 500 ms, each at most a fifth shorter.
        assert!(attempts.len() <= 5 + 9, "attempts to connect at {attempts:?}");
        let steps: Vec<_> = attempts.iter().copied().filter(|&at| at > ms(1500)).collect();
        assert!(steps.windows(2).all(|pair| pair[1] - pair[0] > ms(250)), "attempts at {attempts:?}");
    }
    fleet.wait_degraded();
    proxies.iter().for_each(Proxy::forward);
    fleet.wait_enforcing();
}

/// One of three gateways is cut off: all together admit the limit and that gateway's third of it.
#[test]
fn a_gateway_that_is_cut_off_admits_its_share_and_no_more() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let limit = "key: global, algorithm: fixed_window, rate: 30/1h, on_failure: local";
    let url = |index| if index == 0 { proxy.url() } else { redis.url() };
    let fleet = locations(3, url, "100ms", &[limit]);
    fleet.wait_enforcing();
    fleet.wait_nodes(3);
    proxy.stop_forwarding();
    let fired = fleet.fire(2, Until::Count(40), |_, _, _| get("/0"));
    assert_eq!(with_status(&fired, 200) + with_status(&fired, 429), fired.len());
    let by_gateway = |index: usize| fired.iter().filter(|f| f.gateway == index && f.status == 200).count();
    let (cut, others) = (by_gateway(0), by_gateway(1) + by_gateway(2));
    assert!((1..=11).contains(&cut) && others <= 30, "{cut} + {others} passed");
    assert!(others >= 29 || fleet.gateways[1..].iter().any(|g| g.metric(DEGRADED, &[]) > 0.0), "{others}");
}

/// A Redis that freezes for a while delays no request beyond the deadline; a longer freeze is logged once when it
/// begins and once when it ends.
#[test]
fn a_frozen_redis_delays_no_request_beyond_the_deadline() {
    for (freeze, is_long) in [(ms(100), false), (ms(1000), true), (ms(3000), true)] {
        let redis = Redis::start();
        let limit = "key: global, rate: 100000/1h, on_failure: allow";
        let fleet = locations(2, |_| redis.url(), "50ms", &[limit]);
        fleet.wait_enforcing();
        let noise = Noise::listen();
        let fired = thread::scope(|scope| {
            let clients = scope.spawn(|| {
                fleet.fire(2, Until::Span(freeze + ms(600)), |gateway, _, turn| {
                    thread::sleep(ms(3));
                    own_location(gateway, 0, turn)
                })
            });
            thread::sleep(ms(100));
            redis.pause();
            thread::sleep(freeze);
            if is_long {
                fleet.wait_degraded();
            }
            redis.resume();
            let answers = Instant::now();
            fleet.wait_enforcing();
            assert!(answers.elapsed() < RECOVERY, "Redis decides after {:?}", answers.elapsed());
            clients.join().expect("the clients finish")
        });
        assert_eq!(with_status(&fired, 200), fired.len());
        assert_answered_within(ms(50) + noise.late(), &fired);
        for gateway in &fleet.gateways {
            eventually("the end of the log lines", || {
                let [fails, answers] = count_redis_log_lines(gateway);
                assert!(fails <= 1 && answers <= fails, "{freeze:?}: {}", gateway.stderr());
                fails == answers && (fails == 1 || !is_long)
            });
        }
    }
}

/// The units that a killed gateway counted in Redis still count when it comes back, for it and for the others.
#[test]
fn counters_outlive_a_killed_gateway() {
    let redis = Redis::start();
    let limit = "key: global, algorithm: fixed_window, rate: 50/1h";
    let mut fleet = locations(2, |_| redis.url(), "200ms", &[limit]);
    let file = std::fs::read_to_string(fleet.gateways[0].file()).expect("its file");
    for _ in 0..4 {
        fleet.wait_enforcing();
        let fired = fleet.fire(1, Until::Count(5), |_, _, _| get("/0"));
        assert_eq!(with_status(&fired, 200), 10, "{fired:?}");
        fleet.gateways[0].signal(rustix::process::Signal::KILL);
        eventually("its end", || !fleet.gateways[0].is_running());
        fleet.gateways[0] = Gateway::start(&file);
    }
    fleet.wait_enforcing();
    let fired = fleet.fire(2, Until::Count(10), |_, _, _| get("/0"));
    assert_eq!([with_status(&fired, 200), with_status(&fired, 429)], [10, 30], "{fired:?}");
    assert_eq!(fleet.metric(DEGRADED, &[]), 0.0);
}
