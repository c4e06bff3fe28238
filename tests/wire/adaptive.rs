//! A concurrency limit that follows what a real backend bears.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

/// A backend that works on so many requests at once and lets the others wait; its numbers may change.
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

/// What clients saw in a span.
#[derive(Debug, Default)]
struct Seen {
    answered: AtomicU64,
    refused: AtomicU64,
    /// Of the answered, in microseconds.
    took_us: AtomicU64,
}

/// `clients` ask one request after the other, and wait 20 ms after a refusal, until `stop`.
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
                    seen.refused.fetch_add(1, Relaxed);
                    thread::sleep(ms(20));
                }
            }
        });
    }
}

fn limit(gateway: &Gateway) -> u64 {
    let page = gateway.admin_get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with("sluicegate_concurrency_limit{limit=\"slots\"}"));
    let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("{page}"));
    value.parse().expect("a number")
}

/// The mean of some looks at the limit, and what clients saw meanwhile.
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

/// Forty clients ask a backend of ten workers: it is kept busy and quick. When it has only three, the limit
/// follows; when they come back, so does the limit.
#[test]
fn the_limit_follows_what_the_backend_bears() {
    let backend = Backend::new(10, 50);
    let upstream = backend.upstream();
    let gateway = Gateway::start(&format!(
        "admin: 127.0.0.1:0\nlimits:\n  slots: {{ key: global, algorithm: concurrency, max_concurrent: {{ min: 1, max: 200 }} }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: slots }}\n",
        upstream.url()
    ));
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
        let told =
            format!("{settled}, then {shrunk}, then {back}; {answered} in 5 s, {took_ms} ms each; {own:?}");
        // A busy machine adds latency of its own; without a limit it would be 200 ms, with all forty in flight.
        assert!((7..=32).contains(&settled), "{told}");
        assert!(answered >= 700 && took_ms < 170, "{told}");
        assert!(shrunk <= 10 && shrunk * 3 < settled * 2, "{told}");
        assert!(back > shrunk && (7..=60).contains(&back), "{told}");
    });
    gateway.get("/").expect(200);
}

/// Timeouts shrink the limit to its floor; it recovers when the backend does. Both `explain` and a refusal tell it.
#[test]
fn a_backend_that_hangs_gets_less_and_recovers() {
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
    let refused = shots.iter().find(|shot| shot.response.status == 503).expect("a refusal");
    assert_eq!(refused.response.json()["detail"], "limit slots: 2 to 1000 requests in flight");
    assert_eq!(refused.response.header("retry-after").as_deref(), Some("1"));
    backend.takes_ms.store(5, Relaxed);
    ask(&|| limit(&gateway) >= 10);
}
