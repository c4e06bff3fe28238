//! `obey`: an upstream says that it has had enough, and its requests stop.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

/// A gateway in front of `upstream` that obeys it, with more lines.
fn obeying_gateway(upstream: &Upstream, obey: &str, location: &str) -> Gateway {
    Gateway::start(&obeying(upstream, obey, location))
}

fn obeying(upstream: &Upstream, obey: &str, location: &str) -> String {
    format!(
        "upstreams: {{ app: {{ servers: \"{}\", obey: {obey} }} }}\n\
         locations: [{{ path: /, upstream: app{location} }}]\n",
        upstream.addr()
    )
}

/// An upstream that refuses its first request with these header fields, and answers all others.
fn refusing_once(status: u16, headers: &'static [(&'static str, &'static str)]) -> Upstream {
    let is_first = AtomicBool::new(true);
    Upstream::new(move |_| match is_first.swap(false, Relaxed) {
        true => Reply::with(status, headers, "had enough"),
        false => Reply::text("well"),
    })
}

fn stops(gateway: &Gateway, what: &str) -> f64 {
    gateway.metric(&format!("sluicegate_upstream_{what}"), &["upstream=\"app\""])
}

fn explain(gateway: &Gateway) -> serde_json::Value {
    let query = post("/explain", br#"{"method": "GET", "url": "/"}"#).header("Accept", "application/json");
    gateway.ask_admin(&query).expect(200).json()
}

const QUEUE: &str =
    ", limits: { key: global, algorithm: leaky_bucket, rate: 100/s, queue: 200, max_wait: 10s }";

/// The response that begins the stop is passed on untouched; the next request is rejected in its name with the exact
/// time, and the upstream does not see it.
#[test]
fn a_refusal_stops_the_requests_behind_it() {
    let upstream = refusing_once(503, &[("Retry-After", "2"), ("X-Own", "yes")]);
    let gateway = obeying_gateway(&upstream, "{ status: [429, 503] }", "");
    let first = gateway.get("/").expect(503);
    assert_eq!((first.text().as_str(), first.header("retry-after").as_deref()), ("had enough", Some("2")));
    assert_eq!(first.header("x-own").as_deref(), Some("yes"));
    let asked = Instant::now();
    let rejected = gateway.get("/").expect(503);
    let body = rejected.json();
    assert_eq!(body["detail"], "upstream app takes no requests now");
    let left = rejected.retry_after_ms();
    assert!((1_000..=2_000).contains(&left), "{left}");
    assert!(["1", "2"].contains(&rejected.header("retry-after").unwrap().as_str()));
    assert_eq!(upstream.count(), 1);
    assert_eq!((stops(&gateway, "stops_total"), stops(&gateway, "stop_rejections_total")), (1.0, 1.0));
    assert_eq!(stops(&gateway, "stopped"), 1.0);
    let shown = gateway.admin_get("/upstreams/app").expect(200).json();
    assert_eq!((&shown["stop"]["stops"], &shown["stop"]["rejected"]), (&1.into(), &1.into()));
    let explained = explain(&gateway);
    assert_eq!(explained["stop"]["upstream"], "app");
    assert_eq!(explained["verdict"]["cause"], "upstream_stop");
    assert_eq!(explained["verdict"]["status"], 503);
    let lines = gateway.wait_log(2);
    let line = lines.iter().find(|line| line["verdict"] == "reject").expect("a rejection");
    assert_eq!(line["error"], "stopped by the upstream");
    gateway.wait_stderr("the upstream refuses requests and is obeyed");
    thread::sleep((asked + ms(left + 20)).saturating_duration_since(Instant::now()));
    assert_eq!(gateway.get("/").expect(200).text(), "well");
    assert_eq!(stops(&gateway, "stopped"), 0.0);
}

/// A rejected request charges no limit.
#[test]
fn a_stop_charges_no_limit() {
    let upstream = refusing_once(429, &[("Retry-After", "1")]);
    let gateway = obeying_gateway(&upstream, "{}", ", limits: { key: global, rate: 3/1h }");
    gateway.get("/").expect(429);
    (0..20).for_each(|_| assert!(gateway.get("/").expect(429).text().contains("takes no requests now")));
    thread::sleep(ms(1_100));
    gateway.get("/").expect(200);
}

/// Where a leaky bucket stands in front, requests wait for the end of the stop, those behind the first at a third of
/// the pace; one that hangs up leaves.
#[test]
fn requests_wait_for_the_end_of_a_stop_in_a_queue() {
    let upstream = refusing_once(429, &[("Retry-After", "2")]);
    let gateway = obeying_gateway(&upstream, "{}", QUEUE);
    let start = Instant::now();
    gateway.get("/first").expect(429);
    let mut clients: Vec<Client> = (0..5).map(|_| gateway.client()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(get(&format!("/{index}")).bytes());
        eventually("it is held", || stops(&gateway, "held_total") == (index + 1) as f64);
    }
    drop(clients.remove(1));
    let explained = explain(&gateway);
    assert_eq!(
        (&explained["verdict"]["outcome"], &explained["stop"]["status"]),
        (&"wait".into(), &429.into())
    );
    for client in &mut clients {
        client.response().expect(200);
    }
    assert!(start.elapsed() >= ms(1_900), "{:?}", start.elapsed());
    assert_eq!(upstream.targets(), ["/first", "/0", "/2", "/3", "/4"]);
    assert_eq!(stops(&gateway, "stop_rejections_total"), 0.0);
    eventually("nothing waits", || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0);
}

/// Requests that were already in the queue of the bucket when the stop began are held as well.
#[test]
fn requests_in_the_bucket_are_not_sent_during_a_stop() {
    let upstream = refusing_once(429, &[("Retry-After", "1")]);
    let limit = ", limits: { key: global, algorithm: leaky_bucket, rate: 10/s, queue: 20, max_wait: 10s }";
    let gateway = obeying_gateway(&upstream, "{}", limit);
    let plan = (0..6).map(|_| get("/"));
    let shots = volley(gateway.addr(), plan);
    let seen = upstream.requests();
    let gap = seen[1].at - seen[0].at;
    assert!(gap >= ms(990), "{gap:?}");
    let answered = shots.iter().filter(|shot| shot.response.status == 200).count();
    assert_eq!((answered, seen.len()), (5, 6));
}

/// A wait that would be longer than `max_wait` or the timeout of the location is rejected at once, with the status of
/// the upstream.
#[test]
fn a_stop_longer_than_the_wait_rejects_at_once() {
    for location in [
        ", limits: { key: global, algorithm: leaky_bucket, rate: 100/s, queue: 200, max_wait: 1s }",
        ", timeout: 1s, limits: { key: global, algorithm: leaky_bucket, rate: 100/s, queue: 200 }",
        ", limits: { key: global, algorithm: leaky_bucket, rate: 100/s, queue: 0 }",
    ] {
        let upstream = refusing_once(429, &[("Retry-After", "5")]);
        let gateway = obeying_gateway(&upstream, "{}", location);
        gateway.get("/").expect(429);
        let start = Instant::now();
        let rejected = gateway.get("/").expect(429);
        assert!(start.elapsed() < ms(900), "{:?}", start.elapsed());
        assert!((3_500..=5_000).contains(&rejected.retry_after_ms()), "{}", rejected.retry_after_ms());
        assert_eq!(upstream.count(), 1);
    }
}

/// A stop that begins while requests wait rejects those that it would hold too long.
#[test]
fn a_longer_stop_rejects_those_that_wait() {
    let replies = AtomicU32::new(0);
    let upstream = Upstream::new(move |_| match replies.fetch_add(1, Relaxed) {
        0 => Reply::with(429, &[("Retry-After", "1")], "no"),
        1 => Reply::with(429, &[("Retry-After", "30")], "no"),
        _ => Reply::text("well"),
    });
    let limit = ", limits: { key: global, algorithm: leaky_bucket, rate: 100/s, queue: 200, max_wait: 4s }";
    let gateway = obeying_gateway(&upstream, "{}", limit);
    gateway.get("/").expect(429);
    let shots = volley(gateway.addr(), (0..5).map(|_| get("/")));
    let late: Vec<_> =
        shots.iter().filter(|shot| shot.response.text().contains("takes no requests")).collect();
    assert_eq!((late.len(), upstream.count()), (4, 2));
    for shot in late {
        assert!(shot.response.retry_after_ms() > 25_000 && shot.answered < ms(3_900), "{:?}", shot.answered);
    }
}

/// With a key, one client's refusals do not stop the others.
#[test]
fn keys_stop_apart() {
    let upstream = Upstream::new(|seen| match seen.header("x-tenant").as_deref() {
        Some("greedy") => Reply::with(429, &[("Retry-After", "9")], "no"),
        _ => Reply::text("well"),
    });
    let gateway = obeying_gateway(&upstream, "{ key: \"header:X-Tenant\" }", "");
    let ask = |tenant: &str| gateway.ask(&get("/").header("X-Tenant", tenant));
    assert_eq!(ask("greedy").expect(429).text(), "no");
    assert!(ask("greedy").expect(429).text().contains("takes no requests now"));
    (0..5).for_each(|index| drop(ask(&format!("other{index}")).expect(200)));
    assert_eq!(upstream.count(), 6);
    let twice = get("/").header("X-Tenant", "a").header("X-Tenant", "b");
    gateway.ask(&twice).expect(400);
}

/// Fields about rates in any response stop the next request when nothing is left.
#[test]
fn nothing_left_is_a_stop() {
    for headers in [
        &[("RateLimit", "\"minute\";r=0;t=7")][..],
        &[("RateLimit-Remaining", "0"), ("RateLimit-Reset", "7")],
        &[("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "7")],
    ] {
        let upstream = refusing_once(200, headers);
        let gateway = obeying_gateway(&upstream, "{ at_most: 5s }", "");
        assert_eq!(gateway.get("/").expect(200).text(), "had enough");
        let rejected = gateway.get("/").expect(429);
        assert!((3_500..=5_000).contains(&rejected.retry_after_ms()), "{headers:?}");
    }
    let upstream = refusing_once(200, &[("RateLimit", "\"minute\";r=1;t=7")]);
    let gateway = obeying_gateway(&upstream, "{}", "");
    (0..3).for_each(|_| drop(gateway.get("/").expect(200)));
}

/// Absurd times are capped or count as none; no response makes the gateway fail.
#[test]
fn absurd_times_are_bounded() {
    for value in ["100000000000000000000", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        let time: &'static str = value;
        let upstream = Upstream::new(move |_| Reply::with(429, &[("Retry-After", time)], "no"));
        let gateway = obeying_gateway(&upstream, "{ at_most: 1h }", "");
        gateway.get("/").expect(429);
        let left = gateway.get("/").expect(429).retry_after_ms();
        assert!((3_500_000..=3_600_000).contains(&left), "{value}: {left}");
    }
    for value in ["-5", "Sun, 06 Nov 1994 08:49:37 GMT", "0", "soon", "\u{1}\u{7f}"] {
        let time: &'static str = value;
        let upstream = Upstream::new(move |_| Reply::with(429, &[("Retry-After", time)], "no"));
        let gateway = obeying_gateway(&upstream, "{}", "");
        // Control characters make the response invalid.
        assert!([429, 502].contains(&gateway.get("/").status), "{value}");
        let next = gateway.get("/");
        assert!(next.status == 502 || next.retry_after_ms() <= 1_000, "{value}");
    }
}

/// Without `obey` everything is passed on, and a refusal stops nothing.
#[test]
fn nothing_stops_without_obey() {
    let upstream = Upstream::new(|_| Reply::with(429, &[("Retry-After", "60")], "no"));
    let gateway = forwarding(&upstream, "");
    for _ in 0..5 {
        let response = gateway.get("/").expect(429);
        assert_eq!((response.text().as_str(), response.header("retry-after").as_deref()), ("no", Some("60")));
    }
    assert_eq!(upstream.count(), 5);
    assert!(gateway.admin_get("/upstreams").expect(200).json()["upstreams"][0]["stop"].is_null());
}

/// A reload keeps the stop of an upstream with the same name, and one that ends meanwhile just ends.
#[test]
fn a_reload_keeps_a_stop() {
    let upstream = refusing_once(429, &[("Retry-After", "2")]);
    let gateway = obeying_gateway(&upstream, "{}", "");
    let start = Instant::now();
    gateway.get("/").expect(429);
    gateway.change(&obeying(&upstream, "{ at_most: 30s }", ", timeout: 20s"));
    assert!(gateway.get("/").expect(429).text().contains("takes no requests now"));
    while start.elapsed() < ms(2_200) {
        gateway.change(&obeying(&upstream, "{ at_most: 20s }", ", timeout: 10s"));
        thread::sleep(ms(50));
    }
    gateway.get("/").expect(200);
    gateway.change(&obeying(&upstream, "none", ""));
    gateway.get("/").expect(200);
}

/// An obeyed status is neither an error of its server nor tried again.
#[test]
fn obeyed_statuses_neither_eject_nor_are_retried() {
    let upstream = Upstream::new(|_| Reply::with(503, &[("Retry-After", "1")], "no"));
    let other = Upstream::new(|_| Reply::with(503, &[("Retry-After", "1")], "no"));
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ servers: [\"{}\", \"{}\"], eject: {{ errors: 1, status: 503 }}, \
         retries: {{ attempts: 3, when: 503 }}, obey: {{ status: 503, at_most: 20ms }} }} }}\n\
         locations: [{{ path: /, upstream: app }}]\n",
        upstream.addr(),
        other.addr()
    ));
    for _ in 0..4 {
        gateway.get("/").expect(503);
        thread::sleep(ms(60));
    }
    assert!(upstream.count() + other.count() <= 4);
    assert_eq!(gateway.metric("sluicegate_upstream_ejections_total", &[]), 0.0);
    assert_eq!(gateway.metric("sluicegate_upstream_retries_total", &[]), 0.0);
    gateway.wait_stderr("W009");
}

/// A stop applies to requests that come in place of a rejection as well.
#[test]
fn a_degraded_request_is_stopped_too() {
    let upstream = refusing_once(429, &[("Retry-After", "5")]);
    let gateway = Gateway::start(&format!(
        "upstreams: {{ spare: {{ servers: \"{}\", obey: {{}} }} }}\n\
         locations: [{{ path: /, upstream: demo, \
         limits: {{ key: global, rate: 1/1h, on_reject: {{ degrade: spare }} }} }}]\n",
        upstream.addr()
    ));
    gateway.get("/").expect(200);
    assert_eq!(gateway.get("/").expect(429).text(), "had enough");
    assert!(gateway.get("/").expect(429).text().contains("upstream spare takes no requests now"));
    assert_eq!(upstream.count(), 1);
}

/// The bucket of a provider: its rate, its tokens, and what it accepted and refused.
struct Bucket {
    rate: AtomicU64,
    tokens: Mutex<(f64, Instant)>,
    accepted: AtomicU64,
    refused: AtomicU64,
}

impl Bucket {
    fn take(&self) -> bool {
        let rate = self.rate.load(Relaxed) as f64;
        let (tokens, at) = &mut *self.tokens.lock().unwrap();
        let now = Instant::now();
        *tokens = (*tokens + now.duration_since(*at).as_secs_f64() * rate).min(rate);
        *at = now;
        let is_accepted = *tokens >= 1.0;
        *tokens -= f64::from(u8::from(is_accepted));
        (if is_accepted { &self.accepted } else { &self.refused }).fetch_add(1, Relaxed);
        is_accepted
    }
}

/// A provider of 400/s whose limit falls to 200/s for a while, in real time and with generous margins; the virtual
/// clock of `sluicegate_proxy::service::pipeline` holds the exact figures.
#[test]
fn a_provider_with_its_own_bucket_refuses_little() {
    let bucket = Arc::new(Bucket {
        rate: AtomicU64::new(400),
        tokens: Mutex::new((400.0, Instant::now())),
        accepted: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
    let own = bucket.clone();
    let upstream = Upstream::new(move |_| match own.take() {
        true => Reply::text("well"),
        false => Reply::with(429, &[("Retry-After", "1")], "no"),
    });
    let limit = ", limits: { key: global, algorithm: leaky_bucket, rate: 400/s, queue: 400, max_wait: 3s }";
    let gateway = obeying_gateway(&upstream, "{}", limit);
    let phases = [(400, 3), (200, 8)];
    let end = Instant::now() + Duration::from_secs(11);
    let mut results = Vec::new();
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let mut client = gateway.client();
                while Instant::now() < end {
                    let response = client.ask(&get("/"));
                    if response.status != 200 {
                        thread::sleep(ms(50));
                    }
                }
            });
        }
        for (rate, seconds) in phases {
            bucket.rate.store(rate, Relaxed);
            let before = (bucket.accepted.load(Relaxed), bucket.refused.load(Relaxed));
            thread::sleep(Duration::from_secs(seconds));
            let accepted = bucket.accepted.load(Relaxed) - before.0;
            let refused = bucket.refused.load(Relaxed) - before.1;
            results.push((accepted as f64 / (rate * seconds) as f64, refused as f64 / accepted as f64));
        }
    });
    println!("throughput and refusals: {results:?}");
    assert!(results.iter().all(|(throughput, refused)| *throughput > 0.7 && *refused < 0.02), "{results:?}");
}
