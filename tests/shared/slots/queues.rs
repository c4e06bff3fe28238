//! Requests wait in each gateway for concurrency slots that all of them share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{DEGRADED, counting_on, with_status};
use crate::support::*;

/// Gateways in front of `upstream` that share a limit of these fields by `x-key`.
fn sharing(count: usize, redis: &Redis, upstream: Upstream, limit: &str) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::before(upstream, count, |_, upstream| {
        format!(
            "{head}limits: {{ slots: {{ key: \"header:x-key\", algorithm: concurrency, {limit} }} }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: slots }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(count);
    fleet
}

fn as_key(target: &str, key: &str) -> Ask {
    get(target).header("X-Key", key)
}

/// A client whose request for `target` holds a slot until the gate of the upstream opens.
fn hold(fleet: &Fleet, gateway: usize, target: &str, key: &str) -> Client {
    let before = fleet.upstream.count();
    let mut client = fleet.gateways[gateway].client();
    client.send(as_key(target, key).bytes());
    fleet.upstream.wait_for(before + 1);
    client
}

/// A client whose request waits as the `nth` one of its gateway.
fn wait(fleet: &Fleet, gateway: usize, nth: u32, target: &str, key: &str) -> Client {
    let mut client = fleet.gateways[gateway].client();
    client.send(as_key(target, key).bytes());
    fleet.gateways[gateway].wait_queued(nth);
    client
}

/// A slot that one gateway frees goes to a waiter of another within about 150 ms.
#[test]
fn a_slot_that_is_freed_elsewhere_admits_the_waiter() {
    let redis = Redis::start();
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let gate = Gate::default();
        let upstream = Upstream::holding("/held", &gate);
        let fleet = sharing(2, &redis, upstream, "max_concurrent: 1, queue: 10, max_wait: 20s");
        let mut holder = hold(&fleet, 1, "/held", "a");
        let mut waiter = wait(&fleet, 0, 1, "/waits", "a");
        thread::sleep(ms(300));
        assert_eq!(fleet.upstream.count(), 1, "it waits");
        gate.open();
        holder.response().expect(200);
        let freed = Instant::now();
        waiter.response().expect(200);
        fastest = fastest.min(freed.elapsed());
        fleet.gateways[0].wait_queued(0);
        let log = fleet.gateways[0].wait_log(1);
        assert_eq!((&log[0]["verdict"], &log[0]["limit"]), (&"wait".into(), &"slots".into()));
        if fastest < ms(150) {
            return;
        }
    }
    panic!("the fastest of five took {fastest:?}");
}

/// Waiters of one gateway go in the order of their arrival; one that hangs up costs the others nothing.
#[test]
fn waiters_of_a_gateway_keep_their_order() {
    let redis = Redis::start();
    let gate = Gate::default();
    let upstream = Upstream::holding("/held", &gate);
    let fleet = sharing(2, &redis, upstream, "max_concurrent: 1, queue: 10, max_wait: 20s");
    let mut holder = hold(&fleet, 1, "/held", "a");
    let mut waiters: Vec<Client> =
        (0..6).map(|nth| wait(&fleet, 0, nth + 1, &format!("/{nth}"), "a")).collect();
    // The first and one in the middle leave.
    drop(waiters.remove(3));
    drop(waiters.remove(0));
    fleet.gateways[0].wait_queued(4);
    let query = br#"{ "method": "GET", "url": "/", "headers": ["X-Key: a"] }"#;
    let explained =
        fleet.gateways[0].ask_admin(&post("/explain", query).header("Accept", "application/json"));
    let verdict = explained.expect(200).json()["verdict"].clone();
    assert_eq!((&verdict["outcome"], &verdict["position"]), (&"wait".into(), &5.into()), "{verdict}");
    gate.open();
    holder.response().expect(200);
    for waiter in &mut waiters {
        waiter.response().expect(200);
    }
    assert_eq!(fleet.upstream.targets(), ["/held", "/1", "/2", "/4", "/5"]);
    fleet.gateways[0].wait_queued(0);
    eventually("no slot that is held", || {
        !redis.keys().iter().any(|(key, _)| key.windows(3).any(|part| part == b":C:"))
    });
}

/// A slot that is freed in the gateway itself goes to its next waiter without a poll.
#[test]
fn a_slot_that_is_freed_here_admits_at_once() {
    let redis = Redis::start();
    let upstream = Upstream::new(|_| Reply::text("ok").after(ms(5)));
    let fleet = sharing(1, &redis, upstream, "max_concurrent: 1, queue: 100");
    let start = Instant::now();
    let answers = volley(fleet.gateways[0].addr(), (0..40).map(|_| as_key("/", "a")));
    assert_eq!(statuses(&answers), [200; 40]);
    // A poll for each of them would take 2 s.
    assert!(start.elapsed() < ms(1_500), "{:?}", start.elapsed());
}

/// A request beyond the queue is rejected at once, and one that waited for `max_wait` then. Neither is charged.
#[test]
fn a_full_queue_and_a_long_wait_reject() {
    let redis = Redis::start();
    let gate = Gate::default();
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::before(Upstream::holding("/held", &gate), 2, |_, upstream| {
        format!(
            "{head}limits:\n  slots: {{ algorithm: concurrency, max_concurrent: 1, queue: 1, max_wait: 1s }}\n  \
               few: {{ key: global, algorithm: fixed_window, rate: 3/1h }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: [few, slots] }}\n"
        )
    });
    fleet.wait_enforcing();
    let mut holder = hold(&fleet, 1, "/held", "a");
    let start = Instant::now();
    let mut waiter = wait(&fleet, 0, 1, "/waits", "a");
    for _ in 0..5 {
        let rejected = fleet.gateways[0].get("/late").expect(503);
        assert!(rejected.header("retry-after").is_some());
    }
    assert!(start.elapsed() < ms(900), "{:?}", start.elapsed());
    waiter.response().expect(503);
    assert!(start.elapsed() >= ms(950), "{:?}", start.elapsed());
    gate.open();
    holder.response().expect(200);
    // Three may pass in an hour; one has.
    eventually("the second", || fleet.gateways[0].get("/").status == 200);
    eventually("the third", || fleet.gateways[1].get("/").status == 200);
    fleet.gateways[0].get("/").expect(429);
}

/// While requests wait for long, one call per limit each 50 ms asks for their keys; otherwise there is none.
#[test]
fn the_store_is_asked_only_while_requests_wait() {
    let redis = Redis::start();
    let gate = Gate::default();
    let upstream = Upstream::holding("/held", &gate);
    let fleet = sharing(2, &redis, upstream, "max_concurrent: 1, queue: 10");
    let calls = || {
        let (start, before) = (Instant::now(), redis.judgements());
        thread::sleep(ms(1_000));
        (redis.judgements() - before, start.elapsed())
    };
    let keys = ["a", "b", "c", "d"];
    let mut holders: Vec<Client> = keys.iter().map(|key| hold(&fleet, 1, "/held", key)).collect();
    let (idle, _) = calls();
    let waiters: Vec<Client> =
        (1..).zip(keys).map(|(nth, key)| wait(&fleet, 0, nth, "/waits", key)).collect();
    thread::sleep(ms(1_800));
    let (waiting, span) = calls();
    // Slots are reported each second, which may fall into one span twice.
    let most = span.as_millis() as u64 / 50 + 3;
    let polls = waiting.saturating_sub(idle);
    assert!((5..=most).contains(&polls), "{idle} calls, and {waiting} while four keys wait, in {span:?}");
    drop(waiters);
    fleet.gateways[0].wait_queued(0);
    thread::sleep(ms(100));
    let (after, _) = calls();
    assert!(after <= idle + 3, "{idle} calls, and {after} afterwards");
    gate.open();
    holders.iter_mut().for_each(|holder| drop(holder.response().expect(200)));
}

/// All requests of three gateways are served, and never more than the limit at once.
#[test]
fn nobody_is_refused_and_the_limit_holds() {
    undisturbed(|| {
        let redis = Redis::start();
        let most = Arc::new(AtomicUsize::new(0));
        let (now, top) = (AtomicUsize::new(0), most.clone());
        let upstream = Upstream::new(move |_| {
            top.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(ms(10));
            now.fetch_sub(1, Ordering::SeqCst);
            Reply::text("ok")
        });
        let fleet = sharing(3, &redis, upstream, "max_concurrent: 5, queue: 100, max_wait: 20s");
        let fired = fleet.fire(10, Until::Span(ms(2_000)), |_, _, _| as_key("/", "a"));
        if fleet.metric(DEGRADED, &[]) > 0.0 {
            return None;
        }
        assert_eq!(with_status(&fired, 200), fired.len());
        let most = most.load(Ordering::SeqCst);
        assert!((2..=5).contains(&most), "{most} in flight at once");
        Some(())
    });
}

/// When Redis goes away while a request waits, its `on_failure` decides: `allow` admits it, `reject` refuses it, and
/// `local` lets it wait for the share of its gateway.
#[test]
fn an_outage_decides_about_those_who_wait() {
    at_once([("allow", Some(200)), ("reject", Some(503)), ("local", None)], |(on_failure, status)| {
        let redis = Redis::start();
        let gate = Gate::default();
        let fields = format!("max_concurrent: 2, queue: 10, max_wait: 30s, on_failure: {on_failure}");
        let fleet = sharing(2, &redis, Upstream::holding("/held", &gate), &fields);
        let _elsewhere = hold(&fleet, 1, "/held", "a");
        let mut here = hold(&fleet, 0, "/held", "a");
        let mut waiter = wait(&fleet, 0, 1, "/waits", "a");
        redis.pause();
        match status {
            Some(status) => drop(waiter.response().expect(status)),
            None => {
                fleet.wait_degraded();
                thread::sleep(ms(300));
                // The share of each gateway is one, which this one holds.
                assert_eq!(fleet.upstream.count(), 2, "it waits");
                gate.open();
                here.response().expect(200);
                waiter.response().expect(200);
            }
        }
        fleet.gateways[0].wait_queued(0);
        redis.resume();
        gate.open();
    });
}
