//! Overload: the cost of many clients for others, and the bound on their memory.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::floods::{cpu, status_kib};
use crate::support::h2_raw::*;
use crate::support::*;

/// The 99th percentile of the request durations of a client on one connection.
fn p99(gateway: &Gateway, count: usize) -> Duration {
    let mut client = gateway.client();
    let mut took: Vec<Duration> = (0..count)
        .map(|_| {
            let start = Instant::now();
            client.ask(&get("/")).expect(200);
            start.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[count * 99 / 100]
}

/// 1,000 idle connections and 200 slow clients of three kinds delay no other client.
#[test]
fn idle_and_slow_clients_delay_no_other_client() {
    raise_descriptors();
    let upstream = Upstream::with_large(1_000_000);
    let gateway = forwarding(&upstream, "access_log: none");
    let addr = gateway.addr();
    p99(&gateway, 100);
    let before = p99(&gateway, 500);
    let idle: Vec<Client> = (0..1000).map(|_| Client::connect(addr)).collect();
    let mut slow: Vec<Client> = (0..200)
        .map(|n| if n % 3 == 2 { Client::connect_narrow(addr) } else { Client::connect(addr) })
        .collect();
    for (n, client) in slow.iter_mut().enumerate() {
        client.send(match n % 3 {
            0 => "GET / HTTP/1.1\r\nHost: a\r\n",
            1 => "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
            _ => "GET /large HTTP/1.1\r\nHost: a\r\n\r\n",
        });
    }
    let ended = AtomicBool::new(false);
    let noise = Noise::listen();
    let during = thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                for (n, client) in slow.iter_mut().enumerate() {
                    match n % 3 {
                        0 => client.send("X-Slow: 1\r\n"),
                        1 => client.send("x"),
                        _ => drop(client.skip(10, ms(50))),
                    }
                }
                thread::sleep(ms(100));
            }
        });
        let during: Duration = p99(&gateway, 2000);
        ended.store(true, Relaxed);
        during
    });
    assert!(during < 2 * before + noise.late(), "{before:?} before, {during:?} beside them");
    // No client was rejected: the slow ones are served as well, and so are the idle ones when they send.
    assert_eq!(gateway.metric("sluicegate_connections", &[]), 1200.0);
    for mut client in idle.into_iter().take(50) {
        client.ask(&get("/")).expect(200);
    }
    for (n, mut client) in slow.into_iter().enumerate().filter(|(n, _)| n % 3 == 0).take(20) {
        client.send("\r\n");
        assert_eq!(client.response().status, 200, "{n}");
    }
}

/// Waiters, floods of heads and answers without readers, all together, stay below
/// 256 MiB, and the limits hold.
#[test]
fn memory_stays_below_its_ceiling() {
    raise_descriptors();
    let upstream = Upstream::with_large(2_000_000);
    let gateway = Gateway::start(&format!(
        "access_log: none\nserver: {{ max_waiting: 2000 }}\nlimits:\n  \
           line: {{ key: header:x-key, algorithm: leaky_bucket, rate: 1/m, queue: 50, max_wait: none }}\n  \
           five: {{ key: global, rate: 5/h }}\nlocations:\n  - {{ path: /line, upstream: \"{0}\", limits: line }}\n  \
           - {{ path: /five, upstream: \"{0}\", limits: five }}\n  - {{ path: /, upstream: \"{0}\" }}\n",
        upstream.url()
    ));
    let addr = gateway.addr();
    // 500 keys with ten waiters each would be 5,000; at most 2,000 may wait.
    let mut waiters = Vec::new();
    for n in 0..2400 {
        let large = if n % 12 == 0 { 60_000 } else { 10 };
        let mut client = gateway.client();
        client.send(get("/line").header("X-Key", n % 240).header("X-Fill", "y".repeat(large)).bytes());
        waiters.push(client);
    }
    // Endless heads, chunk extensions and chunks.
    for piece in ["X-Name: value\r\n", "Y"] {
        for _ in 0..20 {
            let mut client = gateway.client();
            client.send("GET / HTTP/1.1\r\nHost: a\r\n");
            let flood = piece.repeat(100_000);
            let _ = client.try_send(&flood);
        }
    }
    for _ in 0..20 {
        let mut client = gateway.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;");
        let _ = client.try_send("z".repeat(200_000));
    }
    // Large answers without a window.
    let mut readers: Vec<H2> = (0..4).map(|_| H2::open_with(addr, &[(4, 0)])).collect();
    for h2 in &mut readers {
        h2.reads = false;
        for n in 0..50 {
            h2.ask(2 * n + 1, &request("GET", "/large", &[]));
        }
    }
    let admitted = (0..50).filter(|_| gateway.get("/five").status == 200).count();
    eventually("the answers", || {
        upstream.targets().iter().filter(|target| *target == "/large").count() == 200
    });
    assert_eq!(admitted, 5);
    thread::sleep(ms(500));
    let queued = gateway.metric("sluicegate_queue_depth", &[]);
    assert!((1300.0..=2000.0).contains(&queued), "{queued} wait");
    assert!(gateway.metric("sluicegate_faults_total", &["too_many_waiting"]) > 0.0);
    gateway.get("/").expect(200);
    let peak = status_kib(&gateway, "VmHWM");
    assert!(peak < 256 * 1024, "{peak} KiB at most");
    drop((waiters, readers));
    eventually("all places", || gateway.metric("sluicegate_queue_depth", &[]) == 0.0);
    gateway.get("/").expect(200);
}

/// Streams count as requests in flight one by one, and a rejection beyond `max_in_flight` costs less than an answer.
#[test]
fn shedding_costs_less_than_serving() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/hold", &gate);
    let gateway = forwarding(&upstream, "access_log: none\nserver: { max_in_flight: 3 }");
    let mut client = gateway.client();
    let mut cost = |status: u16| {
        let before = cpu(&gateway);
        for _ in 0..1500 {
            client.ask(&get("/")).expect(status);
        }
        cpu(&gateway) - before
    };
    cost(200);
    let serving = cost(200);
    let mut h2 = H2::open(gateway.addr());
    for stream in [1, 3, 5] {
        h2.ask(stream, &request("GET", "/hold", &[]));
    }
    eventually("three in flight", || gateway.metric("sluicegate_requests_in_flight", &[]) == 3.0);
    assert!(matches!(h2.get(7, "/"), Outcome::Answered(503, _)));
    let shedding = cost(503);
    assert!(shedding < serving, "{shedding:?} to refuse what {serving:?} answer");
    gate.open();
    assert!(matches!(h2.outcome(5), Outcome::Answered(200, _)));
    assert!(matches!(h2.get(9, "/"), Outcome::Answered(200, _)));
}
