//! `wait`: callers stand in the queues as requests do.

use std::thread;
use std::time::Instant;

use super::*;

const PACED: &str = "limits: { sms: { algorithm: leaky_bucket, key: global, rate: 50/1s, burst: 1, queue: 20000, max_wait: none } }";

#[test]
fn a_hundred_callers_leave_evenly() {
    undisturbed(|| {
        let noise = Noise::listen();
        let gateway = start(PACED);
        let body = json!({ "limits": "sms", "wait": "5s" }).to_string();
        let mut clients: Vec<Client> = (0..100).map(|_| Client::connect(service(&gateway))).collect();
        let began = Instant::now();
        for client in &mut clients {
            client.send(post("/check", body.as_bytes()).bytes());
        }
        let answers: Vec<Response> = thread::scope(|scope| {
            let waiting: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(|| client.response())).collect();
            waiting.into_iter().map(|one| one.join().expect("an answer")).collect()
        });
        let mut left: Vec<u128> =
            answers.iter().map(|answer| answer.at.duration_since(began).as_millis()).collect();
        left.sort_unstable();
        assert!(answers.iter().all(|answer| answer.status == 200));
        // Callers that arrive after their turn do not wait.
        let waits = answers.iter().filter(|answer| answer.json()["verdict"] == "wait").count();
        assert!((90..100).contains(&waits), "{waits}");
        let waited = |answer: &Response| answer.json()["waited_ms"].as_u64().expect("a number");
        let elapsed = |answer: &Response| answer.at.duration_since(began).as_millis() as u64;
        assert!(answers.iter().all(|answer| waited(answer) <= elapsed(answer) + 1));
        // By 20 ms at most before its turn: the first turn comes a little after `began`.
        let late = noise.late().as_millis() + 60;
        let is_planned = |(position, at): (usize, &u128)| {
            let planned = position as u128 * 20;
            *at + 20 >= planned && *at <= planned + late + 40
        };
        // On a quiet machine, most gaps are of 20 ms; a stall makes some longer, and those behind them shorter.
        let mut gaps: Vec<u128> = left.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        let stall = noise.worst().as_millis();
        let is_gap = |gap: u128, slack: u128| gap + slack >= 20 && gap <= 20 + slack;
        let is_even = is_gap(gaps[gaps.len() / 2], 2 + stall)
            && is_gap(gaps[9], 10 + stall)
            && is_gap(gaps[89], 10 + stall);
        if !is_even || !left.iter().enumerate().all(is_planned) {
            assert!(noise.worst() > ms(50), "gaps {gaps:?}, stall {stall} ms, left at {left:?}");
            return None;
        }
        Some(())
    });
}

#[test]
fn a_call_that_would_wait_too_long_is_refused_at_once_and_takes_no_place() {
    let gateway =
        start("limits: { sms: { algorithm: leaky_bucket, key: global, rate: 1/10s, burst: 1, queue: 5 } }");
    let ask = |wait: &str| check(&gateway, &json!({ "limits": "sms", "wait": wait }));
    ask("0s").expect(200);
    for (wait, retry) in [("0s", 8_000..=10_000), ("2s", 6_000..=8_000)] {
        let refused = ask(wait).expect(429).json();
        assert_eq!(refused["limit"], "sms");
        let retry_after = refused["retry_after_ms"].as_u64().expect("a number");
        assert!(retry.contains(&retry_after), "{retry_after}");
    }
    assert_eq!(gateway.metric("sluicegate_queue_depth", &[]), 0.0);
}

#[test]
fn callers_that_hang_up_give_their_places_up() {
    let gateway = start(
        "limits: { sms: { algorithm: leaky_bucket, key: global, rate: 1/2s, burst: 1, queue: 50, max_wait: none } }",
    );
    let body = json!({ "limits": "sms", "wait": "3m" }).to_string();
    check(&gateway, &json!({ "limits": "sms" })).expect(200);
    let mut leaving: Vec<Client> = (0..40).map(|_| Client::connect(service(&gateway))).collect();
    for client in &mut leaving {
        client.send(post("/check", body.as_bytes()).bytes());
    }
    gateway.wait_queued(40);
    let mut last = Client::connect(service(&gateway));
    last.send(post("/check", body.as_bytes()).bytes());
    gateway.wait_queued(41);
    drop(leaving);
    // Behind 40 others it would have waited 82 seconds.
    let answer = last.response_within(ms(6_000)).expect("an answer").expect(200);
    assert_eq!(answer.json()["verdict"], "wait");
    eventually("an empty queue", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
}

#[test]
fn callers_wait_for_slots() {
    let gateway =
        start("limits: { jobs: { algorithm: concurrency, key: global, max_concurrent: 1, queue: 5 } }");
    let lease = lease_of(&check(&gateway, &json!({ "limits": "jobs" })).expect(200));
    // Without a wait it does not stand in the queue.
    check(&gateway, &json!({ "limits": "jobs" })).expect(429);
    let mut waiting = Client::connect(service(&gateway));
    let body = json!({ "limits": "jobs", "wait": "30s" }).to_string();
    waiting.send(post("/check", body.as_bytes()).bytes());
    gateway.wait_queued(1);
    release(&gateway, &lease).expect(200);
    let next = waiting.response().expect(200);
    assert_eq!(next.json()["verdict"], "wait");
    let late = check(&gateway, &json!({ "limits": "jobs", "wait": "300ms" })).expect(429).json();
    assert!(late["waited_ms"].as_u64().is_some_and(|ms| (300..3_000).contains(&ms)), "{late}");
    release(&gateway, &lease_of(&next)).expect(200);
    assert_eq!(gateway.metric("sluicegate_queue_depth", &[]), 0.0);
}

/// Waiting callers count against `server.max_waiting`, as requests do, and hold little memory.
#[test]
fn ten_thousand_waiting_callers_are_bounded() {
    raise_descriptors();
    let gateway = start(&format!(
        "{}\nserver: {{ max_waiting: 10000, workers: 2 }}",
        "limits: { sms: { algorithm: concurrency, key: global, max_concurrent: 1, queue: 20000, max_wait: none } }"
    ));
    let resident = || {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", gateway.pid())).expect("statm");
        statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4_096
    };
    check(&gateway, &json!({ "limits": "sms", "lease_for": "1h" })).expect(200);
    let before = resident();
    // 100 connections of HTTP/2 with 101 streams each.
    let body = json!({ "limits": "sms", "wait": "1h" }).to_string();
    let length = body.len().to_string();
    let fields = h2_raw::request("POST", "/check", &[("content-length", &length)]);
    let mut connections = Vec::new();
    for _ in 0..100 {
        let mut h2 = H2::open(service(&gateway));
        for stream in 0..101_u32 {
            // HEADERS with END_HEADERS, then DATA with END_STREAM.
            h2.send(1, 4, stream * 2 + 1, &h2_raw::block(&fields));
            h2.send(0, 1, stream * 2 + 1, body.as_bytes());
        }
        connections.push(h2);
    }
    gateway.wait_queued(10_000);
    let taken = resident().saturating_sub(before);
    assert!(taken < 200 << 20, "{} MiB", taken >> 20);
    let refused = check(&gateway, &json!({ "limits": "sms", "wait": "1h" })).expect(503).json();
    assert_eq!(refused["error"], "too_many_waiting");
    drop(connections);
    eventually("an empty queue", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
}
