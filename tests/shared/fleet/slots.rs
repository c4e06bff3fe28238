//! Slots, turns and bans that several gateways share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{counting_on, with_status};
use crate::support::*;

/// How long a gateway that died keeps its slots.
const TTL: Duration = Duration::from_secs(10);

fn sharing(count: usize, redis: &Redis, upstream: Upstream, limit: &str) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::before(upstream, count, |_, upstream| {
        format!(
            "{head}locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: {{ key: global, {limit} }} }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet
}

/// An upstream that works on each request for `work`, longer on `/long`, and records the most short ones that were
/// ever in flight there.
fn working(work: Duration) -> (Upstream, Arc<AtomicUsize>) {
    let most = Arc::new(AtomicUsize::new(0));
    let (now, top) = (AtomicUsize::new(0), most.clone());
    let upstream = Upstream::new(move |seen| {
        if seen.target == "/long" {
            return Reply::text("ok").after(ms(150));
        }
        top.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(work);
        now.fetch_sub(1, Ordering::SeqCst);
        Reply::text("ok")
    });
    (upstream, most)
}

/// Three gateways together never have more in flight than one may, use all slots, and hold nothing afterwards.
#[test]
fn slots_of_three_gateways_are_one_number() {
    undisturbed(|| {
        let redis = Redis::start();
        let (upstream, most) = working(ms(10));
        let fleet = sharing(3, &redis, upstream, "algorithm: concurrency, max_concurrent: 5");
        let fired = fleet.fire(6, Until::Span(ms(2000)), |_, _, _| get("/"));
        if fleet.metric("sluicegate_degraded_decisions_total", &[]) > 0.0 {
            return None;
        }
        assert_eq!(with_status(&fired, 200) + with_status(&fired, 503), fired.len());
        let most = most.load(Ordering::SeqCst);
        assert!((2..=5).contains(&most), "{most} in flight at once");
        // Each gateway alone gets all slots once the others are done.
        for index in 0..3 {
            let addr = fleet.gateways[index].addr();
            eventually("five free slots", || {
                // Freed slots are reported to the store a moment later.
                thread::sleep(ms(100));
                statuses(&volley(addr, (0..5).map(|_| get("/long")))) == [200; 5]
            });
        }
        Some(())
    });
}

/// A gateway that dies holding all slots: they stay taken while it lives, however long a request takes, and come back
/// when its report has expired.
#[test]
fn slots_of_a_dead_gateway_come_back() {
    const WORK: Duration = Duration::from_secs(13);
    let redis = Redis::start();
    let upstream = Upstream::new(|seen| {
        let reply = Reply::text("ok");
        if seen.target == "/long" { reply.after(2 * WORK) } else { reply }
    });
    let limit = "algorithm: concurrency, max_concurrent: 3, on_failure: reject";
    let mut fleet = sharing(2, &redis, upstream, limit);
    let mut holders = Vec::new();
    eventually("three requests that hold a slot", || {
        let mut holder = fleet.gateways[0].client();
        holder.send(get("/long").bytes());
        // A request that is rejected because this machine is too slow for Redis gets a status that says so.
        if holder.response_within(ms(500)).is_err() {
            holders.push(holder);
        }
        fleet.upstream.count() == 3
    });
    let start = Instant::now();
    while start.elapsed() < WORK {
        fleet.gateways[1].get("/").expect(503);
        thread::sleep(ms(200));
    }
    drop(fleet.gateways.remove(0));
    let died = Instant::now();
    while fleet.gateways[0].get("/").status != 200 {
        assert!(died.elapsed() < TTL + ms(5000), "no slot came back");
        thread::sleep(ms(100));
    }
    eventually("all three slots", || {
        let shots = volley(fleet.gateways[0].addr(), (0..3).map(|_| get("/")));
        statuses(&shots) == [200; 3]
    });
    drop(holders);
}

/// A gateway that ends with requests in flight gives their slots back before it exits.
#[test]
fn slots_of_a_gateway_that_was_told_to_end_are_free_at_once() {
    undisturbed(|| {
        let redis = Redis::start();
        let head = counting_on(&redis.url(), "200ms")
            .replace("server: {", "server: { timeouts: { shutdown: 300ms },");
        let mut fleet = Fleet::before(Upstream::new(|_| Reply::silence()), 1, |_, upstream| {
            format!(
                "{head}locations:\n  - {{ path: /, upstream: \"{upstream}\", \
                   limits: {{ key: global, algorithm: concurrency, max_concurrent: 3 }} }}\n"
            )
        });
        fleet.wait_enforcing();
        let holders: Vec<_> = (0..3)
            .map(|_| {
                let mut holder = fleet.gateways[0].client();
                holder.send(get("/").bytes());
                holder
            })
            .collect();
        fleet.upstream.wait_for(3);
        let taken =
            || redis.keys().iter().filter(|(name, _)| name.windows(3).any(|part| part == b":C:")).count();
        if fleet.metric("sluicegate_degraded_decisions_total", &[]) > 0.0 {
            return None;
        }
        assert_eq!(taken(), 1);
        fleet.gateways[0].term();
        assert_eq!(fleet.gateways[0].wait_exit(), 0);
        drop(holders);
        (taken() == 0).then_some(())
    });
}

/// A waiter of a shared queue hangs up: the waiters behind it at its gateway move up, and no departure is skipped.
#[test]
fn when_a_waiter_of_a_shared_queue_leaves_the_next_one_takes_its_turn() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = sharing(2, &redis, Upstream::ok(), "algorithm: leaky_bucket, rate: 5/s, queue: 10");
        let gateway = &fleet.gateways[0];
        let noise = Noise::listen();
        let mut clients: Vec<_> = (0..5).map(|_| gateway.client()).collect();
        let start = Instant::now();
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(get(&format!("/{n}")).bytes());
            let judged = || gateway.metric("sluicegate_decisions_total", &[]);
            eventually("a decision", || judged() == (n + 1) as f64);
        }
        drop(clients.remove(2));
        if start.elapsed() > ms(350) {
            return None;
        }
        let seen = fleet.upstream.wait_for(4);
        if fleet.metric("sluicegate_degraded_decisions_total", &[]) > 0.0 {
            return None;
        }
        assert_eq!(fleet.upstream.targets(), ["/0", "/1", "/3", "/4"]);
        let times: Vec<_> = seen.iter().map(|seen| seen.at - start).collect();
        noise.assert_schedule(&times, &[0, 200, 400, 600]);
        Some(())
    });
}

/// A client banned at one gateway is turned away at all of them within a second, without a call to Redis, until the
/// ban is over.
#[test]
fn a_ban_is_known_to_all_gateways() {
    let redis = Redis::start();
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::start(3, |_, _| {
        format!(
            "{head}bans: {{ after: 3/1h, for: 4s }}\n\
             locations:\n  - {{ path: /login, respond: {{ body: ok }}, limits: {{ rate: 1/1h }} }}\n  \
               - {{ path: /, respond: {{ body: ok }} }}\n"
        )
    });
    fleet.wait_enforcing();
    let from = |index: usize, ip: &str, target: &str| {
        Client::connect_from(ip, fleet.gateways[index].addr()).ask(&get(target)).status
    };
    let strikes: Vec<_> = (0..4).map(|_| from(0, "127.0.0.5", "/login")).collect();
    assert_eq!(strikes, [200, 429, 429, 429]);
    let struck = Instant::now();
    for index in 0..3 {
        eventually("a ban", || from(index, "127.0.0.5", "/") == 429);
    }
    assert!(struck.elapsed() < ms(1000 + 1000), "all know after {:?}", struck.elapsed());
    let calls = redis.judgements();
    for index in 0..3 {
        for _ in 0..20 {
            assert_eq!([from(index, "127.0.0.5", "/login"), from(index, "127.0.0.5", "/")], [429, 429]);
        }
        assert_eq!(from(index, "127.0.0.6", "/"), 200);
    }
    // Each gateway keeps learning new bans.
    let calls_made = redis.judgements() - calls;
    assert!(calls_made <= 12, "{calls_made} calls for 120 requests of a banned client");
    assert!(struck.elapsed() < ms(3500), "this machine was too slow to tell");
    for index in 0..3 {
        eventually("the end of the ban", || from(index, "127.0.0.5", "/") == 200);
    }
    assert!((ms(3900)..ms(8000)).contains(&struck.elapsed()), "it ended after {:?}", struck.elapsed());
}
