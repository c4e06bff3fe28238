//! Charges that responses settle in Redis: gateways keep one ledger, whatever ends a response, a gateway or Redis.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::fleet::{DEGRADED, counting_on, with_status};
use crate::support::*;

const UNITS: u64 = 1_000_000;
/// Every algorithm that settles charges.
const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window", "sliding_log", "token_bucket"];
/// Units that a request reserves.
const RESERVED: u64 = 100;

/// Gateways on one Redis that charge what `X-Cost` says, by each algorithm at a location of its name.
fn charging(count: usize, upstream: Upstream, url: &str) -> Fleet {
    let head = counting_on(url, "200ms");
    let limit = |name: &&str| {
        let burst = if *name == "token_bucket" { format!(", burst: {UNITS}") } else { String::new() };
        format!(
            "  {name}: {{ key: global, algorithm: {name}, rate: {UNITS}/30d{burst}, \
               charge: {{ units: \"header:X-Cost\", reserve: {RESERVED} }} }}\n"
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

/// An upstream that says the cost in the last part of the target.
fn costing() -> Upstream {
    Upstream::new(|seen| {
        let cost = seen.target.rsplit('/').next().expect("a cost");
        Reply::with(200, &[("X-Cost", cost)], "ok")
    })
}

/// Whether Redis answered all calls in time; on a busy machine it may not.
fn is_exact(fleet: &Fleet) -> Option<()> {
    (fleet.metric(DEGRADED, &[]) == 0.0).then_some(())
}

/// The units that are left, as a gateway's Redis counts them.
fn left(gateway: &Gateway, name: &str) -> u64 {
    let explained = serde_json::json!({ "method": "GET", "url": format!("/{name}") }).to_string();
    let asked = post("/explain", explained.as_bytes()).header("Accept", "application/json");
    let explained = gateway.ask_admin(&asked).expect(200).json();
    explained["limits"][0]["counters"][0]["remaining"].as_u64().expect("a number")
}

/// Waits until every gateway says that so many units were used of each limit.
#[track_caller]
fn wait_used(gateways: &[&Gateway], units: u64) {
    for gateway in gateways {
        for name in ALGORITHMS {
            let mut last = 0;
            eventually(&format!("{units} units of {name}"), || {
                let found = UNITS - left(gateway, name);
                if found != last {
                    println!("{name}: {found} of {units}");
                }
                last = found;
                // A bucket of 30 days regains a unit in 2.6 seconds.
                found == units
                    || name == "token_bucket" && (units.saturating_sub(30)..=units).contains(&found)
            });
        }
    }
}

#[test]
fn two_gateways_settle_on_one_ledger() {
    undisturbed(settle_on_one_ledger);
}

fn settle_on_one_ledger() -> Option<()> {
    let redis = Redis::start();
    let fleet = charging(2, costing(), &redis.url());
    let cost =
        |gateway: usize, client: usize, turn: usize| (gateway * 7 + client * 31 + turn * 13) as u64 % 250;
    let fired = fleet.fire(8, Until::Count(40), |gateway, client, turn| {
        get(&format!("/{}/{}", ALGORITHMS[client % 4], cost(gateway, client / 4, turn)))
    });
    is_exact(&fleet)?;
    assert_eq!(with_status(&fired, 200), fired.len());
    let all: u64 = (0..2)
        .flat_map(|gateway| (0..2).map(move |client| (gateway, client)))
        .flat_map(|(gateway, client)| (0..40).map(move |turn| cost(gateway, client, turn)))
        .sum();
    let gateways: Vec<&Gateway> = fleet.gateways.iter().collect();
    wait_used(&gateways, all);
    assert_eq!(fleet.metric("sluicegate_charged_units_total", &[]), 4.0 * all as f64);
    assert_eq!(fleet.metric("sluicegate_reserved_units", &[]), 0.0);
    assert_eq!(fleet.metric("sluicegate_redis_gives_lost_total", &[]), 0.0);
    Some(())
}

/// What a killed gateway had reserved stays charged, and nothing else.
#[test]
fn a_killed_gateway_costs_its_open_reservations() {
    undisturbed(kill_one_gateway);
}

fn kill_one_gateway() -> Option<()> {
    let redis = Redis::start();
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::new(move |seen| {
        let reply = Reply::with(200, &[("X-Cost", "7")], "ok");
        if seen.target.ends_with("held") { reply.held_by(&held) } else { reply }
    });
    let mut fleet = charging(2, upstream, &redis.url());
    let killed = fleet.gateways.remove(0);
    let mut waiting = Vec::new();
    for name in ALGORITHMS {
        for _ in 0..3 {
            killed.get(&format!("/{name}/done")).expect(200);
            let mut client = killed.client();
            client.send(get(&format!("/{name}/held")).bytes());
            waiting.push(client);
        }
    }
    fleet.upstream.wait_for(24);
    let failed = killed.metric(DEGRADED, &[]) + fleet.metric(DEGRADED, &[]);
    if failed > 0.0 {
        return None;
    }
    wait_used(&[&fleet.gateways[0]], 3 * 7 + 3 * RESERVED);
    killed.signal(Signal::KILL);
    for name in ALGORITHMS {
        fleet.gateways[0].get(&format!("/{name}/done")).expect(200);
    }
    is_exact(&fleet)?;
    gate.open();
    wait_used(&[&fleet.gateways[0]], 4 * 7 + 3 * RESERVED);
    thread::sleep(Duration::from_millis(300));
    wait_used(&[&fleet.gateways[0]], 4 * 7 + 3 * RESERVED);
    Some(())
}

/// Requests that end while Redis is away are settled when it is back, wherever they were judged; once each.
#[test]
fn an_outage_delays_settlements() {
    undisturbed(settle_over_outages);
}

fn settle_over_outages() -> Option<()> {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::new(move |seen| {
        let cost = seen.target.rsplit('/').next().expect("a cost").to_owned();
        let reply = Reply::with(200, &[("X-Cost", &cost)], "ok");
        if seen.target.contains("held") { reply.held_by(&held) } else { reply }
    });
    let fleet = charging(1, upstream, &proxy.url());
    let gateway = &fleet.gateways[0];
    let ask_held = |costs: [u64; 2]| {
        let targets = ALGORITHMS.iter().flat_map(|name| costs.map(|cost| format!("/{name}/held/{cost}")));
        targets
            .map(|target| {
                let mut client = gateway.client();
                client.send(get(&target).bytes());
                client
            })
            .collect::<Vec<Client>>()
    };
    let mut before = ask_held([3, 350]);
    fleet.upstream.wait_for(8);
    is_exact(&fleet)?;
    for _ in 0..2 {
        proxy.refuse();
        for name in ALGORITHMS {
            for cost in [0, 20, 220] {
                gateway.get(&format!("/{name}/{cost}")).expect(200);
            }
        }
        fleet.wait_degraded();
        if before.len() == 8 {
            let mut during = ask_held([30, 440]);
            fleet.upstream.wait_for(8 + 12 + 8);
            gate.open();
            before.append(&mut during);
            before.iter_mut().for_each(|client| drop(client.response().expect(200)));
        }
        proxy.forward();
        fleet.wait_enforcing();
    }
    // A charge that was on its way when the connection broke may have been made.
    if fleet.metric("sluicegate_redis_gives_lost_total", &[]) > 0.0 {
        return None;
    }
    wait_used(&[gateway], 3 + 350 + 30 + 440 + 2 * (20 + 220));
    thread::sleep(Duration::from_millis(300));
    wait_used(&[gateway], 3 + 350 + 30 + 440 + 2 * (20 + 220));
    assert_eq!(fleet.metric("sluicegate_reserved_units", &[]), 0.0);
    Some(())
}

/// Answers of Redis that are lost: the settlement may have run, and is repeated without effect then.
#[test]
fn lost_replies_settle_once() {
    undisturbed(lose_replies);
}

fn lose_replies() -> Option<()> {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::new(move |seen| {
        let cost = seen.target.rsplit('/').next().expect("a cost").to_owned();
        Reply::with(200, &[("X-Cost", &cost)], "ok").held_by(&held)
    });
    let fleet = charging(1, upstream, &proxy.url());
    let ask = |name: &&str| {
        let mut client = fleet.gateways[0].client();
        client.send(get(&format!("/{name}/350")).bytes());
        client
    };
    let mut clients: Vec<Client> = ALGORITHMS.iter().map(ask).collect();
    fleet.upstream.wait_for(4);
    is_exact(&fleet)?;
    proxy.drop_replies();
    gate.open();
    clients.iter_mut().for_each(|client| drop(client.response().expect(200)));
    thread::sleep(Duration::from_millis(300));
    proxy.forward();
    fleet.wait_enforcing();
    wait_used(&[&fleet.gateways[0]], 350);
    thread::sleep(Duration::from_millis(300));
    wait_used(&[&fleet.gateways[0]], 350);
    Some(())
}

/// Gateways that count failed logins.
fn logins(fleet: usize, redis: &Redis, charge: &str) -> Fleet {
    let upstream = Upstream::new(|seen| {
        let status = if seen.target.ends_with("right") { 200 } else { 401 };
        Reply::with(status, &[], "ok").after(ms(20))
    });
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::before(upstream, fleet, |_, upstream| {
        format!(
            "{head}limits: {{ login: {{ key: global, algorithm: fixed_window, rate: 5/1h, charge: {charge} }} }}\n\
             locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: login }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet
}

#[test]
fn of_parallel_wrong_passwords_as_many_as_the_limit_reach_the_upstream() {
    undisturbed(guess_passwords);
}

fn guess_passwords() -> Option<()> {
    let redis = Redis::start();
    let fleet = logins(2, &redis, "{ when: 401 }");
    let fired = fleet.fire(50, Until::Count(2), |_, _, _| get("/wrong"));
    is_exact(&fleet)?;
    assert_eq!((with_status(&fired, 401), with_status(&fired, 429)), (5, 195));
    assert_eq!(fleet.upstream.count(), 5);
    Some(())
}

/// Each worker settles before it asks again, so right passwords never meet their own reservations.
#[test]
fn right_passwords_cost_nothing() {
    undisturbed(log_in);
}

fn log_in() -> Option<()> {
    let redis = Redis::start();
    let fleet = logins(2, &redis, "{ when: 401 }");
    let fired = fleet.fire(2, Until::Count(100), |_, _, _| get("/right"));
    is_exact(&fleet)?;
    assert_eq!(with_status(&fired, 200), 400);
    Some(())
}

#[test]
fn an_answer_that_clears_makes_room_on_all_gateways() {
    undisturbed(clear_on_both);
}

fn clear_on_both() -> Option<()> {
    let redis = Redis::start();
    let fleet = logins(2, &redis, "{ when: 401, clear: 200 }");
    let [one, other] = [&fleet.gateways[0], &fleet.gateways[1]];
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.extend([one, other, one, other].map(|gateway| gateway.get("/wrong").status));
        statuses.push(one.get("/right").status);
        eventually("room on the other gateway", || left(other, "") == 5);
    }
    statuses.extend((0..6).map(|_| other.get("/wrong").status));
    statuses.push(one.get("/right").status);
    is_exact(&fleet)?;
    let cleared = [401, 401, 401, 401, 200];
    assert_eq!(statuses, [&cleared[..], &cleared, &cleared, &[401; 5], &[429, 429]].concat());
    Some(())
}
