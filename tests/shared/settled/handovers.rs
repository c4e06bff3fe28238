//! Charges that are settled late: after an outage of Redis, by an old process after an upgrade, or both.

use std::thread;

use rustix::process::Signal;

use crate::support::fleet::counting_on;
use crate::support::*;

const UNITS: u64 = 1_000;
/// Every algorithm that settles charges.
const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window", "sliding_log", "token_bucket"];

/// Gateways that charge what `X-Cost` says, the last part of the target; targets with `held` wait for the gate.
fn charging(count: usize, url: &str, reserve: u64, gate: &Gate) -> Fleet {
    let held = gate.clone();
    let upstream = Upstream::new(move |seen| {
        let cost = seen.target.rsplit('/').next().expect("a cost").to_owned();
        let reply = Reply::with(200, &[("X-Cost", &cost)], "ok");
        if seen.target.contains("held") { reply.held_by(&held) } else { reply }
    });
    let head = counting_on(url, "100ms");
    let limit = |name: &&str| {
        let burst = if *name == "token_bucket" { format!(", burst: {UNITS}") } else { String::new() };
        format!(
            "  {name}: {{ key: global, algorithm: {name}, rate: {UNITS}/30d{burst}, \
               charge: {{ units: \"header:X-Cost\", reserve: {reserve} }} }}\n"
        )
    };
    let location = |name: &&str| format!("  - {{ path: /{name}, upstream: all, limits: {name} }}\n");
    let limits: String = ALGORITHMS.iter().map(limit).collect();
    let locations: String = ALGORITHMS.iter().map(location).collect();
    let fleet = Fleet::before(upstream, count, |_, upstream| {
        format!(
            "{head}limits:\n{limits}upstreams: {{ all: {{ servers: [\"{upstream}\"] }} }}\nlocations:\n{locations}"
        )
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(count);
    fleet
}

/// The units that are left, as a gateway's Redis counts them.
fn left(gateway: &Gateway, name: &str) -> u64 {
    let explained = serde_json::json!({ "method": "GET", "url": format!("/{name}") }).to_string();
    let asked = post("/explain", explained.as_bytes()).header("Accept", "application/json");
    let explained = gateway.ask_admin(&asked).expect(200).json();
    explained["limits"][0]["counters"][0]["remaining"].as_u64().expect("a number")
}

/// Waits until the gateway says that so many units were used of each limit, and sees that it stays so.
#[track_caller]
fn wait_used(gateway: &Gateway, units: u64) {
    for pause in [0, 500] {
        thread::sleep(ms(pause));
        for name in ALGORITHMS {
            let mut last = 0;
            eventually(&format!("{units} units of {name}"), || {
                let found = UNITS - left(gateway, name);
                if found != last {
                    println!("{name}: {found} of {units}");
                }
                last = found;
                found == units
            });
        }
    }
}

/// Requests of each limit and cost whose responses wait for the gate.
fn ask_held(gateway: &Gateway, costs: &[u64]) -> Vec<Client> {
    let targets = ALGORITHMS.iter().flat_map(|name| costs.iter().map(move |cost| (name, cost)));
    targets
        .map(|(name, cost)| {
            let mut client = gateway.client();
            client.send(get(&format!("/{name}/held/{cost}")).bytes());
            client
        })
        .collect()
}

fn upgrade(gateway: &Gateway) -> Successor {
    let old = gateway.process();
    gateway.signal(Signal::USR2);
    eventually("another process", || gateway.process() != old);
    Successor(gateway.process() as i32)
}

fn finish(gate: &Gate, clients: &mut [Client]) {
    gate.open();
    clients.iter_mut().for_each(|client| drop(client.response().expect(200)));
}

/// A request that reserves more than the gateway's share is owed by what its response used.
#[test]
fn a_reservation_beyond_the_share_is_settled_in_an_outage() {
    at_once([20, 550, 700], |cost| {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.addr());
        let fleet = charging(2, &proxy.url(), 600, &Gate::default());
        proxy.refuse();
        fleet.wait_degraded();
        for name in ALGORITHMS {
            fleet.gateways[0].get(&format!("/{name}/{cost}")).expect(200);
        }
        proxy.forward();
        fleet.wait_enforcing();
        wait_used(&fleet.gateways[0], cost);
    });
}

/// The old process of an upgrade ends requests that the share admitted, during the outage and after it.
#[test]
fn an_old_process_settles_debts() {
    at_once([true, false], |ends_in_outage| {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.addr());
        let gate = Gate::default();
        let fleet = charging(1, &proxy.url(), 100, &gate);
        let gateway = &fleet.gateways[0];
        proxy.refuse();
        fleet.wait_degraded();
        for name in ALGORITHMS {
            gateway.get(&format!("/{name}/7")).expect(200);
        }
        let mut clients = ask_held(gateway, &[0, 20, 250]);
        fleet.upstream.wait_for(16);
        let _successor = upgrade(gateway);
        if ends_in_outage {
            finish(&gate, &mut clients);
            thread::sleep(ms(500));
        }
        proxy.forward();
        fleet.wait_enforcing();
        thread::sleep(ms(500));
        finish(&gate, &mut clients[if ends_in_outage { 12 } else { 0 }..]);
        wait_used(gateway, 277);
    });
}

/// The old process ends requests that Redis admitted, while Redis is away.
#[test]
fn an_old_process_settles_reservations_after_an_outage() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let gate = Gate::default();
    let fleet = charging(1, &proxy.url(), 100, &gate);
    let gateway = &fleet.gateways[0];
    let mut clients = ask_held(gateway, &[0, 20, 250]);
    fleet.upstream.wait_for(12);
    let _successor = upgrade(gateway);
    proxy.refuse();
    fleet.wait_degraded();
    finish(&gate, &mut clients);
    thread::sleep(ms(1_000));
    proxy.forward();
    fleet.wait_enforcing();
    wait_used(gateway, 270);
}
