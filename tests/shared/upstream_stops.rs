//! An upstream asks one gateway to stop, and the others that share its limits stop as well.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Ask, Fleet, Gateway, Redis, Reply, Upstream, eventually, get, ms};

/// Longest time until a stop of one gateway holds on another.
const REACH: Duration = Duration::from_secs(1);

/// An upstream that refuses each request of `x-account: acme` with a time of `seconds` while the flag is set.
fn refusing(flag: &'static AtomicBool, seconds: &'static str) -> Upstream {
    Upstream::new(move |request| {
        match flag.load(Relaxed) && request.header("x-account").as_deref() == Some("acme") {
            true => Reply::with(429, &[("Retry-After", seconds)], "had enough"),
            false => Reply::text("well"),
        }
    })
}

fn flag() -> &'static AtomicBool {
    Box::leak(Box::new(AtomicBool::new(true)))
}

/// Gateways over one server in front of `upstream`, which they obey by these fields.
fn fleet(redis: &Redis, upstream: Upstream, obey: &str) -> Fleet {
    let fleet = Fleet::before(upstream, 2, |_, upstream| yaml(redis, upstream, obey));
    fleet.wait_enforcing();
    fleet
}

fn yaml(redis: &Redis, upstream: &str, obey: &str) -> String {
    format!(
        "state: {{ store: redis, redis: {{ url: \"{}\", prefix: t, timeout: 200ms }} }}\n\
         account: {{ from: header:x-account }}\n\
         upstreams: {{ app: {{ servers: \"{upstream}\", obey: {obey} }} }}\n\
         limits: {{ all: {{ key: account, rate: 1000/s }} }}\n\
         locations: [{{ path: /, upstream: app, limits: all }}]\n",
        redis.url()
    )
}

fn ask_as(account: &str) -> Ask {
    get("/").header("X-Account", account)
}

fn status_of(gateway: &Gateway, account: &str) -> u16 {
    gateway.client().ask(&ask_as(account)).status
}

fn is_stopped(gateway: &Gateway) -> bool {
    gateway.metric("sluicegate_upstream_stopped", &["upstream=\"app\""]) == 1.0
}

/// Waits until a stop of the other gateway holds here, no longer than it may take.
#[track_caller]
fn reaches(gateway: &Gateway) {
    let deadline = Instant::now() + REACH;
    while !is_stopped(gateway) {
        assert!(Instant::now() < deadline, "the stop takes longer than {REACH:?}");
        thread::sleep(ms(10));
    }
}

#[test]
fn a_stop_that_one_gateway_heard_holds_on_the_other() {
    let redis = Redis::start();
    let refuses = flag();
    let fleet = fleet(&redis, refusing(refuses, "4"), "{}");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    assert_eq!([one, other].map(|gateway| status_of(gateway, "other")), [200, 200]);
    let start = Instant::now();
    assert_eq!(status_of(one, "acme"), 429);
    refuses.store(false, Relaxed);
    reaches(other);
    let asked = fleet.upstream.count();
    let rejected = other.client().ask(&ask_as("other"));
    assert_eq!((rejected.status, fleet.upstream.count()), (429, asked), "the upstream is not asked");
    assert_eq!(rejected.json()["detail"], "upstream app takes no requests now");
    let left = rejected.retry_after_ms();
    assert!((1_000..=4_100).contains(&left), "{left}");
    other.wait_stderr("the upstream stops the requests of another gateway and is obeyed");
    eventually("the end of the stop", || status_of(other, "other") == 200);
    assert!(start.elapsed() >= ms(4_000), "{:?}", start.elapsed());
    let stops = |gateway: &Gateway| gateway.metric("sluicegate_upstream_stops_total", &["upstream=\"app\""]);
    assert_eq!([one, other].map(stops), [1.0, 1.0]);
    assert!(redis.keys().iter().any(|(key, _)| key.starts_with(b"t:stops:{operator}")));
}

#[test]
fn a_stop_of_one_key_holds_on_the_other_gateway_for_that_key() {
    let redis = Redis::start();
    let fleet = fleet(&redis, refusing(flag(), "20"), "{ key: account, at_most: 10s }");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    assert_eq!(status_of(one, "acme"), 429);
    reaches(other);
    let asked = fleet.upstream.count();
    let rejected = other.client().ask(&ask_as("acme"));
    assert_eq!((rejected.status, fleet.upstream.count()), (429, asked));
    assert!(rejected.retry_after_ms() <= 10_000);
    assert_eq!([one, other].map(|gateway| status_of(gateway, "other")), [200, 200]);
}

/// Without Redis each gateway obeys what it heard itself; the others learn a stop that still lasts when Redis is back.
#[test]
fn a_stop_during_an_outage_is_told_after_it() {
    let redis = Redis::start();
    let refuses = flag();
    let fleet = fleet(&redis, refusing(refuses, "20"), "{}");
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    redis.pause();
    fleet.wait_degraded();
    assert_eq!(status_of(one, "acme"), 429);
    refuses.store(false, Relaxed);
    assert_eq!(status_of(one, "other"), 429, "it obeys");
    thread::sleep(ms(500));
    assert_eq!(status_of(other, "other"), 200, "it heard nothing");
    redis.resume();
    eventually("the stop at the other gateway", || is_stopped(other));
    assert_eq!(status_of(other, "other"), 429);
}

/// A gateway that obeys only after a reload learns the stops that last.
#[test]
fn a_gateway_that_obeys_later_learns_the_stop() {
    let redis = Redis::start();
    let fleet = fleet(&redis, refusing(flag(), "30"), "{}");
    assert_eq!(status_of(&fleet.gateways[0], "acme"), 429);
    let late = Gateway::start(&yaml(&redis, &fleet.upstream.url(), "none"));
    assert_eq!(status_of(&late, "other"), 200);
    late.change(&yaml(&redis, &fleet.upstream.url(), "{}"));
    reaches(&late);
    assert_eq!(status_of(&late, "other"), 429);
}
