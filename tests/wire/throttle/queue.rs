//! leaky_bucket: requests wait their turn, in order and on schedule.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::volley::{answered, count};
use crate::support::*;

/// One location in front of `upstream` with one inline limit.
fn limited_gateway(upstream: &Upstream, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\", limits: {{ key: global, {limit} }} }}\n",
        upstream.url()
    ))
}

/// Sends `/0`, `/1` … on a connection each, after the previous one has been judged to wait.
fn enqueue(gateway: &Gateway, count: u32) -> Vec<Client> {
    let clients = (0..count).map(|n| {
        let mut client = gateway.client();
        client.send(get(&format!("/{n}")).bytes());
        let judged = || gateway.metric("sluicegate_decisions_total", &[]);
        eventually(&format!("a decision on request {n}"), || judged() == f64::from(n + 1));
        client
    });
    clients.collect()
}

/// Arrivals every 50 ms; all but the first 20 ms late, which keeps them clear of the 100 ms steps.
fn every_50_ms(count: u64) -> impl Iterator<Item = (Duration, Ask)> {
    (0..count).map(|k| (ms(50 * k + if k > 0 { 20 } else { 0 }), get("/")))
}

/// With 10/s and a queue of 5, twenty at once leave at 0 to 500 ms; the rest is rejected at once.
#[test]
fn a_queue_releases_on_schedule_and_rejects_the_rest_at_once() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 10/s, queue: 5");
    let noise = Noise::listen();
    let shots = volley(gateway.addr(), (0..20).map(|_| get("/")));
    noise.assert_schedule(&answered(&shots, 200), &[0, 100, 200, 300, 400, 500]);
    assert_eq!(count(&shots, 429), 14);
    for shot in shots.iter().filter(|s| s.response.status == 429) {
        let took = shot.answered - shot.sent;
        assert!(took < ms(20) + noise.late(), "a rejection took {took:?}");
    }
    assert_eq!(upstream.count(), 6);
}

/// The contract's vector: of ten at once six leave, 100 ms apart, and each rejection names the exact time.
#[test]
fn six_of_ten_leave_and_the_others_get_the_exact_time() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 10/s, queue: 5");
    let noise = Noise::listen();
    let shots = volley(gateway.addr(), (0..10).map(|_| get("/")));
    noise.assert_schedule(&answered(&shots, 200), &[0, 100, 200, 300, 400, 500]);
    let rejected: Vec<_> = shots.iter().filter(|s| s.response.status == 429).collect();
    assert_eq!(rejected.len(), 4);
    for shot in rejected {
        // A slot in the queue is free after the next departure: 100 ms after the first request.
        let free_at = shot.answered + ms(shot.response.retry_after_ms());
        assert!(free_at + ms(5) >= ms(100) && free_at <= ms(105) + noise.late(), "free at {free_at:?}");
        assert_eq!(shot.response.header("retry-after").as_deref(), Some("1"));
    }
}

/// `burst: 4, queue: 2` lets four through at once and two wait.
#[test]
fn a_burst_leaves_at_once_before_the_queue_forms() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 10/s, burst: 4, queue: 2");
    let noise = Noise::listen();
    let shots = volley(gateway.addr(), (0..20).map(|_| get("/")));
    noise.assert_schedule(&answered(&shots, 200), &[0, 0, 0, 0, 100, 200]);
    assert_eq!(count(&shots, 429), 14);
}

/// Forty arrivals every 50 ms against 10/s and a queue of 5: 25 pass, one every 100 ms.
#[test]
fn a_steady_overload_leaves_at_exactly_the_rate() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 10/s, queue: 5");
    let noise = Noise::listen();
    let shots = volley_at(gateway.addr(), every_50_ms(40));
    let schedule: Vec<u64> = (0..25).map(|n| 100 * n).collect();
    noise.assert_schedule(&answered(&shots, 200), &schedule);
    assert_eq!(count(&shots, 429), 15);
}

/// The same arrivals without waiting: the first eleven untouched, then one per 100 ms, 25 in all.
#[test]
fn a_steady_overload_of_a_bucket_passes_the_same_number() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "rate: 10/s, burst: 6");
    let shots = volley_at(gateway.addr(), every_50_ms(40));
    let seen = statuses(&shots);
    assert!(seen[..11].iter().all(|&s| s == 200), "{seen:?}");
    assert!(seen[11..].chunks(2).all(|pair| pair != [200, 200]), "{seen:?}");
    assert_eq!(count(&shots, 200), 25, "{seen:?}");
}

/// 30/m with two at once and one waiting: the third takes two seconds, a fourth is rejected meanwhile.
#[test]
fn slow_rates_wait_for_seconds() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 30/m, burst: 2, queue: 1");
    let noise = Noise::listen();
    let plan = [0, 10, 20, 300].map(|at| (ms(at), get("/")));
    let shots = volley_at(gateway.addr(), plan);
    assert_eq!(statuses(&shots), [200, 200, 200, 429]);
    noise.assert_schedule(&answered(&shots, 200), &[0, 10, 2000]);
}

/// One busy client is slowed to the rate, neither less nor more.
#[test]
fn a_single_busy_client_is_paced_to_the_rate() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 40/s, queue: 40");
    let noise = Noise::listen();
    let mut client = gateway.client();
    let start = Instant::now();
    for _ in 0..80 {
        client.ask(&get("/")).expect(200);
    }
    let took = start.elapsed();
    // 79 gaps of 25 ms.
    assert!(took >= ms(1950) && took <= ms(2050) + noise.late(), "took {took:?}");
}

/// Each key waits behind its own requests only.
#[test]
fn keys_do_not_wait_for_each_other() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\", limits: {{ key: header:x-key,
           algorithm: leaky_bucket, rate: 2/s, queue: 10 }} }}\n",
        upstream.url()
    ));
    let noise = Noise::listen();
    let plan = ["foo", "foo", "bar", "bar"].map(|key| get("/").header("X-Key", key));
    let shots = volley(gateway.addr(), plan);
    let of = |range: std::ops::Range<usize>| answered(&shots[range], 200);
    noise.assert_schedule(&of(0..2), &[0, 500]);
    noise.assert_schedule(&of(2..4), &[0, 500]);
}

/// A request with a computed wait beyond `max_wait` is rejected at once, with the time to retry.
#[test]
fn no_request_waits_beyond_max_wait() {
    let upstream = Upstream::ok();
    let gateway =
        limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 5/s, queue: 50, max_wait: 500ms");
    let noise = Noise::listen();
    let shots = volley(gateway.addr(), (0..6).map(|_| get("/")));
    noise.assert_schedule(&answered(&shots, 200), &[0, 200, 400]);
    for shot in shots.iter().filter(|s| s.response.status == 429) {
        let came_back = shot.answered + ms(shot.response.retry_after_ms());
        // The next would leave at 600 ms: it may come from 100 ms on.
        assert!(came_back + ms(5) >= ms(100) && came_back <= ms(105) + noise.late(), "{came_back:?}");
    }
    assert_eq!(count(&shots, 429), 3);
    assert_eq!(upstream.count(), 3, "a rejected request reached the upstream");
}

/// A queue is first come, first served.
#[test]
fn the_queue_keeps_the_order_of_arrival() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 20/s, queue: 30");
    let start = Instant::now();
    let mut clients = enqueue(&gateway, 20);
    let last = clients.pop().expect("twenty clients").response().expect(200);
    let expected: Vec<_> = (0..20).map(|n| format!("/{n}")).collect();
    assert_eq!(upstream.targets(), expected);
    assert!(last.at - start >= ms(948), "the last one waited only {:?}", last.at - start);
}

/// The contract's vector: the waiter due at 200 ms hangs up, and everyone behind it moves up without a gap.
#[test]
fn when_a_waiter_leaves_the_others_move_up() {
    undisturbed(|| {
        let upstream = Upstream::ok();
        let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 10/s, queue: 5");
        let noise = Noise::listen();
        let start = Instant::now();
        let mut clients = enqueue(&gateway, 6);
        drop(clients.remove(2));
        if start.elapsed() > ms(150) {
            return None;
        }
        let seen = upstream.wait_for(5);
        let stayed = ["/0", "/1", "/3", "/4", "/5"];
        // A worker that stalls for a whole interval is overtaken by the next waiter's worker.
        if upstream.targets() != stayed && noise.late() > ms(100) {
            return None;
        }
        assert_eq!(upstream.targets(), stayed);
        let times: Vec<_> = seen.iter().map(|s| s.at - start).collect();
        noise.assert_schedule(&times, &[0, 100, 200, 300, 400]);
        Some(())
    });
}

/// Forty of fifty waiters vanish; the upstream sees only the ten that stayed, at the rate.
#[test]
fn waiters_that_hang_up_never_reach_the_upstream() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 5/s, queue: 50");
    let noise = Noise::listen();
    let mut clients: Vec<_> = (0..51).map(|_| gateway.client()).collect();
    let start = Instant::now();
    clients[0].send(get("/first").bytes());
    upstream.wait_for(1);
    for client in &mut clients[1..41] {
        client.send(get("/leaver").bytes());
    }
    for client in &mut clients[41..] {
        client.send(get("/stayer").bytes());
    }
    for (n, leaver) in clients.drain(1..41).enumerate() {
        // Half of them reset, half close in order.
        if n % 2 == 0 { leaver.reset() } else { drop(leaver) }
    }
    let seen = upstream.wait_for(11);
    assert!(seen[1..].iter().all(|s| s.target == "/stayer"), "{:?}", upstream.targets());
    let times: Vec<_> = seen.iter().map(|s| s.at - start).collect();
    noise.assert_schedule(&times, &[0, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000]);
}

/// The gateway notices a waiter's hang-up even behind pipelined bytes.
#[test]
fn a_waiter_with_pipelined_bytes_is_noticed_to_leave() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 2/s, queue: 5");
    gateway.get("/first").expect(200);
    let mut leaver = gateway.client();
    leaver.send([get("/leaver").bytes(), get("/behind").bytes()].concat());
    gateway.wait_queued(1);
    let mut stayer = gateway.client();
    stayer.send(get("/stayer").bytes());
    drop(leaver);
    stayer.response().expect(200);
    assert_eq!(upstream.targets(), ["/first", "/stayer"]);
}

/// It notices the hang-up of a waiting POST with an unread body as well.
#[test]
fn a_waiter_with_an_unread_body_is_noticed_to_leave() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 2/s, queue: 5");
    gateway.get("/first").expect(200);
    let mut leaver = gateway.client();
    leaver.send(post("/leaver", &[b'x'; 5000]).bytes());
    gateway.wait_queued(1);
    let mut stayer = gateway.client();
    stayer.send(get("/stayer").bytes());
    drop(leaver);
    stayer.response().expect(200);
    assert_eq!(upstream.targets(), ["/first", "/stayer"]);
}

/// A body sent before the wait began reaches the upstream whole after it.
#[test]
fn a_waiting_upload_arrives_whole() {
    let upstream = Upstream::ok();
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 5/s, queue: 5");
    gateway.get("/").expect(200);
    let body: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    gateway.ask(&post("/upload", &body)).expect(200);
    assert!(upstream.requests()[1].body == body, "the body changed on the way");
}

/// A delayed reply that is read late has the same length as an undelayed one.
#[test]
fn a_delayed_reply_is_as_long_as_any() {
    let body = "x".repeat(720_896);
    let upstream = Upstream::new(move |_| Reply::text(&body));
    let gateway = limited_gateway(&upstream, "algorithm: leaky_bucket, rate: 2/s, queue: 5");
    let mut first = gateway.client();
    let mut second = gateway.client();
    first.send(get("/").bytes());
    second.send(get("/").bytes());
    thread::sleep(ms(600));
    assert_eq!(first.response().expect(200).body.len(), 720_896);
    assert_eq!(second.response().expect(200).body.len(), 720_896);
}

/// A request without a location waits its turn before its 404; the requests behind it are not held up.
#[test]
fn an_unknown_path_takes_its_turn_like_any_other() {
    let gateway = Gateway::start(
        "limits: { slow: { key: global, algorithm: leaky_bucket, rate: 1/s, queue: 5 } }\n\
         server: { limits: slow }\n\
         locations:\n  - { path: /known, methods: GET, respond: { body: ok } }\n",
    );
    let start = Instant::now();
    gateway.get("/known").expect(200);
    let judged = || gateway.metric("sluicegate_decisions_total", &[]);
    let send = |bytes: Vec<u8>| {
        let (mut client, before) = (gateway.client(), judged());
        client.send(bytes);
        eventually("a decision", || judged() > before);
        client
    };
    let mut unknown = send(get("/unknown").bytes());
    let mut known = send(get("/known").bytes());
    let mut posted = send(post("/known", b"").bytes());
    for (client, status, at) in [(&mut unknown, 404, 1), (&mut known, 200, 2), (&mut posted, 405, 3)] {
        client.response().expect(status);
        assert!(start.elapsed() >= ms(1000 * at - 100), "{status} after {:?}", start.elapsed());
    }
}
