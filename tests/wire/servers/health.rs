//! Health checks, and requests while no server is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use crate::support::*;

/// Answers its checks with 204 while the switch is on, else with 500, and everything else with its name.
fn switched_upstream(name: &'static str) -> (Upstream, Arc<AtomicBool>) {
    let well = Arc::new(AtomicBool::new(true));
    let script = well.clone();
    let upstream = Upstream::new(move |seen| match (seen.target.as_str(), script.load(Relaxed)) {
        ("/healthz", true) => Reply::with(204, &[], ""),
        ("/healthz", false) => Reply::with(500, &[], "ill"),
        _ => Reply::text(name),
    });
    (upstream, well)
}

fn checked_gateway(servers: &[&Upstream], more: &str) -> Gateway {
    let servers: Vec<String> = servers.iter().map(|one| one.addr().to_string()).collect();
    Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [{}], balance: round_robin, {more} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        servers.join(", ")
    ))
}

fn up(gateway: &Gateway, server: &Upstream) -> bool {
    gateway.metric("sluicegate_upstream_up", &[&format!("server=\"{}\"", server.addr())]) == 1.0
}

fn checks(server: &Upstream) -> Vec<Seen> {
    server.requests().into_iter().filter(|seen| seen.target == "/healthz").collect()
}

fn names(gateway: &Gateway, count: usize) -> Vec<String> {
    (0..count).map(|_| gateway.get("/").expect(200).text()).collect()
}

/// A server with failing checks gets no requests, and gets them again after checks pass.
#[test]
fn a_server_goes_down_and_comes_up() {
    let ((one, one_well), (two, _)) = (switched_upstream("one"), switched_upstream("two"));
    let health = "health: { path: /healthz, interval: 100ms, timeout: 1s, rise: 2, fall: 3 }";
    let gateway = checked_gateway(&[&one, &two], health);
    assert!(names(&gateway, 4).contains(&"one".to_owned()));
    eventually("a check", || !checks(&one).is_empty());
    let asked = &checks(&one)[0];
    assert_eq!((asked.method.as_str(), asked.header("host")), ("GET", Some(one.addr().to_string())));
    assert_eq!(asked.header("user-agent").as_deref(), Some("sluicegate-health"));
    let before = checks(&one).len();
    one_well.store(false, Relaxed);
    eventually("down", || !up(&gateway, &one));
    assert!(checks(&one).len() >= before + 3, "{} checks were enough", checks(&one).len() - before);
    assert_eq!(names(&gateway, 10), ["two"; 10]);
    gateway.wait_stderr("a server is down");
    gateway.wait_stderr("it answered 500");
    one_well.store(true, Relaxed);
    eventually("up", || up(&gateway, &one));
    assert!(names(&gateway, 4).contains(&"one".to_owned()));
    gateway.wait_stderr("a server is up");
    assert!(up(&gateway, &two));
    let failed = gateway.metric("sluicegate_upstream_health_checks_total", &["result=\"fail\""]);
    assert!(failed >= 3.0, "{failed}");
}

/// A check accepts every response that a client would get, however many fields it has.
#[test]
fn a_check_accepts_a_response_with_many_fields() {
    let fields: String = (0..500).map(|index| format!("X-Field-{index}: y\r\n")).collect();
    let upstream =
        Upstream::new(move |_| Reply::raw(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok")));
    let gateway = checked_gateway(&[&upstream], "health: { path: /healthz, interval: 50ms, fall: 1 }");
    let checks_with = |result: &str| gateway.metric("sluicegate_upstream_health_checks_total", &[result]);
    eventually("three checks", || checks_with("result=") >= 3.0);
    assert_eq!((checks_with("result=\"fail\""), up(&gateway, &upstream)), (0.0, true));
    gateway.get("/").expect(200);
}

/// With every server down requests are rejected at once, and the servers get none.
#[test]
fn all_down_is_503_at_once() {
    let (one, well) = switched_upstream("one");
    let gateway = checked_gateway(&[&one], "health: { path: /healthz, interval: 50ms, fall: 1, rise: 1 }");
    assert_eq!(names(&gateway, 1), ["one"]);
    well.store(false, Relaxed);
    eventually("down", || !up(&gateway, &one));
    let before = one.requests().len() - checks(&one).len();
    let start = Instant::now();
    let response = gateway.get("/").expect(503);
    assert!(start.elapsed() < ms(500), "{:?}", start.elapsed());
    assert_eq!(response.json()["detail"], "every server of the upstream is down");
    assert_eq!(gateway.ask(&post("/", b"body")).status, 503);
    assert_eq!(gateway.metric("sluicegate_faults_total", &["servers_down"]), 2.0);
    assert_eq!(one.requests().len() - checks(&one).len(), before);
    well.store(true, Relaxed);
    eventually("up", || gateway.get("/").status == 200);
}

/// A backup replaces servers that are down.
#[test]
fn a_backup_serves_for_those_that_are_down() {
    let ((one, well), backup) = (switched_upstream("one"), Upstream::named("backup"));
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app:\n    servers: [{}, {{ url: \"{}\", backup: true }}]\n    \
           health: {{ path: /healthz, interval: 50ms, fall: 1, rise: 1 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        one.addr(),
        backup.url()
    ));
    assert_eq!(names(&gateway, 3), ["one"; 3]);
    well.store(false, Relaxed);
    eventually("down", || gateway.get("/").text() == "backup");
    well.store(true, Relaxed);
    eventually("up", || gateway.get("/").text() == "one");
}

/// A missing response or connection fails a check; a long response does not.
#[test]
fn checks_that_stall_fail_and_long_responses_do_not() {
    let silent = Upstream::new(|_| Reply::silence());
    let long = Upstream::new(|_| Reply::text(&"x".repeat(3_000_000)));
    let refusing = Refusing::new();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app:\n    servers: [{}, {}, {}]\n    \
           health: {{ interval: 50ms, timeout: 200ms, fall: 2 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        silent.addr(),
        long.addr(),
        refusing.addr()
    ));
    let down = |addr| gateway.metric("sluicegate_upstream_up", &[&format!("server=\"{addr}\"")]) == 0.0;
    eventually("down", || down(silent.addr()) && down(refusing.addr()));
    eventually("more checks", || long.count() >= 6);
    assert!(up(&gateway, &long), "{}", gateway.stderr());
    gateway.wait_stderr("no answer in time");
    gateway.wait_stderr("a server is down: connection refused");
}

/// A flapping server leaves no request stuck, leaks no descriptor, and is back within a second.
#[test]
fn a_flapping_server_is_survived() {
    let server = Upstream::ok();
    let road = Proxy::start(server.addr());
    let other = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app:\n    servers: [{}, {}]\n    eject: {{ errors: 3, for: 200ms }}\n    \
           health: {{ interval: 100ms, timeout: 500ms, rise: 1, fall: 1 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        road.addr(),
        other.addr()
    ));
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).expect("procfs").count();
    gateway.get("/").expect(200);
    let before = descriptors();
    let (ended, answers, addr) = (AtomicBool::new(false), AtomicUsize::new(0), gateway.addr());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(addr);
                while !ended.load(Relaxed) {
                    // Either response is fine; a missing one would panic.
                    let response = client.ask(&get("/"));
                    assert!([200, 502, 503].contains(&response.status), "{}", response.status);
                    answers.fetch_add(1, Relaxed);
                }
            });
        }
        for round in 0..30 {
            if round % 2 == 0 {
                road.refuse()
            } else {
                road.forward()
            }
            thread::sleep(ms(100));
        }
        ended.store(true, Relaxed);
    });
    assert!(answers.load(Relaxed) > 100, "only {} answers", answers.load(Relaxed));
    let noise = Noise::listen();
    let (start, reached) = (Instant::now(), server.count());
    eventually("the server", || {
        gateway.get("/").expect(200);
        server.count() > reached + 1
    });
    assert!(start.elapsed() < ms(1000) + noise.late(), "{:?}", start.elapsed());
    eventually("descriptors", || descriptors() <= before + 8);
    assert_eq!(gateway.metric("sluicegate_upstream_in_flight", &[]), 0.0);
}

/// A check uses the server's protocol: TLS with its own trust, HTTP/2 by agreement and by prior knowledge.
#[test]
fn checks_use_the_protocol_of_the_server() {
    let (ours, others) = (Authority::new(), Authority::new());
    let certified = ours.certify(&["localhost"]);
    let health = "location = /healthz { return 204; } location / { return 200; }";
    let nginx = nginx::Nginx::start(
        &format!(
            "server {{ listen @0@ ssl; {} {health} }}
             server {{ listen @1@ ssl http2; {} {health} }}
             server {{ listen @2@ http2; {health} }}",
            certified.nginx(),
            certified.nginx()
        ),
        3,
    );
    for (index, scheme, more, well) in [
        (0, "https", format!("tls: {{ ca: \"{}\" }}", ours.file().display()), true),
        (1, "https", format!("tls: {{ ca: \"{}\" }}", ours.file().display()), true),
        (2, "http", "protocol: http2".to_owned(), true),
        (0, "https", format!("tls: {{ ca: \"{}\" }}", others.file().display()), false),
    ] {
        let port = nginx.addr(index).port();
        let gateway = Gateway::start(&format!(
            "upstreams:\n  app:\n    servers: [\"{scheme}://localhost:{port}\"]\n    {more}\n    \
               health: {{ path: /healthz, interval: 50ms, fall: 2, status: 204 }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n"
        ));
        let checks = |result: &str| {
            gateway.metric("sluicegate_upstream_health_checks_total", &[&format!("\"{result}\"")])
        };
        let (wanted, other) = if well { ("pass", "fail") } else { ("fail", "pass") };
        eventually("checks", || checks(wanted) >= 4.0);
        assert_eq!(checks(other), 0.0, "{more}: {}", gateway.stderr());
        gateway.get("/").expect(if well { 200 } else { 503 });
    }
}
