//! Places that use a limit with other numbers, on gateways that share a Redis: one counter, each place's burst.

use std::thread;
use std::time::Duration;

use crate::support::fleet::{counting_on, with_status};
use crate::support::*;

/// The file of a gateway: `/narrow` lets four pass at once, `/wide` twenty, `/` ten.
fn file(url: &str, timeout: &str, upstream: &str) -> String {
    let head = counting_on(url, timeout);
    format!(
        "{head}limits: {{ all: {{ key: global, rate: 10/h }} }}\nlocations:\n  \
           - {{ path: /narrow, upstream: \"{upstream}\", limits: {{ use: all, burst: 4 }} }}\n  \
           - {{ path: /wide, upstream: \"{upstream}\", limits: {{ use: all, burst: 20 }} }}\n  \
           - {{ path: /, upstream: \"{upstream}\", limits: all }}\n"
    )
}

#[track_caller]
fn start(count: usize, url: &str) -> Fleet {
    let fleet = Fleet::start(count, |_, upstream| file(url, "200ms", upstream));
    fleet.wait_enforcing();
    fleet.wait_nodes(count);
    fleet
}

fn passed(gateway: &Gateway, path: &str, times: usize) -> usize {
    let mut client = gateway.client();
    (0..times).filter(|_| client.ask(&get(path)).status == 200).count()
}

#[test]
fn two_gateways_share_one_counter_for_all_places() {
    let redis = Redis::start();
    let fleet = start(2, &redis.url());
    let [one, two] = [&fleet.gateways[0], &fleet.gateways[1]];
    assert_eq!((passed(one, "/narrow", 3), passed(two, "/narrow", 3)), (3, 1));
    assert_eq!((passed(one, "/", 3), passed(two, "/", 9)), (3, 3));
    // A rejection that one place remembers is none of another.
    assert_eq!((passed(one, "/narrow", 3), passed(one, "/wide", 5), passed(two, "/wide", 9)), (0, 5, 5));
    // A gateway repeats a rejection for a second at most.
    thread::sleep(Duration::from_millis(1100));
    let rejected = two.get("/narrow").expect(429);
    assert_eq!(rejected.json()["detail"], "limit all: 10 requests per hour, burst 4");
    let seconds = rejected.retry_after_ms() / 1000;
    assert!((17 * 360 - 20..=17 * 360).contains(&seconds), "{seconds}");
    let fired = fleet.fire(4, Until::Count(5), |_, _, _| get("/wide"));
    assert_eq!(with_status(&fired, 200), 0);
    for gateway in &fleet.gateways {
        assert_eq!(gateway.metric("sluicegate_limit_numbers_differ", &["limit=\"all\""]), 0.0);
    }
    // An operator resets the key for all places.
    let reset = Ask::new("POST", "/limits/all/keys/global/reset")
        .header("Content-Type", "application/json")
        .body(b"{ \"reason\": \"test\" }");
    one.ask_admin(&reset).expect(200);
    eventually("the other gateway forgets its rejections", || two.get("/narrow").status == 200);
    assert_eq!(passed(one, "/narrow", 9), 3);
}

/// What places admitted in an outage is charged to Redis afterwards, beyond the burst of the limit itself.
#[test]
fn an_outage_costs_no_more_than_the_widest_burst() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let fleet = start(1, &proxy.url());
    let gateway = &fleet.gateways[0];
    assert_eq!((passed(gateway, "/wide", 6), passed(gateway, "/narrow", 1)), (6, 0));
    proxy.refuse();
    fleet.wait_degraded();
    // What was seen at one place counts at the others.
    assert_eq!(passed(gateway, "/narrow", 3), 0);
    assert_eq!((passed(gateway, "/", 9), passed(gateway, "/wide", 30)), (4, 10));
    proxy.forward();
    fleet.wait_enforcing();
    eventually("the debts are charged", || gateway.metric("sluicegate_redis_debt_keys", &[]) == 0.0);
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(
        (passed(gateway, "/wide", 5), passed(gateway, "/", 3), passed(gateway, "/narrow", 3)),
        (0, 0, 0)
    );
}

/// A waiter that leaves gives its departure to the next, whichever place it came to.
#[test]
fn waiters_of_all_places_share_the_departures() {
    let redis = Redis::start();
    let head = |upstream: &str| {
        format!(
            "{}limits: {{ line: {{ key: global, algorithm: leaky_bucket, rate: 2/s, queue: 1 }} }}\nlocations:\n  \
               - {{ path: /long, upstream: \"{upstream}\", limits: {{ use: line, queue: 4 }} }}\n  \
               - {{ path: /, upstream: \"{upstream}\", limits: line }}\n",
            counting_on(&redis.url(), "200ms")
        )
    };
    let fleet = Fleet::start(1, |_, upstream| head(upstream));
    fleet.wait_enforcing();
    let gateway = &fleet.gateways[0];
    let waiting = |count: u32| {
        let depth = || gateway.metric("sluicegate_queue_depth", &["limit=\"line\""]);
        eventually(&format!("{count} that wait"), || depth() == f64::from(count));
    };
    gateway.get("/first").expect(200);
    let mut clients: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for (place, client) in clients.iter_mut().enumerate() {
        client.send(get(&format!("/long?{place}")).bytes());
        waiting(place as u32 + 1);
    }
    gateway.get("/").expect(429);
    drop(clients.remove(0));
    for client in &mut clients {
        client.response().expect(200);
    }
    assert_eq!(fleet.upstream.targets(), ["/first", "/long?1", "/long?2"]);
}

/// Slots in the store: the requests in flight of all gateways and places, compared with the number of each place.
#[test]
fn places_of_a_concurrency_limit_share_its_slots_in_the_store() {
    let (redis, gate) = (Redis::start(), Gate::default());
    let upstream = Upstream::held_by(&gate);
    let fleet = Fleet::start(2, |_, _| {
        let (head, to) = (counting_on(&redis.url(), "200ms"), upstream.url());
        format!(
            "{head}limits: {{ all: {{ key: global, algorithm: concurrency, max_concurrent: 3 }} }}\nlocations:\n  \
               - {{ path: /narrow, upstream: \"{to}\", limits: {{ use: all, max_concurrent: 1 }} }}\n  \
               - {{ path: /wide, upstream: \"{to}\", limits: {{ use: all, max_concurrent: 4 }} }}\n  \
               - {{ path: /, upstream: \"{to}\", limits: all }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(2);
    let mut held = Vec::new();
    // Requests in flight go to a gateway and a place that has a slot for them; probes only to places that have none.
    for (gateway, path, full) in [
        (0, "/narrow", &["/narrow"][..]),
        (1, "/", &["/narrow"]),
        (0, "/", &["/narrow", "/"]),
        (1, "/wide", &["/narrow", "/", "/wide"]),
    ] {
        let mut client = fleet.gateways[gateway].client();
        client.send(get(path).bytes());
        held.push(client);
        upstream.wait_for(held.len());
        for gateway in &fleet.gateways {
            full.iter().for_each(|path| drop(gateway.get(path).expect(503)));
        }
    }
    gate.open();
    held.iter_mut().for_each(|client| drop(client.response().expect(200)));
    for gateway in &fleet.gateways {
        eventually("a slot at the narrowest place", || gateway.get("/narrow").status == 200);
    }
}
