//! A concurrency limit that adapts to the capacity of a real backend.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::h2_raw::*;
use crate::support::*;

/// A backend that works on a number of requests at once and queues the others; its numbers may change.
#[derive(Clone)]
struct Backend {
    workers: Arc<AtomicUsize>,
    busy: Arc<(Mutex<usize>, Condvar)>,
    takes_ms: Arc<AtomicU64>,
}

impl Backend {
    fn new(workers: usize, takes_ms: u64) -> Backend {
        Backend {
            workers: Arc::new(AtomicUsize::new(workers)),
            busy: Arc::default(),
            takes_ms: Arc::new(AtomicU64::new(takes_ms)),
        }
    }

    fn work(&self) {
        let (busy, changed) = &*self.busy;
        let mut guard =
            changed.wait_while(busy.lock().unwrap(), |busy| *busy >= self.workers.load(Relaxed)).unwrap();
        *guard += 1;
        drop(guard);
        thread::sleep(ms(self.takes_ms.load(Relaxed)));
        *busy.lock().unwrap() -= 1;
        changed.notify_all();
    }

    fn upstream(&self) -> Upstream {
        let own = self.clone();
        Upstream::new(move |_| {
            own.work();
            Reply::text("ok")
        })
    }
}

/// The responses that clients got in a span.
#[derive(Debug, Default)]
struct Seen {
    answered: AtomicU64,
    rejected: AtomicU64,
    /// Of the responses, in microseconds.
    took_us: AtomicU64,
}

/// `clients` send one request after the other, and wait 20 ms after a rejection, until `stop`.
fn load<'s>(
    scope: &'s thread::Scope<'s, '_>,
    gateway: &'s Gateway,
    clients: usize,
    stop: &'s AtomicBool,
    seen: &'s Mutex<Arc<Seen>>,
) {
    for _ in 0..clients {
        scope.spawn(move || {
            let mut client = gateway.client();
            while !stop.load(Relaxed) {
                let began = Instant::now();
                let status = client.ask(&get("/")).status;
                let seen = seen.lock().unwrap().clone();
                if status == 200 {
                    seen.answered.fetch_add(1, Relaxed);
                    seen.took_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
                } else {
                    assert_eq!(status, 503);
                    seen.rejected.fetch_add(1, Relaxed);
                    thread::sleep(ms(20));
                }
            }
        });
    }
}

fn adaptive_gateway(upstream: &Upstream, max_concurrent: &str) -> Gateway {
    Gateway::start(&format!(
        "admin: 127.0.0.1:0\nlimits:\n  slots: {{ key: global, algorithm: concurrency, max_concurrent: {max_concurrent} }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: slots }}\n",
        upstream.url()
    ))
}

fn limit(gateway: &Gateway) -> u64 {
    let page = gateway.admin_get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with("sluicegate_concurrency_limit{limit=\"slots\"}"));
    let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("{page}"));
    value.parse().expect("a number")
}

/// The mean of some samples of the limit, and the responses that clients got meanwhile.
fn watch(gateway: &Gateway, seen: &Mutex<Arc<Seen>>, span: Duration) -> (u64, Arc<Seen>) {
    let own = Arc::<Seen>::default();
    *seen.lock().unwrap() = own.clone();
    let until = Instant::now() + span;
    let (mut sum, mut looks) = (0, 0);
    while Instant::now() < until {
        sum += limit(gateway);
        looks += 1;
        thread::sleep(ms(50));
    }
    (sum / looks, own)
}

/// Forty clients load a backend of ten workers: it is kept busy and fast. When it has only three, the limit
/// shrinks; when they return, the limit grows.
#[test]
fn the_limit_follows_the_capacity_of_the_backend() {
    let backend = Backend::new(10, 50);
    let upstream = backend.upstream();
    let gateway = adaptive_gateway(&upstream, "{ min: 1, max: 200 }");
    assert_eq!(limit(&gateway), 20, "where it begins");
    let (stop, seen) = (AtomicBool::new(false), Mutex::default());
    thread::scope(|scope| {
        load(scope, &gateway, 40, &stop, &seen);
        thread::sleep(Duration::from_secs(4));
        let (settled, own) = watch(&gateway, &seen, Duration::from_secs(5));
        let answered = own.answered.load(Relaxed);
        let took_ms = own.took_us.load(Relaxed) / answered.max(1) / 1_000;
        backend.workers.store(3, Relaxed);
        thread::sleep(Duration::from_secs(3));
        let (shrunk, _) = watch(&gateway, &seen, Duration::from_secs(3));
        backend.workers.store(10, Relaxed);
        thread::sleep(Duration::from_secs(6));
        let (back, _) = watch(&gateway, &seen, Duration::from_secs(4));
        stop.store(true, Relaxed);
        let summary =
            format!("{settled}, then {shrunk}, then {back}; {answered} in 5 s, {took_ms} ms each; {own:?}");
        // A busy machine adds latency; without a limit it would be 200 ms, with all forty in flight.
        assert!((7..=32).contains(&settled), "{summary}");
        assert!(answered >= 700 && took_ms < 170, "{summary}");
        assert!(shrunk <= 10 && shrunk * 3 < settled * 2, "{summary}");
        assert!(back > shrunk && (7..=60).contains(&back), "{summary}");
    });
    gateway.get("/").expect(200);
}

/// Timeouts shrink the limit to its floor; it recovers with the backend. `explain` and rejections name the
/// current limit.
#[test]
fn a_hanging_backend_shrinks_the_limit_until_it_recovers() {
    let backend = Backend::new(100, 5);
    let upstream = backend.upstream();
    let gateway = Gateway::start(&format!(
        "admin: 127.0.0.1:0\nupstreams: {{ app: {{ servers: [\"{}\"], timeouts: {{ response: 200ms }} }} }}\n\
         limits:\n  slots: {{ key: global, algorithm: concurrency, max_concurrent: {{ min: 2 }} }}\n\
         locations:\n  - {{ path: /, upstream: app, limits: slots }}\n",
        upstream.addr()
    ));
    let ask = |until: &dyn Fn() -> bool| {
        let deadline = Instant::now() + 3 * PATIENCE;
        while !until() {
            assert!(Instant::now() < deadline, "never came: {}", limit(&gateway));
            volley(gateway.addr(), (0..30).map(|_| get("/")));
        }
    };
    ask(&|| limit(&gateway) >= 20);
    backend.takes_ms.store(2_000, Relaxed);
    ask(&|| limit(&gateway) <= 2);
    let shots = volley(gateway.addr(), (0..30).map(|_| get("/")));
    let rejected = shots.iter().find(|shot| shot.response.status == 503).expect("a rejection");
    assert_eq!(rejected.response.json()["detail"], "limit slots: 2 to 1000 requests in flight");
    assert_eq!(rejected.response.header("retry-after").as_deref(), Some("1"));
    backend.takes_ms.store(5, Relaxed);
    ask(&|| limit(&gateway) >= 10);
}

/// Waits for such a limit, long enough for a busy machine; otherwise returns the last one.
fn wait_for_limit(gateway: &Gateway, is_it: impl Fn(u64) -> bool) -> Result<(), u64> {
    let deadline = Instant::now() + 3 * PATIENCE;
    loop {
        match limit(gateway) {
            limit if is_it(limit) => return Ok(()),
            limit if Instant::now() > deadline => return Err(limit),
            _ => thread::sleep(ms(20)),
        }
    }
}

/// Keep-alive clients that never use half of the limit overload a backend that loses workers: the limit
/// shrinks until it applies.
#[test]
fn an_unused_limit_applies_when_the_backend_becomes_slow() {
    let backend = Backend::new(100, 20);
    let upstream = backend.upstream();
    let gateway = adaptive_gateway(&upstream, "{ min: 1 }");
    let (stop, more, seen) = (AtomicBool::new(false), AtomicBool::new(false), Mutex::default());
    let outcomes = thread::scope(|scope| {
        load(scope, &gateway, 30, &stop, &seen);
        load(scope, &gateway, 60, &more, &seen);
        let grown = wait_for_limit(&gateway, |limit| limit > 100);
        // From here on less than half of the limit is used.
        more.store(true, Relaxed);
        thread::sleep(ms(500));
        backend.workers.store(3, Relaxed);
        let shrunk = wait_for_limit(&gateway, |limit| limit <= 15);
        stop.store(true, Relaxed);
        [grown, shrunk]
    });
    assert_eq!(outcomes, [Ok(()); 2], "grown, shrunk");
}

/// Sends one request after the other, and abandons each after 300 ms.
fn send_impatiently(gateway: &Gateway, over_http2: bool, stop: &AtomicBool) {
    let patience = ms(300);
    let mut client = gateway.client();
    let mut h2 = over_http2.then(|| H2::open(gateway.addr()));
    let mut stream = 1;
    while !stop.load(Relaxed) {
        let status = match &mut h2 {
            Some(h2) => {
                h2.ask(stream, &request("GET", "/", &[]));
                let outcome = h2.outcome_within(stream, patience);
                if outcome == Outcome::Silent {
                    h2.send(RST_STREAM, 0, stream, &8u32.to_be_bytes());
                }
                stream += 2;
                if let Outcome::Answered(status, _) = outcome { Some(status) } else { None }
            }
            None => {
                client.send(get("/").bytes());
                let response = client.response_within(patience);
                if response.is_err() {
                    client = gateway.client();
                }
                response.ok().map(|response| response.status)
            }
        };
        if status == Some(503) {
            thread::sleep(ms(20));
        }
    }
}

/// Clients that give up before the response are a signal, too: the backend must not work for them for ever.
#[test]
fn clients_that_give_up_shrink_the_limit() {
    for over_http2 in [false, true] {
        let backend = Backend::new(400, 20);
        let upstream = backend.upstream();
        let gateway = adaptive_gateway(&upstream, "auto");
        let stop = AtomicBool::new(false);
        let outcomes = thread::scope(|scope| {
            for _ in 0..60 {
                scope.spawn(|| send_impatiently(&gateway, over_http2, &stop));
            }
            let grown = wait_for_limit(&gateway, |limit| limit > 60);
            backend.takes_ms.store(1_000, Relaxed);
            let shrunk = wait_for_limit(&gateway, |limit| limit <= 8);
            backend.takes_ms.store(20, Relaxed);
            let back = wait_for_limit(&gateway, |limit| limit > 30);
            stop.store(true, Relaxed);
            [grown, shrunk, back]
        });
        assert_eq!(outcomes, [Ok(()); 3], "grown, shrunk, back; over HTTP/2: {over_http2}");
    }
}

/// A client that leaves before it has sent its whole request is no signal about the backend.
#[test]
fn abandoned_uploads_are_no_signal() {
    let backend = Backend::new(100, 20);
    let upstream = backend.upstream();
    let gateway = adaptive_gateway(&upstream, "{ min: 1 }");
    let (stop, seen) = (AtomicBool::new(false), Mutex::default());
    let grown = thread::scope(|scope| {
        load(scope, &gateway, 30, &stop, &seen);
        let grown = wait_for_limit(&gateway, |limit| limit > 25);
        stop.store(true, Relaxed);
        grown
    });
    assert_eq!(grown, Ok(()));
    let before = limit(&gateway);
    let mut h2 = H2::open(gateway.addr());
    for round in 0..4 {
        let mut clients: Vec<_> = (0..10).map(|_| gateway.client()).collect();
        for client in &mut clients {
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf");
        }
        let streams = || (round * 10..round * 10 + 10).map(|index| 2 * index + 1);
        for stream in streams() {
            h2.send(HEADERS, END_HEADERS, stream, &block(&request("POST", "/", &[])));
            h2.send(DATA, 0, stream, b"half");
        }
        thread::sleep(ms(500));
        for stream in streams() {
            h2.send(RST_STREAM, 0, stream, &8u32.to_be_bytes());
        }
    }
    assert!(h2.is_alive());
    assert_eq!(limit(&gateway), before);
}

/// Nor is a server that closes on clients with unfinished requests.
#[test]
fn uploads_that_a_server_aborts_are_no_signal() {
    let upstream = Upstream::new(|_| Reply::default().early().pause(ms(100)).close());
    let gateway = adaptive_gateway(&upstream, "{ min: 1 }");
    let before = limit(&gateway);
    for _ in 0..6 {
        let mut clients: Vec<_> = (0..before).map(|_| gateway.client()).collect();
        for client in &mut clients {
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf");
        }
        for client in &mut clients {
            client.response().expect(502);
        }
        thread::sleep(ms(200));
    }
    assert_eq!(limit(&gateway), before);
}
