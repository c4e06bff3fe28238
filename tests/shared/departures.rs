//! Departures of a queue that two gateways share, while many waiters leave: each is used once, and few lapse.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::fleet::{DEGRADED, counting_on};
use crate::support::*;

const RATE: f64 = 50.0;
const SPAN: Duration = ms(7_000);

/// Two gateways that share a queue.
fn two(redis: &Redis, limit: &str) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::start(2, |_, upstream| {
        format!(
            "{head}limits: {{ all: {{ algorithm: leaky_bucket, key: global, {limit} }} }}\n\
             locations: [{{ path: /, upstream: \"{upstream}\", limits: all }}]\n"
        )
    });
    fleet.wait_enforcing();
    fleet
}

/// A client that asks again and again, and hangs up after this time without an answer; the times that it left.
fn leave_after(gateway: &Gateway, patience: Duration, over: &AtomicBool) -> usize {
    let mut left = 0;
    while !over.load(SeqCst) {
        let mut client = gateway.client();
        client.send(get("/leaver").bytes());
        left += usize::from(client.response_within(patience).is_err());
    }
    left
}

/// True if this machine was too slow for the deadline of a decision.
fn is_disturbed(fleet: &Fleet) -> bool {
    fleet.metric(DEGRADED, &[]) > 0.0
}

/// Checks that arrivals at the upstream keep the rate: however late a request was, none left early.
#[track_caller]
fn assert_paced(start: Instant, arrivals: &[Instant], rate: f64) {
    for (index, arrival) in arrivals.iter().enumerate() {
        let due = Duration::from_secs_f64(index as f64 / rate);
        assert!(*arrival - start + ms(1) >= due, "number {index} arrived after {:?}", *arrival - start);
    }
}

/// Of the departures that waiters leave behind, the next requests of the gateway use most.
#[test]
fn departures_of_waiters_that_leave_are_used() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = two(&redis, "rate: 50/s, queue: 100");
        let (over, left, start) = (AtomicBool::new(false), AtomicUsize::new(0), Instant::now());
        thread::scope(|scope| {
            for gateway in &fleet.gateways {
                for client in 0..3 {
                    let (over, left) = (&over, &left);
                    let leave = move || leave_after(gateway, ms(130 + 20 * client), over);
                    scope.spawn(move || left.fetch_add(leave(), SeqCst));
                }
            }
            fleet.fire(6, Until::Span(SPAN), |_, _, _| get("/"));
            over.store(true, SeqCst);
        });
        if is_disturbed(&fleet) {
            return None;
        }
        let arrivals = fleet.arrivals();
        assert_paced(start, &arrivals, RATE);
        let (left, whole) = (left.into_inner() as f64, RATE * SPAN.as_secs_f64());
        let used = arrivals.iter().filter(|at| **at - arrivals[0] < SPAN).count() as f64;
        println!("{left} left, {:.0} departures of {whole} lapsed", whole - used);
        assert!(left >= 20.0, "{left} left");
        (whole - used <= 0.15 * left).then_some(())
    });
}

/// The departure of a waiter that left is there for a client that its gateway would reject by itself.
#[test]
fn a_spare_departure_is_taken_by_a_client_that_was_rejected() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = two(&redis, "rate: 1/2s, queue: 2");
        let [one, other] = [&fleet.gateways[0], &fleet.gateways[1]];
        let waiting = |gateway: &Gateway, count: f64| {
            let mut client = gateway.client();
            client.send(get("/").bytes());
            eventually("a waiter", || gateway.metric("sluicegate_queue_depth", &[]) == count);
            client
        };
        one.get("/").expect(200);
        let start = Instant::now();
        let (leaver, _last) = (waiting(one, 1.0), waiting(other, 1.0));
        // The rejection is remembered.
        let full = [one.get("/").status, one.get("/").status] == [429, 429];
        drop(leaver);
        eventually("it has left", || one.metric("sluicegate_queue_depth", &[]) == 0.0);
        thread::sleep(ms(50));
        if !full || start.elapsed() > ms(1_500) || is_disturbed(&fleet) {
            return None;
        }
        let response = one.get("/").expect(200);
        assert!(
            response.at - start < ms(3_000),
            "it left in place of the other after {:?}",
            response.at - start
        );
        assert!(fleet.arrivals()[1] - start + ms(20) >= ms(2_000), "and not earlier");
        Some(())
    });
}

/// A leased queue hands out its departures with few calls, at the rate of one queue.
#[test]
fn a_leased_queue_paces_with_few_calls() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = two(&redis, "rate: 200/s, queue: 400, max_wait: 2s, state: leased");
        let (before, start) = (redis.calls("evalsha"), Instant::now());
        fleet.fire(40, Until::Span(ms(4_000)), |_, _, _| get("/"));
        let (calls, arrivals) = (redis.calls("evalsha") - before, fleet.arrivals());
        if is_disturbed(&fleet) {
            return None;
        }
        assert_paced(start, &arrivals, 200.0);
        let used = arrivals.iter().filter(|at| **at - arrivals[0] < ms(4_000)).count();
        let sum = |name| fleet.metric(name, &["limit=\"all\""]);
        let (asked, kept) = (sum("sluicegate_lease_calls_total"), sum("sluicegate_leased_decisions_total"));
        println!("{used} of 800 left, {calls} calls of which {asked} for several, {kept} without a call");
        assert!(asked > 0.0 && kept >= 0.5 * arrivals.len() as f64);
        (used >= 760 && calls * 3 < arrivals.len() as u64).then_some(())
    });
}

/// A leased queue that is full all the time lets requests of both gateways pass.
#[test]
fn a_full_leased_queue_serves_both_gateways() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = two(&redis, "rate: 200/s, queue: 40, state: leased");
        let start = Instant::now();
        let fired = fleet.fire(40, Until::Span(ms(3_000)), |_, _, _| {
            thread::sleep(ms(20));
            get("/")
        });
        if is_disturbed(&fleet) {
            return None;
        }
        assert_paced(start, &fleet.arrivals(), 200.0);
        let passed = |gateway| fired.iter().filter(|one| one.gateway == gateway && one.status == 200).count();
        let (one, other) = (passed(0), passed(1));
        println!("{one} and {other} of {} requests, {} calls", fired.len(), redis.calls("evalsha"));
        (one + other >= 560 && one.min(other) * 3 >= one.max(other)).then_some(())
    });
}
