//! Nothing leaks, whichever side breaks off in the middle of a decision.

use std::thread;
use std::time::Instant;

use crate::support::fleet::{counting_on, with_status};
use crate::support::*;

/// Two gateways that reach Redis through the proxy, with a window and slots on every location.
fn through(proxy: &Proxy, on_failure: &str) -> Fleet {
    let head = counting_on(&proxy.url(), "100ms");
    let upstream = Upstream::new(|seen| {
        let reply = Reply::text("ok");
        if seen.target == "/slots" { reply.after(ms(150)) } else { reply }
    });
    let fleet = Fleet::before(upstream, 2, |_, upstream| {
        format!(
            "{head}limits:\n  \
               window: {{ key: global, algorithm: fixed_window, rate: 400/1h, on_failure: {on_failure} }}\n  \
               slots: {{ key: global, algorithm: concurrency, max_concurrent: 4, on_failure: {on_failure} }}\n\
             locations:\n  - {{ path: /both, upstream: \"{upstream}\", limits: [window, slots] }}\n  \
               - {{ path: /window, upstream: \"{upstream}\", limits: window }}\n  \
               - {{ path: /slots, upstream: \"{upstream}\", limits: slots }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet
}

/// Checks that every gateway can get all slots, by requests that keep them for a while.
#[track_caller]
fn assert_all_slots_free(fleet: &Fleet) {
    let start = Instant::now();
    for gateway in &fleet.gateways {
        let all = || statuses(&volley(gateway.addr(), (0..4).map(|_| get("/slots")))) == [200; 4];
        // Slots of a lost report come back with the next one, or when it expires.
        while !all() {
            assert!(start.elapsed() < ms(15_000), "slots are missing");
            thread::sleep(ms(100));
        }
    }
}

/// Clients that hang up during a question to Redis leave no slot behind, and no more pass than the window allows.
#[test]
fn clients_that_hang_up_during_the_decision_leave_nothing_behind() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let fleet = through(&proxy, "reject");
    proxy.delay(ms(10));
    for n in 0..100 {
        let mut clients: Vec<_> = fleet.gateways.iter().map(Gateway::client).collect();
        clients.iter_mut().for_each(|client| client.send(get("/both").bytes()));
        thread::sleep(ms(n % 30));
        for client in clients {
            if n % 2 == 0 { client.reset() } else { drop(client) }
        }
    }
    proxy.delay(ms(0));
    assert_all_slots_free(&fleet);
    let before = fleet.upstream.count();
    let fired = fleet.fire(4, Until::Count(100), |_, _, _| get("/window"));
    let slots = fleet.upstream.requests()[..before].iter().filter(|seen| seen.target == "/slots").count();
    // The charge of a client that left before forwarding may be lost, but never the other way round.
    let passed = with_status(&fired, 200);
    assert!(before - slots + passed <= 400, "{} + {passed} passed", before - slots);
    assert!(passed >= 200, "only {passed} were left");
}

/// Lost answers were decisions that counted: nothing passes twice because of them, and no slot stays behind.
#[test]
fn lost_answers_admit_no_request_and_hold_nothing() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let fleet = through(&proxy, "reject");
    let fired = thread::scope(|scope| {
        let clients = scope.spawn(|| {
            fleet.fire(3, Until::Span(ms(2500)), |_, _, _| {
                thread::sleep(ms(10));
                get("/both")
            })
        });
        for _ in 0..2 {
            thread::sleep(ms(300));
            proxy.drop_replies();
            fleet.wait_degraded();
            proxy.forward();
            fleet.wait_enforcing();
        }
        clients.join().expect("the clients finish")
    });
    assert!(with_status(&fired, 503) > 0 && with_status(&fired, 0) == 0);
    assert_eq!(with_status(&fired, 200), fleet.upstream.count());
    assert!((1..=400).contains(&fleet.upstream.count()), "{} passed", fleet.upstream.count());
    assert_all_slots_free(&fleet);
}

/// A gateway that is told to stop gives its slots back at once and no longer counts as live.
#[test]
fn a_gateway_that_stops_says_goodbye() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let mut fleet = through(&proxy, "local");
    fleet.wait_nodes(2);
    let mut leaver = fleet.gateways.remove(0);
    let before = fleet.upstream.count();
    let mut last: Vec<_> = (0..4).map(|_| leaver.client()).collect();
    last.iter_mut().for_each(|client| client.send(get("/slots").bytes()));
    fleet.upstream.wait_for(before + 1);
    leaver.term();
    assert_eq!(leaver.wait_exit(), 0);
    let left = Instant::now();
    assert_all_slots_free(&fleet);
    // Without a report they would be kept for ten seconds.
    assert!(left.elapsed() < ms(6000), "free after {:?}", left.elapsed());
    fleet.wait_nodes(1);
}
