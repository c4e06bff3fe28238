//! Gateways that know of each other: across a reload and an upgrade in an outage, with other numbers, and with other
//! limits on the same Redis.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::fleet::{DEGRADED, by_name, counting_on, refill, span, with_status};
use crate::support::*;

/// The number that the gateways of [`renewed`] may admit together.
const RATE: u64 = 90;
const BURST: u64 = 9;
const QUOTA: u64 = 30;
const SLOTS: u64 = 6;
const GATEWAYS: u64 = 3;

/// The file of a gateway of [`renewed`].
fn file(redis: &str, timeout: &str, upstream: &str) -> String {
    let second = format!("key: global, rate: {RATE}/s, burst: {BURST}");
    let hour = format!("key: global, algorithm: fixed_window, rate: {QUOTA}/1h");
    let slots = format!("key: global, algorithm: concurrency, max_concurrent: {SLOTS}");
    let limits = [("second", &*second), ("hour", &hour), ("spent", &hour), ("slots", &slots)];
    counting_on(redis, timeout) + &by_name(upstream, &limits)
}

/// Asks for this target at every gateway without reading the answers; returns the requests that the upstream saw.
fn hold(fleet: &Fleet, clients: &mut Vec<Client>, target: &str) -> u64 {
    for gateway in &fleet.gateways {
        let mut new: Vec<_> = (0..SLOTS).map(|_| gateway.client()).collect();
        new.iter_mut().for_each(|client| client.send(get(target).bytes()));
        clients.extend(new);
    }
    thread::sleep(ms(600));
    admitted(fleet, target)
}

fn admitted(fleet: &Fleet, target: &str) -> u64 {
    fleet.upstream.targets().iter().filter(|seen| *seen == target).count() as u64
}

/// Three gateways without their Redis are renewed by `renew` and continue with their shares, their slots and their
/// rejections.
fn renewed(renew: impl Fn(&Gateway, &str) -> Option<Successor>) {
    let mut redis = Redis::start();
    let upstream = Upstream::new(|seen| {
        let reply = Reply::text("ok");
        if seen.target == "/slots" { reply.after(Duration::from_secs(30)) } else { reply }
    });
    let url = redis.url();
    let fleet = Fleet::before(upstream, GATEWAYS as usize, |_, upstream| file(&url, "100ms", upstream));
    fleet.wait_enforcing();
    fleet.wait_nodes(GATEWAYS as usize);
    let fire = |turns, target: &str| fleet.fire(1, Until::Count(turns), |_, _, _| get(target));
    fire(QUOTA as usize + 1, "/spent");
    redis.kill();
    fire(QUOTA as usize, "/hour");
    fleet.wait_degraded();
    let mut clients = Vec::new();
    let before = [hold(&fleet, &mut clients, "/slots"), admitted(&fleet, "/hour")];
    assert_eq!(before, [SLOTS, QUOTA], "slots and units of a quota before");
    assert!(admitted(&fleet, "/spent") >= QUOTA);
    let spent = admitted(&fleet, "/spent");
    let _successors: Vec<_> = fleet
        .gateways
        .iter()
        .map(|gateway| renew(gateway, &file(&url, "150ms", &fleet.upstream.url())))
        .collect();
    fleet.wait_degraded();
    for target in ["/hour", "/spent"] {
        fire(QUOTA as usize, target);
    }
    let fired = fleet.fire(2, Until::Span(ms(3000)), |_, _, _| {
        thread::sleep(ms(10));
        get("/second")
    });
    let (second, refilled) = (admitted(&fleet, "/second"), refill(RATE, span(fired.iter())));
    let slots = hold(&fleet, &mut clients, "/slots");
    let (hour, again) = (admitted(&fleet, "/hour"), admitted(&fleet, "/spent") - spent);
    println!(
        "renewed in an outage: {RATE}/s: {second} of {}; {QUOTA}/h: {hour} of {QUOTA}; spent: {again} of 0; \
         slots: {slots} of {SLOTS}",
        refilled + BURST
    );
    assert!((refilled / 3..=refilled + BURST + GATEWAYS).contains(&second), "{second} of {refilled}");
    assert_eq!([hour, again, slots], [QUOTA, 0, SLOTS], "units, units of a spent quota, slots");
}

#[test]
fn a_reload_in_an_outage_forgets_nothing() {
    renewed(|gateway, file| {
        gateway.change(file);
        None
    });
}

/// The old processes still answer the requests that hold slots.
#[test]
fn an_upgrade_in_an_outage_forgets_nothing() {
    renewed(|gateway, _| {
        let old = gateway.process();
        gateway.signal(Signal::USR2);
        eventually("another process", || gateway.process() != old);
        Some(Successor(gateway.process() as i32))
    });
}

/// The new process of an upgrade knows that Redis answers before it accepts a request.
#[test]
fn an_upgrade_decides_nothing_without_redis() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let head = counting_on(&proxy.url(), "150ms");
    let fleet = Fleet::start(1, |_, upstream| {
        format!("{head}{}", by_name(upstream, &[("all", "key: ip, rate: 9000/s")]))
    });
    fleet.wait_enforcing();
    proxy.delay(ms(10));
    let (gateway, over) = (&fleet.gateways[0], AtomicBool::new(false));
    let old = gateway.process();
    let (fired, _successor) = thread::scope(|scope| {
        let clients = scope.spawn(|| fleet.fire(4, Until::Over(&over), |_, _, _| get("/all")));
        thread::sleep(ms(200));
        gateway.signal(Signal::USR2);
        eventually("another process", || gateway.process() != old);
        let successor = Successor(gateway.process() as i32);
        thread::sleep(ms(500));
        over.store(true, Ordering::SeqCst);
        (clients.join().expect("the clients finish"), successor)
    });
    let degraded = fleet.metric(DEGRADED, &[]);
    println!("{} requests around an upgrade, {degraded} without Redis in the new process", fired.len());
    assert_eq!(degraded, 0.0);
}

/// A Redis that takes connections and never answers delays the start by a second at most.
#[test]
fn a_silent_redis_hardly_delays_a_start() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let head = counting_on(&format!("redis://{}", silent.local_addr().unwrap()), "20ms");
    let start = Instant::now();
    let fleet = Fleet::start(1, |_, upstream| {
        format!("{head}{}", by_name(upstream, &[("all", "key: ip, rate: 9/s")]))
    });
    fleet.gateways[0].get("/all").expect(200);
    assert!(start.elapsed() < ms(3000), "{:?}", start.elapsed());
}

/// A gateway that never reached Redis takes the share of one of the configured number.
#[test]
fn a_cold_start_counts_at_least_as_many_gateways_as_the_file_says() {
    let closed = Refusing::new();
    let quota = format!("key: global, algorithm: fixed_window, rate: {QUOTA}/1h");
    let head = counting_on(&format!("redis://{}", closed.addr()), "20ms, nodes_at_least: 3");
    let fleet = Fleet::start(1, |_, upstream| format!("{head}{}", by_name(upstream, &[("quota", &quota)])));
    let fired = fleet.fire(1, Until::Count(2 * QUOTA as usize), |_, _, _| get("/quota"));
    assert_eq!(with_status(&fired, 200) as u64, QUOTA / 3);
}

/// A limit is raised gateway by gateway: meanwhile none gets less than its share of its own number, and none more
/// than all of it.
#[test]
fn gateways_with_other_numbers_keep_their_part() {
    for burst in [Some(10), None] {
        keep_their_part(burst);
    }
}

/// `burst` is the same for all; `None`: as much as the rate of each.
fn keep_their_part(burst: Option<u64>) {
    const OWN: [u64; 3] = [100, 25, 25];
    let redis = Redis::start();
    let head = counting_on(&redis.url(), "200ms");
    let file = |rate: u64, upstream: &str| {
        let all = format!("key: global, rate: {rate}/s, burst: {}", burst.unwrap_or(rate));
        format!("{head}{}", by_name(upstream, &[("all", &all)]))
    };
    let fleet = Fleet::start(3, |index, upstream| file(OWN[index], upstream));
    fleet.wait_enforcing();
    fleet.wait_nodes(3);
    let fired = fleet.fire(2, Until::Span(ms(5000)), |_, _, _| {
        thread::sleep(ms(6));
        get("/all")
    });
    let span = span(fired.iter()).as_secs_f64();
    let admitted = [0, 1, 2]
        .map(|index| fired.iter().filter(|one| one.gateway == index && one.status == 200).count() as f64);
    println!("{OWN:?} per second over {span:.1} s: {admitted:?} admitted");
    for (own, admitted) in OWN.map(|own| own as f64).into_iter().zip(admitted) {
        let part = own / 3.0 * 0.85 * span..=own * 1.1 * span + burst.map_or(own, |burst| burst as f64);
        assert!(part.contains(&admitted), "{admitted} of {own}/s in {span:.1} s, {part:?} are right");
    }
    for gateway in &fleet.gateways {
        let differ = || gateway.metric("sluicegate_limit_numbers_differ", &["limit=\"all\""]);
        eventually("a metric", || differ() == 1.0);
        assert!(gateway.admin_get("/status").expect(200).text().contains("differ"), "/status says nothing");
        let warned = gateway.stderr().lines().filter(|line| line.contains("differ")).count();
        assert_eq!(warned, 1, "{}", gateway.stderr());
    }
    for gateway in &fleet.gateways[1..] {
        gateway.change(&file(OWN[0], &fleet.upstream.url()));
    }
    for gateway in &fleet.gateways {
        let differ = || gateway.metric("sluicegate_limit_numbers_differ", &["limit=\"all\""]);
        eventually("the same numbers everywhere", || differ() == 0.0);
    }
}

/// A gateway whose window is lowered has its share at once, though the others have used more than its new number.
#[test]
fn a_lowered_window_has_its_share_at_once() {
    let redis = Redis::start();
    let head = counting_on(&redis.url(), "200ms");
    let file = |units: u64, upstream: &str| {
        let all = format!("key: global, algorithm: sliding_window, rate: {units}/1m");
        format!("{head}{}", by_name(upstream, &[("all", &all)]))
    };
    let fleet = Fleet::start(2, |_, upstream| file(100, upstream));
    fleet.wait_enforcing();
    fleet.wait_nodes(2);
    // Until heartbeats come every five seconds.
    thread::sleep(ms(6500));
    let used = fleet.fire(1, Until::Count(30), |_, _, _| get("/all"));
    assert_eq!(with_status(&used, 200), 60);
    let lowered = &fleet.gateways[1];
    lowered.change(&file(20, &fleet.upstream.url()));
    let start = Instant::now();
    eventually("a request by the share", || lowered.get("/all").status == 200);
    assert!(start.elapsed() < ms(1500), "{:?}", start.elapsed());
    assert_eq!((0..20).filter(|_| lowered.get("/all").status == 200).count(), 9);
}

/// While one of three gateways cannot reach Redis, it admits its share beside the whole rate of the others.
#[test]
fn a_gateway_that_is_cut_off_adds_its_share() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let urls = [proxy.url(), redis.url(), redis.url()];
    let rate = format!("key: global, rate: {RATE}/s, burst: {BURST}");
    let fleet = Fleet::start(3, |index, upstream| {
        counting_on(&urls[index], "100ms") + &by_name(upstream, &[("all", &rate)])
    });
    fleet.wait_enforcing();
    fleet.wait_nodes(3);
    proxy.refuse();
    fleet.fire(2, Until::Span(ms(500)), |_, _, _| get("/all"));
    let fired = fleet.fire(2, Until::Span(ms(3000)), |_, _, _| {
        thread::sleep(ms(8));
        get("/all")
    });
    let span = span(fired.iter()).as_secs_f64();
    let part = with_status(&fired, 200) as f64 / (RATE as f64 * span);
    println!("one of three cut off: {:.0} % of {RATE}/s", part * 100.0);
    assert!((1.2..=1.4).contains(&part), "{part}");
}

/// Only gateways with a limit of the same name divide it.
#[test]
fn another_service_on_the_same_redis_takes_no_share() {
    let mut redis = Redis::start();
    let head = counting_on(&redis.url(), "100ms");
    let quota = format!("key: global, algorithm: fixed_window, rate: {QUOTA}/1h");
    let name = |index| if index < 2 { "all" } else { "other" };
    let fleet =
        Fleet::start(3, |index, upstream| format!("{head}{}", by_name(upstream, &[(name(index), &quota)])));
    fleet.wait_enforcing();
    // They learn of each other with their first heartbeats, one a second.
    thread::sleep(ms(3000));
    redis.kill();
    let fired =
        fleet.fire(1, Until::Count(2 * QUOTA as usize), |index, _, _| get(&format!("/{}", name(index))));
    let admitted = [0, 1, 2]
        .map(|index| fired.iter().filter(|one| one.gateway == index && one.status == 200).count() as u64);
    println!("{QUOTA}/h in an outage, two gateways of one service and one of another: {admitted:?} admitted");
    assert_eq!(admitted, [QUOTA / 2, QUOTA / 2, QUOTA]);
}

/// Limits of one name that count other things are logged; those that agree are not.
#[test]
fn colliding_limits_are_logged() {
    let redis = Redis::start();
    let head = counting_on(&redis.url(), "200ms");
    let own = [
        ["key: global, algorithm: fixed_window, rate: 10/1s", "key: ip, rate: 10/s"],
        ["key: global, algorithm: token_bucket, rate: 10/s", "key: \"header:x-user\", rate: 10/s"],
    ];
    let fleet = Fleet::start(2, |index, upstream| {
        let [algorithm, key] = own[index];
        let limits = [("algorithm", algorithm), ("key", key), ("same", "key: global, rate: 10/s")];
        format!("{head}{}", by_name(upstream, &limits))
    });
    fleet.wait_enforcing();
    for target in ["/algorithm", "/key", "/same"] {
        fleet.fire(1, Until::Count(2), |_, _, _| get(target));
    }
    for gateway in &fleet.gateways {
        let collides = |limit: &str| {
            gateway.metric("sluicegate_limit_collides", &[&format!("limit=\"{limit}\"")]) == 1.0
        };
        for limit in ["algorithm", "key"] {
            eventually(&format!("a word about the limit {limit}"), || collides(limit));
        }
        assert!(!collides("same"));
    }
}
