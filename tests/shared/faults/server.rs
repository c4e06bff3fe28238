//! The fault run with a single Redis that dies, freezes or rejects counting.

use std::thread;

use crate::faults::support::{FaultRun, OUTAGES};
use crate::support::fleet::{by_name, counting_on, with_status};
use crate::support::*;

/// Each restart allows the limit once more.
#[test]
fn redis_is_killed_and_comes_back_empty() {
    let mut redis = Redis::start();
    let run = FaultRun::start("kill -9 memory lost", "100ms", |_| redis.url());
    run.suffer(OUTAGES, || {
        for _ in 0..OUTAGES {
            redis.kill();
            run.stay_out();
            redis.restart();
            run.recover();
        }
    });
}

/// All counts were on disk before they were answered, so nothing is allowed twice.
#[test]
fn redis_is_killed_and_remembers() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let run = FaultRun::start("kill -9 memory kept", "100ms", |_| redis.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            redis.kill();
            run.stay_out();
            redis.restart();
            run.recover();
        }
    });
}

#[test]
fn redis_freezes() {
    let redis = Redis::start();
    let run = FaultRun::start("SIGSTOP", "100ms", |_| redis.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            redis.pause();
            run.stay_out();
            redis.resume();
            run.recover();
        }
    });
}

#[test]
fn redis_has_no_memory_left() {
    let redis = Redis::start_with(&["--maxmemory-policy", "noeviction"]);
    let run = FaultRun::start("OOM", "100ms", |_| redis.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
            run.stay_out();
            redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
            run.recover();
        }
    });
}

#[test]
fn redis_becomes_a_replica_of_an_absent_primary() {
    let redis = Redis::start();
    let closed = Refusing::new();
    let port = closed.addr().port().to_string();
    let run = FaultRun::start("READONLY", "100ms", |_| redis.url());
    run.suffer(0, || {
        for _ in 0..OUTAGES {
            redis.command(&["REPLICAOF", "127.0.0.1", &port]);
            run.stay_out();
            redis.command(&["REPLICAOF", "NO", "ONE"]);
            run.recover();
        }
    });
}

/// Redis answers late to calls that it was given before a pause: their requests count once, by the share.
#[test]
fn a_pause_of_redis_charges_nothing_twice() {
    const UNITS: u64 = 100_000;
    const PAUSES: usize = 4;
    const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window", "sliding_log", "token_bucket"];
    let redis = Redis::start();
    let head = counting_on(&redis.url(), "50ms");
    let fields = ALGORITHMS.map(|name| {
        let burst = if name == "token_bucket" { format!(", burst: {UNITS}") } else { String::new() };
        format!("key: global, algorithm: {name}, rate: {UNITS}/30d{burst}")
    });
    let limits: Vec<(&str, &str)> = ALGORITHMS.into_iter().zip(fields.iter().map(String::as_str)).collect();
    let fleet = Fleet::start(1, |_, upstream| format!("{head}{}", by_name(upstream, &limits)));
    fleet.wait_enforcing();
    let mut admitted = [0; ALGORITHMS.len()];
    for _ in 0..PAUSES {
        let fired = thread::scope(|scope| {
            let clients = scope.spawn(|| {
                fleet.fire(16, Until::Span(ms(500)), |_, client, _| {
                    get(&format!("/{}", ALGORITHMS[client % ALGORITHMS.len()]))
                })
            });
            thread::sleep(ms(100));
            redis.pause();
            thread::sleep(ms(200));
            redis.resume();
            clients.join().expect("the clients finish")
        });
        assert_eq!(with_status(&fired, 200), fired.len());
        for one in &fired {
            admitted[one.client % ALGORITHMS.len()] += 1;
        }
        fleet.wait_enforcing();
    }
    let gateway = &fleet.gateways[0];
    for (name, admitted) in ALGORITHMS.into_iter().zip(admitted) {
        let mut last = 0;
        let used = || {
            let explained = serde_json::json!({ "method": "GET", "url": format!("/{name}") }).to_string();
            let asked = post("/explain", explained.as_bytes()).header("Accept", "application/json");
            let explained = gateway.ask_admin(&asked).expect(200).json();
            UNITS - explained["limits"][0]["counters"][0]["remaining"].as_u64().expect("a number")
        };
        // A refund may itself find no answer on a slow machine: it is lost then, and counted.
        eventually(&format!("{admitted} units of {name}"), || {
            let found = used();
            let lost = gateway.metric("sluicegate_redis_gives_lost_total", &[&format!("limit=\"{name}\"")]);
            if std::mem::replace(&mut last, found) != found {
                println!("{name}: {found} charged for {admitted} admitted, {lost} lost");
            }
            (admitted..=admitted + lost as u64).contains(&found)
        });
    }
}
