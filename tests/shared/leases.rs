//! Leased limits: gateways admit requests by units that they took from Redis in advance, and together never more than
//! one bucket, whatever happens to gateways, calls and Redis.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fleet::exact::assert_conforms;
use crate::support::fleet::{DEGRADED, by_name, counting_on, remaining, with_status};
use crate::support::*;

pub(super) const RATE: f64 = 500.0;
pub(super) const BURST: f64 = 250.0;
const SPAN: Duration = ms(3_000);

/// Three gateways that lease a limit in the Redis at this URL, and reject while it does not answer.
pub(super) fn leasing(url: &str) -> Fleet {
    leasing_at([url; 3], BURST, "reject")
}

/// Three gateways that lease a limit with this burst, each at a URL of its own.
pub(super) fn leasing_at(urls: [&str; 3], burst: f64, on_failure: &str) -> Fleet {
    let limit =
        format!("key: global, rate: {RATE}/s, burst: {burst}, state: leased, on_failure: {on_failure}");
    let fleet = Fleet::start(3, |index, upstream| {
        counting_on(urls[index], "200ms") + &by_name(upstream, &[("all", &limit)])
    });
    fleet.wait_enforcing();
    fleet
}

/// What all clients got while `disturb` ran.
fn flood(fleet: &Fleet, disturb: impl FnOnce() + Send) -> Vec<Fired> {
    thread::scope(|scope| {
        scope.spawn(disturb);
        fleet.fire(4, Until::Span(SPAN), |_, _, _| {
            thread::sleep(ms(2));
            get("/all")
        })
    })
}

/// Checks that every span admitted at most what one bucket with this burst does; returns the number of admissions.
#[track_caller]
pub(super) fn assert_one_bucket(fired: &[Fired], burst: f64) -> f64 {
    let passed = fired.iter().filter(|one| one.status == 200);
    let admitted: Vec<_> = passed.map(|one| (one.sent, one.answered)).collect();
    assert_conforms(&admitted, burst, RATE);
    admitted.len() as f64
}

fn whole() -> f64 {
    BURST + RATE * SPAN.as_secs_f64()
}

#[test]
fn gateways_admit_one_bucket_with_few_calls() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = leasing(&redis.url());
        let before = redis.calls("evalsha");
        let fired = flood(&fleet, || ());
        let calls = redis.calls("evalsha") - before;
        let passed = assert_one_bucket(&fired, BURST);
        assert_eq!(with_status(&fired, 200) + with_status(&fired, 429), fired.len());
        assert!(calls * 10 < fired.len() as u64, "{calls} calls for {} requests", fired.len());
        (passed >= 0.9 * whole()).then_some(())
    });
}

#[test]
fn a_killed_gateway_costs_its_lease_and_no_more() {
    undisturbed(|| {
        let redis = Redis::start();
        let mut fleet = leasing(&redis.url());
        let victim = fleet.gateways.remove(0);
        let mut last = Vec::new();
        let mut fired = flood(&fleet, || {
            let (mut client, begun) = (victim.client(), Instant::now());
            while begun.elapsed() < ms(1_000) {
                let sent = Instant::now();
                let response = client.ask(&get("/all"));
                let (answered, status, headers) = (response.at, response.status, response.headers);
                last.push(Fired { gateway: 3, client: 0, sent, answered, status, headers });
            }
            victim.signal(Signal::KILL);
        });
        fired.extend(last);
        let passed = assert_one_bucket(&fired, BURST);
        (passed >= 0.8 * whole()).then_some(())
    });
}

/// A gateway that stood still beyond its lease asks before it spends.
#[test]
fn a_stopped_gateway_asks_again() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = leasing(&redis.url());
        let fired = flood(&fleet, || {
            for pause in [150, 600, 300] {
                thread::sleep(ms(400));
                fleet.gateways[1].signal(Signal::STOP);
                thread::sleep(ms(pause));
                fleet.gateways[1].signal(Signal::CONT);
            }
        });
        let passed = assert_one_bucket(&fired, BURST);
        (passed >= 0.7 * whole()).then_some(())
    });
}

#[test]
fn a_silent_redis_admits_nothing_beyond_the_leases() {
    let redis = Redis::start();
    let fleet = leasing(&redis.url());
    let fired = flood(&fleet, || {
        thread::sleep(ms(700));
        redis.command(&["CLIENT", "PAUSE", "1000", "ALL"]);
    });
    assert_one_bucket(&fired, BURST);
    // The leases end, and nobody else decides.
    assert!(with_status(&fired, 503) > 0);
}

#[test]
fn lost_and_late_answers_admit_no_more() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let fleet = leasing(&proxy.url());
    let fired = flood(&fleet, || {
        for _ in 0..3 {
            thread::sleep(ms(300));
            proxy.drop_replies();
            thread::sleep(ms(200));
            proxy.forward();
            proxy.delay_replies(ms(0), ms(60));
        }
    });
    assert_one_bucket(&fired, BURST);
}

/// Between regions: calls take 80 ms, and most requests wait for none.
#[test]
fn a_distant_redis_is_asked_in_advance() {
    undisturbed(|| {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.addr());
        let fleet = leasing_at([&proxy.url(); 3], 4.0 * BURST, "reject");
        proxy.delay(ms(40));
        let fired = flood(&fleet, || ());
        let passed = assert_one_bucket(&fired, 4.0 * BURST);
        println!("{passed} passed of {}", whole());
        let at_once = fired.iter().filter(|one| one.answered - one.sent < ms(40)).count();
        println!("{at_once} of {} at once", fired.len());
        (passed >= 0.7 * whole() && at_once * 10 >= fired.len() * 8).then_some(())
    });
}

/// An emptied Redis admits one limit more, and the rates of leases until their next answers.
#[test]
fn an_emptied_redis_admits_one_limit_more() {
    let redis = Redis::start();
    let fleet = leasing(&redis.url());
    let fired = flood(&fleet, || {
        thread::sleep(ms(1_500));
        redis.command(&["FLUSHALL"]);
    });
    // Leases last three terms of 100 ms.
    assert_one_bucket(&fired, 2.0 * BURST + 0.4 * RATE);
}

/// A rejection by another limit gives leased units back, here or in the store.
#[test]
fn a_chain_of_leased_and_exact_limits_is_one_transaction() {
    for order in ["leased, exact", "exact, leased", "leased, here", "leased, second"] {
        undisturbed(|| {
            let redis = Redis::start();
            let head = counting_on(&redis.url(), "200ms");
            let fleet = Fleet::start(1, |_, upstream| {
                format!(
                    "{head}limits:\n  leased: {{ rate: 100/1h, burst: 100, state: leased }}\n  \
                       second: {{ rate: 1/1h, burst: 10, state: leased }}\n  \
                       exact: {{ algorithm: fixed_window, rate: 10/1h }}\n  \
                       here: {{ algorithm: fixed_window, rate: 10/1h, state: local }}\n\
                     locations:\n  - {{ path: /, upstream: \"{upstream}\", limits: [{order}] }}\n  \
                       - {{ path: /alone, upstream: \"{upstream}\", limits: leased }}\n"
                )
            });
            fleet.wait_enforcing();
            let mut client = fleet.gateways[0].client();
            let statuses: Vec<u16> = (0..60).map(|_| client.ask(&get("/")).status).collect();
            if fleet.metric(DEGRADED, &[]) > 0.0 {
                return None;
            }
            assert_eq!(statuses, [vec![200; 10], vec![429; 50]].concat(), "{order}");
            thread::sleep(ms(600));
            let left = remaining(&client.ask(&get("/alone")).expect(200).headers);
            assert_eq!(left, Some(89), "{order}");
            Some(())
        });
    }
}

/// Limits that do not act reject nothing, wherever they stand, and others count beside them.
#[test]
fn a_limit_that_does_not_act_only_counts() {
    let tried = [
        ("tried", "rate: 1/1h, burst: 10, state: leased, dry_run: true"),
        ("shown", "rate: 100/1h, burst: 100, state: leased, shadow: { rate: 1/1h, burst: 10 }"),
        ("some", "rate: 1/1h, burst: 10, state: leased, enforce: 0.1%"),
    ];
    for order in ["NAME, exact, leased", "exact, NAME, leased", "leased, NAME, exact", "leased, exact, NAME"]
    {
        undisturbed(|| {
            let redis = Redis::start();
            let head = counting_on(&redis.url(), "200ms");
            let fleet = Fleet::start(1, |_, upstream| {
                let limit = |(name, fields): &(&str, &str)| format!("  {name}: {{ {fields} }}\n");
                let location = |(name, _): &(&str, &str)| {
                    let limits = order.replace("NAME", name);
                    format!("  - {{ path: /{name}, upstream: \"{upstream}\", limits: [{limits}] }}\n")
                };
                format!(
                    "{head}limits:\n{}  exact: {{ algorithm: fixed_window, rate: 60/1h }}\n  \
                       leased: {{ rate: 100/1h, burst: 100, state: leased }}\nlocations:\n{}",
                    tried.iter().map(limit).collect::<String>(),
                    tried.iter().map(location).collect::<String>(),
                )
            });
            fleet.wait_enforcing();
            let mut client = fleet.gateways[0].client();
            for (name, _) in tried {
                let answers: Vec<Response> = (0..20).map(|_| client.ask(&get(&format!("/{name}")))).collect();
                let told =
                    |answer: &&Response| answer.headers.all("sluicegate-dry-run").concat().contains("reject");
                assert!(answers.iter().all(|answer| answer.status == 200), "{order} {name}");
                assert_eq!(answers.iter().filter(told).count(), 10, "{order} {name}");
            }
            let statuses: Vec<u16> = (0..5).map(|_| client.ask(&get("/tried")).status).collect();
            assert_eq!(statuses, [429; 5], "{order}");
            Some(())
        });
    }
}

/// Without Redis a limit falls back as it says, and what was admitted meanwhile counts afterwards.
#[test]
fn an_outage_is_bridged_and_counted() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.addr());
    let head = counting_on(&proxy.url(), "100ms");
    let limit = "rate: 1/1h, burst: 40, state: leased, on_failure: local";
    let fleet = Fleet::start(1, |_, upstream| format!("{head}{}", by_name(upstream, &[("all", limit)])));
    fleet.wait_enforcing();
    let gateway = &fleet.gateways[0];
    let mut client = gateway.client();
    let mut pass = |count: usize| (0..count).filter(|_| client.ask(&get("/all")).status == 200).count();
    assert_eq!(pass(10), 10);
    proxy.refuse();
    fleet.wait_degraded();
    let meanwhile = pass(10);
    assert_eq!(meanwhile, 10);
    proxy.forward();
    fleet.wait_enforcing();
    thread::sleep(ms(600));
    // A call whose answer was lost may have charged one more.
    assert!((19..=20).contains(&pass(60)));
}

/// Gateways that lease a hundred units, which nearly never come back.
fn hoarding(redis: &Redis, count: usize) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let limit = "key: global, rate: 1/1h, burst: 100, state: leased";
    let fleet = Fleet::start(count, |_, upstream| format!("{head}{}", by_name(upstream, &[("all", limit)])));
    fleet.wait_enforcing();
    fleet
}

fn left_after(gateway: &Gateway, requests: usize) -> u64 {
    let mut client = gateway.client();
    let answers = (0..requests).map(|_| client.ask(&get("/all")).expect(200));
    answers.last().and_then(|last| remaining(&last.headers)).expect("a remainder")
}

/// Units in hand go back at the end of a process, and when another one takes over.
#[test]
fn leases_are_returned_at_the_end() {
    let redis = Redis::start();
    let mut fleet = hoarding(&redis, 3);
    assert_eq!(left_after(&fleet.gateways[0], 30), 70);
    fleet.gateways[0].term();
    assert_eq!(fleet.gateways[0].wait_exit(), 0);
    assert_eq!(left_after(&fleet.gateways[1], 30), 40);
    let _successor = fleet.gateways[1].upgrade();
    assert_eq!(left_after(&fleet.gateways[2], 1), 39);
}

/// A key that is reset has all its units again, on all gateways.
#[test]
fn a_reset_ends_leases() {
    let redis = Redis::start();
    let fleet = hoarding(&redis, 2);
    let [one, other] = [&fleet.gateways[0], &fleet.gateways[1]];
    let mut used = 0;
    eventually("a key without units", || {
        used +=
            statuses(&volley(one.addr(), vec![get("/all"); 20])).iter().filter(|one| **one == 200).count();
        used +=
            statuses(&volley(other.addr(), vec![get("/all"); 20])).iter().filter(|one| **one == 200).count();
        used >= 100
    });
    assert_eq!((used, one.get("/all").status, other.get("/all").status), (100, 429, 429));
    let reset = post("/limits/all/keys/global/reset", b"").header("Content-Type", "application/json");
    one.ask_admin(&reset).expect(200);
    eventually("a reset here", || one.get("/all").status == 200);
    eventually("a reset there", || other.get("/all").status == 200);
}

/// `explain` and `show` tell where the units are, and take none.
#[test]
fn operators_see_where_the_units_are() {
    let redis = Redis::start();
    let fleet = hoarding(&redis, 1);
    let gateway = &fleet.gateways[0];
    assert_eq!(left_after(gateway, 30), 70);
    let body = br#"{ "method": "GET", "url": "/all" }"#;
    let ask = |accept: &str| gateway.ask_admin(&post("/explain", body).header("Accept", accept)).expect(200);
    let counter = ask("application/json").json()["limits"][0]["counters"][0].clone();
    let units = |place: &str| counter["leased"][place].as_u64().expect("a number");
    assert_eq!((units("here") + units("store"), &counter["remaining"]), (70, &serde_json::json!(70)));
    let text = ask("text/plain").text();
    assert!(text.contains("70 of 100 left, leased: ") && text.contains(" in the store"), "{text}");
    let shown = |accept: &str| {
        gateway.ask_admin(&get("/limits/all/keys/global").header("Accept", accept)).expect(200)
    };
    let key = shown("application/json").json();
    let units = |place: &str| key["leased"][place].as_u64().expect("a number");
    assert_eq!((units("here") + units("store"), &key["remaining"]), (70, &serde_json::json!(70)), "{key:#}");
    let text = shown("text/plain").text();
    assert!(text.contains("\nleased: ") && text.contains(" in the store\n"), "{text}");
    let state = gateway.ask_admin(&get("/limits").header("Accept", "application/json")).expect(200).json();
    assert_eq!(state["limits"][0]["state"], "leased");
}
