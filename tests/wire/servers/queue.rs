//! The queue in front of servers at `max_connections`: order, bounds, leavers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use crate::support::h2_raw::*;
use crate::support::volley::count;
use crate::support::*;

/// A server that counts its requests at once, and keeps each for a moment, or until it may answer.
pub struct Busy {
    pub upstream: Upstream,
    targets: Arc<Mutex<Vec<String>>>,
    most: Arc<AtomicUsize>,
    open: Arc<AtomicBool>,
}

impl Busy {
    /// It answers once `open` is called.
    pub fn closed() -> Busy {
        let (now, most, open) =
            (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let targets = Arc::new(Mutex::new(Vec::new()));
        let (seen, highest, may_answer) = (targets.clone(), most.clone(), open.clone());
        let upstream = Upstream::new(move |request| {
            // The harness itself records a request only with its answer.
            seen.lock().unwrap().push(request.target.clone());
            highest.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            let end = Instant::now() + PATIENCE;
            while !may_answer.load(SeqCst) && Instant::now() < end {
                thread::sleep(ms(1));
            }
            thread::sleep(ms(5));
            now.fetch_sub(1, SeqCst);
            Reply::text("ok")
        });
        Busy { upstream, targets, most, open }
    }

    pub fn open(&self) {
        self.open.store(true, SeqCst);
    }

    pub fn targets(&self) -> Vec<String> {
        self.targets.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.targets().len()
    }

    #[track_caller]
    pub fn wait_for(&self, count: usize) {
        eventually(&format!("{count} requests"), || self.count() >= count);
    }

    /// The numbered targets.
    pub fn numbers(&self) -> Vec<u32> {
        self.targets().iter().filter_map(|target| target[1..].parse().ok()).collect()
    }

    pub fn most(&self) -> usize {
        self.most.load(SeqCst)
    }
}

/// A gateway in front of one server with these further fields, and these lines at the top.
pub fn gateway(upstream: &Upstream, fields: &str, top: &str) -> Gateway {
    Gateway::start(&file(upstream, fields, top))
}

pub fn file(upstream: &Upstream, fields: &str, top: &str) -> String {
    format!(
        "{top}\nupstreams:\n  app: {{ servers: [\"{}\"], {fields} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.addr()
    )
}

pub fn waiting(gateway: &Gateway) -> f64 {
    gateway.metric("sluicegate_upstream_queue_depth", &["upstream=\"app\""])
}

#[track_caller]
pub fn wait_waiting(gateway: &Gateway, count: u32) {
    eventually(&format!("{count} waiting requests"), || waiting(gateway) == f64::from(count));
}

/// Clients with requests for `/FIRST`, `/FIRST + 1` and so on, each sent once the one before waits.
pub fn line_up(gateway: &Gateway, targets: std::ops::Range<u32>, waiting_before: u32) -> Vec<Client> {
    let first = targets.start;
    let send = |target: u32| {
        let mut client = gateway.client();
        client.send(get(&format!("/{target}")).bytes());
        wait_waiting(gateway, waiting_before + target - first + 1);
        client
    };
    targets.map(send).collect()
}

/// Holds every place of the server.
pub fn hold(gateway: &Gateway, busy: &Busy, places: usize) -> Vec<Client> {
    let mut held: Vec<Client> = (0..places).map(|_| gateway.client()).collect();
    held.iter_mut().for_each(|client| client.send(get("/held").bytes()));
    busy.wait_for(places);
    held
}

/// All are served, in the order of their arrival at whatever worker, and never more than the server takes at once.
#[test]
fn requests_wait_for_a_place_in_order() {
    for (workers, places) in [(1, 1), (4, 1), (4, 2)] {
        let busy = Busy::closed();
        let fields = format!("max_connections: {places}, queue: {{}}");
        let gateway = gateway(&busy.upstream, &fields, &format!("server: {{ workers: {workers} }}"));
        let mut clients = hold(&gateway, &busy, places);
        clients.extend(line_up(&gateway, 0..28, 0));
        assert_eq!(busy.count(), places, "waiting requests cost the server nothing");
        busy.open();
        for client in &mut clients {
            client.response().expect(200);
        }
        assert_eq!(busy.most(), places);
        let order = busy.numbers();
        // With two places, a busy machine may delay the thread of one while the other serves several requests.
        let most_apart = if places == 1 { 0 } else { 10 };
        let in_order = |(at, number): (usize, &u32)| at.abs_diff(*number as usize) <= most_apart;
        assert!(order.len() == 28 && order.iter().enumerate().all(in_order), "{workers} workers: {order:?}");
        assert_eq!(waiting(&gateway), 0.0);
        assert!(gateway.metric("sluicegate_upstream_wait_seconds_count", &["app"]) == 28.0);
        assert!(gateway.metric("sluicegate_upstream_wait_seconds_sum", &["app"]) > 0.0);
    }
}

/// Operators see how many wait, and how many may: in the status and in an explanation.
#[test]
fn operators_see_the_queue() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: { size: 20 }", "");
    let mut clients = hold(&gateway, &busy, 1);
    clients.extend(line_up(&gateway, 0..3, 0));
    let status = gateway.admin_get("/status").expect(200).text();
    assert!(status.contains("\nqueue       app: 3 of 20 wait\n"), "{status}");
    let explain = |accept: &str| {
        let query = post("/explain", br#"{"method": "GET", "url": "/"}"#).header("Accept", accept);
        gateway.ask_admin(&query).expect(200)
    };
    let text = explain("text/plain").text();
    assert!(text.contains("\nservers   1 full, 3 of 20 wait\n"), "{text}");
    let waits = "3 of 20 before it in the queue of upstream app";
    let verdict = format!("verdict   wait: {waits}, then forwarded to upstream app as GET /\n");
    assert!(text.ends_with(&verdict), "{text}");
    let json = explain("application/json").json();
    assert_eq!((&json["verdict"]["outcome"], &json["verdict"]["servers"]), (&"wait".into(), &waits.into()));
    busy.open();
    clients.iter_mut().for_each(|client| drop(client.response().expect(200)));
}

#[test]
fn thirty_at_once_share_two_places() {
    let busy = Busy::closed();
    busy.open();
    let gateway = gateway(&busy.upstream, "max_connections: 2, queue: {}", "server: { workers: 4 }");
    let shots = volley(gateway.addr(), (0..30).map(|_| get("/")));
    assert_eq!((count(&shots, 200), busy.most()), (30, 2));
}

/// Newcomers stand behind the waiters, even while places become free all the time.
#[test]
fn newcomers_do_not_overtake() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: {}", "server: { workers: 2 }");
    let mut clients = hold(&gateway, &busy, 1);
    clients.extend(line_up(&gateway, 0..20, 0));
    busy.open();
    let newcomers: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = gateway.client();
            client.send(get("/new").bytes());
            thread::sleep(ms(2));
            client
        })
        .collect();
    for mut client in clients.into_iter().chain(newcomers) {
        client.response().expect(200);
    }
    let targets = busy.targets();
    assert!(targets[1..21].iter().all(|target| target != "/new"), "{targets:?}");
}

#[test]
fn a_full_queue_rejects_at_once() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: { size: 2 }", "");
    let mut clients = hold(&gateway, &busy, 1);
    clients.extend(line_up(&gateway, 0..2, 0));
    let before = Instant::now();
    gateway.get("/rejected").expect(503);
    assert!(before.elapsed() < ms(1000), "{:?}", before.elapsed());
    assert_eq!(gateway.metric("sluicegate_faults_total", &["no_server"]), 1.0);
    drop(clients.pop());
    wait_waiting(&gateway, 1);
    clients.extend(line_up(&gateway, 2..3, 1));
    busy.open();
    for client in &mut clients {
        client.response().expect(200);
    }
    assert_eq!(busy.numbers(), [0, 2]);
}

/// Without a queue the answer is 503 at once, and the metrics do not name one.
#[test]
fn without_a_queue_none_waits() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1", "");
    let mut held = hold(&gateway, &busy, 1);
    gateway.get("/").expect(503);
    assert!(!gateway.metrics().contains("sluicegate_upstream_queue_depth"));
    busy.open();
    held[0].response().expect(200);
}

/// Clients that hang up while they wait never reach the server, and those behind them move up.
#[test]
fn leavers_cost_the_server_nothing() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: {}", "server: { workers: 2 }");
    let mut held = hold(&gateway, &busy, 1);
    let mut clients = line_up(&gateway, 0..30, 0);
    let mut pipelined = gateway.client();
    pipelined.send([get("/gone").bytes(), get("/behind").bytes()].concat());
    wait_waiting(&gateway, 31);
    let mut h2 = H2::open(gateway.addr());
    h2.send(HEADERS, END_HEADERS | END_STREAM, 1, &block(&request("GET", "/gone", &[])));
    wait_waiting(&gateway, 32);
    h2.send(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    drop(pipelined);
    wait_waiting(&gateway, 30);
    let mut stayers = Vec::new();
    for (n, client) in clients.drain(..).enumerate() {
        match n % 3 {
            0 => stayers.push(client),
            1 => client.reset(),
            _ => drop(client),
        }
    }
    wait_waiting(&gateway, 10);
    busy.open();
    for client in held.iter_mut().chain(&mut stayers) {
        client.response().expect(200);
    }
    assert_eq!(busy.numbers(), (0..30).step_by(3).collect::<Vec<_>>());
    assert_eq!(busy.count(), 11);
}

/// Aborted waiters leave no trace in the queue, nor in `server.max_waiting`.
#[test]
fn a_thousand_aborted_waiters_leave_nothing() {
    raise_descriptors();
    let busy = Busy::closed();
    let top = "server: { workers: 2, max_waiting: 500 }";
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: { size: 500, max_wait: 1m }", top);
    let mut held = hold(&gateway, &busy, 1);
    for _ in 0..2 {
        let mut waiters: Vec<Client> = (0..500).map(|_| gateway.client()).collect();
        waiters.iter_mut().for_each(|client| client.send(get("/gone").bytes()));
        wait_waiting(&gateway, 500);
        gateway.get("/").expect(503);
        drop(waiters);
        wait_waiting(&gateway, 0);
    }
    let mut last = line_up(&gateway, 0..1, 0);
    busy.open();
    for client in held.iter_mut().chain(&mut last) {
        client.response().expect(200);
    }
    assert_eq!(busy.targets(), ["/held", "/0"]);
    let in_flight = || gateway.metric("sluicegate_requests_in_flight", &[]);
    eventually("no request in flight", || in_flight() == 0.0);
}

/// Waiting requests count in `server.max_waiting`, those of limits and of upstreams together.
#[test]
fn max_waiting_bounds_the_queue() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: {}", "server: { max_waiting: 2 }");
    let mut clients = hold(&gateway, &busy, 1);
    clients.extend(line_up(&gateway, 0..2, 0));
    gateway.get("/rejected").expect(503);
    assert_eq!(gateway.metric("sluicegate_faults_total", &["too_many_waiting"]), 1.0);
    assert_eq!(waiting(&gateway), 2.0);
    busy.open();
    for client in &mut clients {
        client.response().expect(200);
    }
    gateway.get("/").expect(200);
}

/// Over HTTP/2 a stream is a place.
#[test]
fn streams_are_places() {
    let upstream =
        Upstream2::new(|seen| if seen.uri.ends_with("/hold") { Act::Hold } else { Act::Text("ok") });
    let gateway = Gateway::start(&format!(
        "server: {{ workers: 2 }}\n\
         upstreams:\n  app: {{ servers: [\"{}\"], protocol: http2, max_connections: 2, queue: {{}} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.addr()
    ));
    let mut held = [gateway.client(), gateway.client()];
    held.iter_mut().for_each(|client| client.send(get("/hold").bytes()));
    upstream.wait_in_flight(2);
    let mut waiters: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
    waiters.iter_mut().for_each(|client| client.send(get("/").bytes()));
    wait_waiting(&gateway, 20);
    assert_eq!(upstream.requests().len(), 2);
    upstream.release();
    for client in held.iter_mut().chain(&mut waiters) {
        client.response().expect(200);
    }
    assert_eq!((upstream.most_in_flight(), upstream.requests().len()), (2, 22));
}
