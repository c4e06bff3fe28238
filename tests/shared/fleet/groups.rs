//! Several gateways on a primary with a Sentinel, and on a Cluster.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{counting_on, remaining, with_status};
use crate::support::*;

/// The primary dies and a Sentinel chooses another one: Redis decides again within five seconds, plus a margin
/// for a busy machine, and no client got any status but 200, 429 or, meanwhile, 503.
#[test]
fn a_sentinel_failover_is_followed() {
    let mut group = Sentinel::start();
    let head = counting_on(&group.url(), "100ms");
    let fleet = Fleet::start(3, |_, upstream| {
        format!(
            "{head}locations:\n  - {{ path: /, upstream: \"{upstream}\", \
               limits: {{ key: global, rate: 100000/1h, on_failure: reject }} }}\n"
        )
    });
    fleet.wait_enforcing();
    let fired = thread::scope(|scope| {
        let clients = scope.spawn(|| {
            fleet.fire(2, Until::Span(ms(7000)), |_, _, _| {
                thread::sleep(ms(5));
                get("/")
            })
        });
        thread::sleep(ms(500));
        group.primary.kill();
        let died = Instant::now();
        fleet.wait_degraded();
        fleet.wait_enforcing();
        assert!(died.elapsed() < Duration::from_secs(5 + 2), "Redis decides after {:?}", died.elapsed());
        clients.join().expect("the clients finish")
    });
    assert_eq!(with_status(&fired, 200) + with_status(&fired, 503), fired.len());
    assert!(with_status(&fired, 503) > 0 && fired.last().is_some_and(|one| one.status == 200));
    assert!(group.replica.judgements() > 0, "the new primary received no call");
}

/// A Sentinel replaces a primary that is well: it is left as soon as the Sentinel names another one.
#[test]
fn a_planned_failover_is_followed_at_once() {
    const QUOTA: usize = 60;
    let group = Sentinel::start();
    let head = counting_on(&group.url(), "100ms");
    let fleet = Fleet::start(1, |_, upstream| {
        format!(
            "{head}locations:\n  - {{ path: /, upstream: \"{upstream}\", \
               limits: {{ key: global, algorithm: fixed_window, rate: {QUOTA}/1h }} }}\n"
        )
    });
    fleet.wait_enforcing();
    let fire = |count| with_status(&fleet.fire(1, Until::Count(count), |_, _, _| get("/")), 200);
    let before = fire(QUOTA / 3);
    group.fail_over();
    let (named, mut meanwhile) = (Instant::now(), 0);
    while group.replica.judgements() == 0 {
        meanwhile += fire(1);
        thread::sleep(ms(20));
        assert!(named.elapsed() < PATIENCE, "the new primary receives no call");
    }
    println!("the new primary is asked after {:?}; {meanwhile} admitted meanwhile", named.elapsed());
    assert!(named.elapsed() < ms(1500), "{:?}", named.elapsed());
    let admitted = before + meanwhile + fire(QUOTA);
    assert!((QUOTA..=QUOTA + meanwhile).contains(&admitted), "{admitted} of {QUOTA}");
}

/// A chain over keys in different slots of a Cluster, where the last limit rejects most: afterwards every limit has
/// been charged for exactly the admitted requests.
#[test]
fn a_chain_across_a_cluster_charges_only_what_it_admits() {
    undisturbed(|| {
        let cluster = Cluster::start();
        let head = counting_on(&cluster.url(), "200ms");
        let fleet = Fleet::start(3, |_, upstream| {
            format!(
                "{head}limits:\n  a: {{ key: \"header:x-a\", algorithm: fixed_window, rate: 1000/1h }}\n  \
                   b: {{ key: \"header:x-b\", algorithm: fixed_window, rate: 1000/1h }}\n  \
                   c: {{ key: \"header:x-c\", algorithm: fixed_window, rate: 3/1h }}\n\
                 locations:\n  - {{ path: /all, upstream: \"{upstream}\", limits: [a, b, c] }}\n  \
                   - {{ path: /a, upstream: \"{upstream}\", limits: a }}\n  \
                   - {{ path: /b, upstream: \"{upstream}\", limits: b }}\n"
            )
        });
        fleet.wait_enforcing();
        let key = |n: usize| format!("k{n}");
        // Keys of all three limits in all combinations of slots, and every key of c is rejected again and again.
        let fired = fleet.fire(8, Until::Count(24), |gateway, client, turn| {
            let n = 24 * client + turn;
            let ask = get("/all").header("X-A", key(n % 7)).header("X-B", key(3 * n % 7));
            ask.header("X-C", key(turn % 12 + gateway % 2))
        });
        assert_eq!(with_status(&fired, 200) + with_status(&fired, 429), 3 * 8 * 24);
        let seen = fleet.upstream.requests();
        let gives_arrived = || quiet(&cluster);
        eventually("quiescence", gives_arrived);
        if fleet.metric("sluicegate_degraded_decisions_total", &[]) > 0.0 {
            return None;
        }
        assert_eq!((with_status(&fired, 200), seen.len()), (3 * 13, 3 * 13));
        assert_eq!(fleet.metric("sluicegate_redis_gives_lost_total", &[]), 0.0);
        for name in ["a", "b"] {
            let mut admitted: HashMap<String, u64> = (0..7).map(|n| (format!("k{n}"), 0)).collect();
            for one in &seen {
                *admitted.get_mut(&one.header(&format!("x-{name}")).expect("a key")).expect("a known key") +=
                    1;
            }
            for (key, count) in admitted {
                let probe = get(&format!("/{name}")).header(&format!("X-{name}"), &key);
                let mut probes = 0;
                eventually(&format!("{name} of {key} is charged for {count}"), || {
                    probes += 1;
                    let left = remaining(&fleet.gateways[0].ask(&probe).expect(200).headers);
                    thread::sleep(ms(20));
                    left == Some(1000 - count - probes)
                });
            }
        }
        Some(())
    });
}

/// Waits until no script has run for a moment.
fn quiet(cluster: &Cluster) -> bool {
    let before = cluster.judgements();
    thread::sleep(ms(100));
    cluster.judgements() == before
}

/// A Cluster loses a primary: its keys are counted by the replica that takes over.
#[test]
fn a_cluster_failover_is_followed() {
    let mut cluster = Cluster::start();
    let head = counting_on(&cluster.url(), "100ms");
    let fleet = Fleet::start(2, |_, upstream| {
        format!(
            "{head}locations:\n  - {{ path: /, upstream: \"{upstream}\", \
               limits: {{ key: \"query:k\", rate: 1000/1h, on_failure: reject }} }}\n"
        )
    });
    fleet.wait_enforcing();
    let all_pass = || {
        let fired = fleet.fire(1, Until::Count(60), |_, _, turn| get(&format!("/?k={turn}")));
        with_status(&fired, 200) == fired.len()
    };
    eventually("every key is counted", all_pass);
    cluster.nodes[0].kill();
    eventually("a new primary", || cluster.primaries().count() == 3);
    eventually("every key is counted again", all_pass);
}
