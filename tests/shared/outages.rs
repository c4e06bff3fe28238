//! The cost of an outage: slots and quotas of one gateway and of several, however often Redis goes away; and counters
//! that an operator deletes.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{by_name, counting_on, is_degraded, with_status};
use crate::support::*;

const QUOTA: u64 = 30;
/// Every algorithm that can be a quota.
const QUOTAS: [&str; 4] = ["fixed_window", "sliding_window", "sliding_log", "token_bucket"];

/// Gateways with these limits, each at a location of its name.
#[track_caller]
fn limited(count: usize, upstream: Upstream, url: &str, timeout: &str, limits: &[(&str, &str)]) -> Fleet {
    let head = counting_on(url, timeout);
    let fleet = Fleet::before(upstream, count, |_, upstream| format!("{head}{}", by_name(upstream, limits)));
    fleet.wait_enforcing();
    fleet.wait_nodes(count);
    fleet
}

/// The requests that reached a location, the first of some limits.
fn admitted(fleet: &Fleet, name: &str) -> u64 {
    fleet.upstream.targets().iter().filter(|target| target[1..] == *name).count() as u64
}

/// A gateway that is cut off from Redis four times, while requests hold their slots for longer than that.
#[test]
fn one_gateway_never_exceeds_its_slots() {
    const SLOTS: usize = 6;
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let upstream = Upstream::new(|_| Reply::text("ok").after(Duration::from_secs(25)));
    let slots = format!("key: global, algorithm: concurrency, max_concurrent: {SLOTS}");
    let fleet = limited(1, upstream, &proxy.url(), "100ms", &[("slots", &slots)]);
    let mut clients = Vec::new();
    let mut in_flight = Vec::new();
    let mut ask = || {
        let mut new: Vec<_> = (0..8).map(|_| fleet.gateways[0].client()).collect();
        new.iter_mut().for_each(|client| client.send(get("/slots").bytes()));
        clients.extend(new);
        thread::sleep(ms(500));
        in_flight.push(fleet.upstream.count());
    };
    ask();
    for _ in 0..4 {
        proxy.refuse();
        ask();
        proxy.forward();
        fleet.wait_enforcing();
        ask();
    }
    println!("in flight of {SLOTS}, before, during and after four outages: {in_flight:?}");
    assert!(in_flight.iter().all(|&now| now == SLOTS), "{in_flight:?} in flight");
}

/// A Redis that lost its memory gets reports of all slots within a second.
#[test]
fn slots_are_reported_again_to_an_emptied_redis() {
    let redis = Redis::start();
    let upstream = Upstream::new(|_| Reply::text("ok").after(Duration::from_secs(8)));
    let slots = ("slots", "key: global, algorithm: concurrency, max_concurrent: 6");
    let fleet = limited(2, upstream, &redis.url(), "200ms", &[slots]);
    let mut holding: Vec<_> = (0..6).map(|_| fleet.gateways[0].client()).collect();
    holding.iter_mut().for_each(|client| client.send(get("/slots").bytes()));
    eventually("six requests in flight", || fleet.upstream.count() == 6);
    redis.command(&["FLUSHALL"]);
    thread::sleep(ms(1000 + 1000));
    fleet.gateways[1].get("/slots").expect(503);
    assert_eq!(fleet.upstream.count(), 6);
}

/// Gateways with a quota by each algorithm.
#[track_caller]
fn with_quotas(gateways: usize, url: &str, units: u64, period: &str) -> Fleet {
    let limits = QUOTAS.map(|algorithm| {
        let burst = if algorithm == "token_bucket" { format!(", burst: {units}") } else { String::new() };
        (algorithm, format!("key: global, algorithm: {algorithm}, rate: {units}/{period}{burst}"))
    });
    let limits = limits.each_ref().map(|(name, fields)| (*name, fields.as_str()));
    limited(gateways, Upstream::ok(), url, "100ms", &limits)
}

/// Asks for each quota at each gateway that many times.
#[track_caller]
fn ask_for_quotas(fleet: &Fleet, turns: usize) {
    let ask = |_: usize, client: usize, _: usize| get(&format!("/{}", QUOTAS[client]));
    let fired = fleet.fire(QUOTAS.len(), Until::Count(turns), ask);
    assert_eq!(with_status(&fired, 200) + with_status(&fired, 429), fired.len());
}

/// Asks for each quota in outages of less than a second, and hardly in between. Returns the admissions of each.
fn quotas_over_outages(gateways: usize, outages: usize, period: &str) -> Vec<u64> {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let fleet = with_quotas(gateways, &proxy.url(), QUOTA, period);
    for _ in 0..outages {
        proxy.refuse();
        ask_for_quotas(&fleet, 40);
        proxy.forward();
        fleet.wait_enforcing();
        ask_for_quotas(&fleet, 1);
    }
    let all: Vec<_> = QUOTAS.iter().map(|name| admitted(&fleet, name)).collect();
    println!("{QUOTA}/{period}, {outages} outages, {gateways} gateways: {all:?} admitted of {QUOTAS:?}");
    all
}

/// No request is in flight when an outage begins or ends.
#[test]
fn quotas_of_one_gateway_outlast_outages() {
    for (outages, period) in [(5, "1h"), (6, "1d")] {
        let all = quotas_over_outages(1, outages, period);
        assert!(all.iter().all(|admitted| (QUOTA - 1..=QUOTA).contains(admitted)), "{all:?} of {QUOTA}");
    }
}

/// One share of each gateway may be admitted in addition.
#[test]
fn quotas_of_three_gateways_outlast_outages() {
    let all = quotas_over_outages(3, 5, "1h");
    let most = QUOTA + 3 * QUOTA.div_ceil(3);
    assert!(all.iter().all(|admitted| (QUOTA..=most).contains(admitted)), "{all:?} of {QUOTA}");
}

/// Units that gateways admitted by themselves are charged when Redis is back: a gateway that starts then finds
/// nothing left either.
#[test]
fn units_admitted_in_an_outage_are_charged_at_recovery() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let fleet = with_quotas(3, &proxy.url(), QUOTA, "1h");
    proxy.refuse();
    ask_for_quotas(&fleet, 20);
    let in_outage: Vec<_> = QUOTAS.iter().map(|name| admitted(&fleet, name)).collect();
    assert_eq!(in_outage, [QUOTA; QUOTAS.len()], "the shares of all three");
    proxy.forward();
    fleet.wait_enforcing();
    thread::sleep(ms(1000));
    let newcomer = Gateway::start(&std::fs::read_to_string(fleet.gateways[0].file()).expect("its file"));
    eventually("a gateway that uses Redis", || !is_degraded(&newcomer));
    let statuses = QUOTAS.map(|name| newcomer.get(&format!("/{name}")).status);
    ask_for_quotas(&fleet, 20);
    let all: Vec<_> = QUOTAS.iter().map(|name| admitted(&fleet, name)).collect();
    println!("{QUOTA}/1h after an outage that used it: {all:?} admitted, a new gateway says {statuses:?}");
    assert_eq!((all, statuses), (in_outage, [429; QUOTAS.len()]));
}

/// Replies that come before or after the deadline, by chance; each client has a key of its own, and its requests in
/// flight are admitted in addition.
#[test]
fn late_replies_admit_no_request_twice() {
    const CLIENTS: usize = 4;
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let quota = format!("key: \"query:k\", algorithm: fixed_window, rate: {QUOTA}/1h");
    let fleet = limited(1, Upstream::ok(), &proxy.url(), "20ms", &[("quota", &quota)]);
    proxy.delay_replies(ms(5), ms(40));
    fleet.fire(CLIENTS, Until::Span(Duration::from_secs(8)), |_, client, _| {
        thread::sleep(ms(30));
        get(&format!("/quota?k={client}"))
    });
    let all = [0, 1, 2, 3].map(|client| admitted(&fleet, &format!("quota?k={client}")));
    println!("{QUOTA}/1h, late replies: {all:?} admitted");
    assert!(all.iter().all(|admitted| (QUOTA / 3..=QUOTA + 1).contains(admitted)), "{all:?} of {QUOTA}");
}

/// A primary of a Cluster is lost for good, another one pauses: the share for keys of the lost one continues.
#[test]
fn a_hiccup_of_one_primary_renews_no_share_of_another() {
    let mut cluster = Cluster::start();
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let quota = format!("key: \"query:k\", algorithm: fixed_window, rate: {QUOTA}/1h");
    let fleet = limited(1, Upstream::ok(), &cluster.url(), "100ms", &[("quota", &quota)]);
    let ask = |key: usize| fleet.gateways[0].get(&format!("/quota?k={key}")).status;
    // A key of the first primary and one of the second.
    let [lost, other] = [0, 1].map(|index| {
        let counters = || cluster.nodes[index].keys().len();
        let found = (0..100).map(|n| 100 * index + n).find(|&key| {
            let before = counters();
            ask(key) == 200 && counters() > before
        });
        found.expect("a key of this primary")
    });
    [3, 0].into_iter().for_each(|index| cluster.nodes[index].kill());
    let mut all = Vec::new();
    let mut fire = || {
        fleet.fire(1, Until::Count(60), |_, _, _| get(&format!("/quota?k={lost}")));
        all.push(admitted(&fleet, &format!("quota?k={lost}")));
    };
    fire();
    let settled = |server: &Redis| {
        let name = format!("server=\"{}\"", server.addr());
        fleet.gateways[0].metric("sluicegate_redis_up", &[&name]) == 1.0
    };
    for _ in 0..3 {
        cluster.nodes[1].pause();
        eventually("a breaker that opens", || {
            ask(other);
            !settled(&cluster.nodes[1])
        });
        cluster.nodes[1].resume();
        eventually("a breaker that closes", || settled(&cluster.nodes[1]));
        // After the ramp.
        thread::sleep(ms(400));
        fire();
    }
    println!("{QUOTA}/1h of a lost primary, after 0 to 3 hiccups of another: {all:?} admitted");
    assert!(all.iter().all(|admitted| (QUOTA - 1..=QUOTA).contains(admitted)), "{all:?} of {QUOTA}");
}

/// The time of each call is counted by server, whether it is answered or runs into its deadline.
#[test]
fn the_time_of_calls_is_a_histogram() {
    let redis = Redis::start();
    let fleet = limited(1, Upstream::ok(), &redis.url(), "200ms", &[("all", "key: global, rate: 1000/s")]);
    fleet.wait_enforcing();
    let gateway = &fleet.gateways[0];
    let server = format!("server=\"{}\"", redis.addr());
    let calls = |part: &str, le: &[&str]| {
        let labels: Vec<&str> = le.iter().copied().chain([server.as_str()]).collect();
        gateway.metric(&format!("sluicegate_redis_call_seconds_{part}"), &labels)
    };
    for _ in 0..5 {
        gateway.get("/all").expect(200);
    }
    let answered = gateway.metric("sluicegate_redis_calls_total", &["result=\"ok\""]);
    assert!(answered >= 5.0 && calls("count", &[]) >= answered, "{answered}");
    let slow = || calls("count", &[]) - calls("bucket", &["le=\"0.1\""]);
    let before = slow();
    redis.pause();
    gateway.get("/all");
    redis.resume();
    // The local share answers at the deadline, and the call is counted a moment later.
    eventually("a slow call", || slow() > before);
    assert!(calls("sum", &[]) >= 0.2);
}

/// An operator deletes a counter: its client is admitted at every gateway at once, however long it was to wait.
#[test]
fn a_deleted_counter_frees_its_client_within_a_second() {
    let redis = Redis::start();
    let fleet = with_quotas(3, &redis.url(), 5, "1d");
    let names = QUOTAS.map(|name| format!("/{name}"));
    let all_refused = || fleet.gateways.iter().all(|g| names.iter().all(|name| g.get(name).status == 429));
    eventually("refusals everywhere", all_refused);
    let mut delete = ::redis::cmd("DEL");
    for (name, _) in redis.counters() {
        delete.arg(name);
    }
    let deleted = Instant::now();
    let count: usize = delete.query(&mut redis.connect()).expect("the counters go");
    assert!(count > 0, "nothing was counted");
    let mut waiting: Vec<_> =
        fleet.gateways.iter().flat_map(|gateway| names.iter().map(move |name| (gateway, name))).collect();
    while !waiting.is_empty() {
        waiting.retain(|(gateway, name)| gateway.get(name).status != 200);
        let left: Vec<_> = waiting.iter().map(|(_, name)| name).collect();
        assert!(deleted.elapsed() < ms(1000 + 1000), "rejected after {:?}: {left:?}", deleted.elapsed());
        thread::sleep(ms(20));
    }
}
