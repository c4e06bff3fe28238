//! Requests that wait for slots in Redis are served again when it is back, whatever happened to it meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{counting_on, is_degraded};
use crate::support::*;

/// Two gateways in front of `upstream` that share two slots, on the Redis behind `url`.
fn sharing(url: &str, upstream: Upstream) -> Fleet {
    let head = counting_on(url, "100ms");
    let fleet = Fleet::before(upstream, 2, |_, upstream| {
        format!(
            "{head}limits: {{ slots: {{ algorithm: concurrency, queue: 10, max_wait: 60s, max_concurrent: 2 }} }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: slots }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(2);
    fleet
}

/// A client whose request for `target` holds a slot until the gate of the upstream opens.
fn hold(fleet: &Fleet, gateway: usize) -> Client {
    let before = fleet.upstream.count();
    let mut client = fleet.gateways[gateway].client();
    client.send(get("/held").bytes());
    fleet.upstream.wait_for(before + 1);
    client
}

fn wait(fleet: &Fleet, gateway: usize, nth: u32) -> Client {
    let mut client = fleet.gateways[gateway].client();
    client.send(get("/waits").bytes());
    fleet.gateways[gateway].wait_queued(nth);
    client
}

/// How an outage begins and ends.
#[derive(Debug, Clone, Copy)]
enum Outage {
    Killed,
    Paused,
    Refused,
    Held,
    Mute,
}

fn outlive(outage: Outage, frees_during: bool, joins_during: bool) {
    let mut redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let gate = Gate::default();
    let fleet = sharing(&proxy.url(), Upstream::holding("/held", &gate));
    let mut elsewhere = [hold(&fleet, 1), hold(&fleet, 1)];
    let mut waiters = vec![wait(&fleet, 0, 1), wait(&fleet, 0, 2)];
    match outage {
        Outage::Killed => redis.kill(),
        Outage::Paused => redis.pause(),
        Outage::Refused => proxy.refuse(),
        Outage::Held => proxy.stop_forwarding(),
        Outage::Mute => proxy.drop_replies(),
    }
    fleet.wait_degraded();
    thread::sleep(ms(700));
    if joins_during {
        let mut client = fleet.gateways[0].client();
        client.send(get("/waits").bytes());
        waiters.push(client);
        thread::sleep(ms(300));
    }
    if frees_during {
        gate.open();
    }
    thread::sleep(ms(300));
    match outage {
        Outage::Killed => redis.restart(),
        Outage::Paused => redis.resume(),
        _ => proxy.forward(),
    }
    fleet.wait_enforcing();
    thread::sleep(ms(300));
    gate.open();
    elsewhere.iter_mut().for_each(|holder| drop(holder.response().expect(200)));
    let freed = Instant::now();
    for waiter in &mut waiters {
        let served = waiter.response_within(Duration::from_secs(5));
        assert!(
            served.is_ok(),
            "{outage:?}, {frees_during}, {joins_during}: {served:?} {:?}",
            freed.elapsed()
        );
    }
    fleet.gateways[0].wait_queued(0);
}

#[test]
fn waiters_are_served_after_redis_was_killed() {
    outlive(Outage::Killed, false, false);
    outlive(Outage::Killed, true, true);
}

#[test]
fn waiters_are_served_after_redis_was_frozen() {
    outlive(Outage::Paused, false, true);
    outlive(Outage::Held, true, false);
}

#[test]
fn waiters_are_served_after_connections_were_refused() {
    outlive(Outage::Refused, false, true);
    outlive(Outage::Refused, true, false);
}

#[test]
fn waiters_are_served_after_replies_were_lost() {
    outlive(Outage::Mute, false, false);
    outlive(Outage::Mute, true, true);
}

/// While Redis is away, requests that wait cost few calls, though their gateway holds more than its share.
#[test]
fn waiters_do_not_ask_a_dead_store_without_pause() {
    let mut redis = Redis::start();
    let (first, others) = (Gate::default(), Gate::default());
    let held_by = [first.clone(), others.clone()];
    let upstream = Upstream::new(move |seen| {
        Reply::text("held").held_by(&held_by[usize::from(seen.target != "/first")])
    });
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::before(upstream, 2, |_, upstream| {
        format!(
            "{head}limits:\n  slots: {{ key: global, algorithm: concurrency, max_concurrent: 4, queue: 100 }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: slots }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(2);
    let mut clients: Vec<Client> = (0..7).map(|_| fleet.gateways[0].client()).collect();
    for (place, client) in clients.iter_mut().enumerate() {
        client.send(get(if place == 0 { "/first" } else { "/other" }).bytes());
        if place < 4 {
            fleet.upstream.wait_for(place + 1);
        }
    }
    fleet.gateways[0].wait_queued(3);
    redis.kill();
    eventually("a gateway without Redis", || is_degraded(&fleet.gateways[0]));
    // One of the slots above its share is given back meanwhile.
    first.open();
    clients[0].response().expect(200);
    thread::sleep(ms(300));
    let failed = || fleet.gateways[0].metric("sluicegate_redis_calls_total", &[]);
    let (before, start) = (failed(), Instant::now());
    thread::sleep(ms(2_000));
    let rate = (failed() - before) / start.elapsed().as_secs_f64();
    println!("{rate:.0} calls a second");
    assert!(rate < 150.0, "{rate:.0} calls a second");
    others.open();
}
