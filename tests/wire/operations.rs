//! Operation: start, stop, signals, exit codes, the admin port, the command line.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

const HELLO: &str = "locations:\n  - { path: /, respond: { body: ok } }\n";

fn run(args: &[&str]) -> Finished {
    Run::default().args(args).finish(Scratch::new().path())
}

fn run_on(yaml: &str, verb: &[&str]) -> Finished {
    let dir = Scratch::new();
    let file = dir.file("gateway.yaml", yaml).display().to_string();
    let args: Vec<_> = verb.iter().copied().chain(["-c", &file]).collect();
    Run::default().args(&args).finish(dir.path())
}

/// TERM: no new connection is accepted, requests in flight finish, and the exit code is 0.
#[test]
fn term_drains_and_exits_0() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let mut gateway = forwarding(&upstream, "");
    let mut busy = gateway.client();
    busy.send(get("/").bytes());
    let mut idle = gateway.client();
    upstream.wait_for(1);
    let addr = gateway.addr();
    gateway.term();
    eventually("the listener to close", || {
        TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_err()
    });
    idle.assert_closed();
    assert!(gateway.is_running());
    gate.open();
    let response = busy.response().expect(200);
    assert_eq!(response.header("connection").as_deref(), Some("close"));
    busy.assert_closed();
    assert_eq!(gateway.wait_exit(), 0);
}

/// INT does the same, and an idle gateway ends at once.
#[test]
fn int_stops_an_idle_gateway_at_once() {
    let mut gateway = Gateway::start(HELLO);
    let mut idle = gateway.client();
    idle.ask(&get("/")).expect(200);
    gateway.signal(rustix::process::Signal::INT);
    assert_eq!(gateway.wait_exit_within(ms(3000)), 0);
    idle.assert_closed();
}

/// A second TERM, more than a second after the first, ends the process at once.
#[test]
fn a_second_term_exits_at_once() {
    let upstream = Upstream::new(|_| Reply::silence());
    let mut gateway = forwarding(&upstream, "");
    let mut busy = gateway.client();
    busy.send(get("/").bytes());
    upstream.wait_for(1);
    gateway.term();
    thread::sleep(ms(1200));
    assert!(gateway.is_running());
    gateway.term();
    gateway.wait_exit_within(ms(2000));
}

/// Signals within a second are one: a supervisor may signal the process and then its group.
#[test]
fn terms_within_a_second_are_one() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let mut gateway = forwarding(&upstream, "");
    let mut busy = gateway.client();
    busy.send(get("/").bytes());
    upstream.wait_for(1);
    gateway.term();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        thread::sleep(ms(100));
        gateway.signal(signal);
    }
    thread::sleep(ms(1200));
    assert!(gateway.is_running(), "{}", gateway.stderr());
    gate.open();
    busy.response().expect(200);
    assert_eq!(gateway.wait_exit(), 0);
}

/// The shutdown timeout ends an unfinished drain; that too is exit 0.
#[test]
fn a_drain_has_a_deadline() {
    let upstream = Upstream::new(|_| Reply::silence());
    let mut gateway = forwarding(&upstream, "server: { timeouts: { shutdown: 1s } }");
    let mut busy = gateway.client();
    busy.send(get("/").bytes());
    upstream.wait_for(1);
    let noise = Noise::listen();
    let start = Instant::now();
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    let took = start.elapsed();
    assert!(took >= ms(900) && took <= ms(1500) + noise.late(), "took {took:?}");
}

/// A waiting request is still answered after TERM, with Connection: close.
#[test]
fn queued_requests_are_answered_after_term() {
    let upstream = Upstream::ok();
    let mut gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\",
           limits: {{ key: global, algorithm: leaky_bucket, rate: 2/s, queue: 5 }} }}\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    let head = Ask::new("HEAD", "/").bytes();
    client.send([&head[..], &head[..]].concat());
    client.head_response().expect(200);
    thread::sleep(ms(100));
    gateway.term();
    let second = client.head_response().expect(200);
    assert_eq!(second.header("connection").as_deref(), Some("close"));
    client.assert_closed();
    assert_eq!(gateway.wait_exit(), 0);
}

/// Exit 2: the command line is invalid.
#[test]
fn a_wrong_command_line_is_exit_2() {
    for args in [&["no-such-verb"][..], &["run", "--no-such-flag"], &["proxy"], &["check", "-c"]] {
        let finished = run(args);
        assert_eq!(finished.code, Some(2), "{args:?}: {finished:?}");
        assert!(!finished.stderr.is_empty());
    }
}

/// Exit 3: the file is invalid; every problem is reported with its position, and nothing listens.
#[test]
fn a_wrong_file_is_exit_3_with_every_problem() {
    let yaml = "listen: 127.0.0.1:0\nadmin: none\n\
                limits:\n  a: { rate: fast }\n  b: { rate: 1/s, brust: 3 }\n\
                locations:\n  - { path: /, upstream: nowhere }\n";
    for verb in [&["run"][..], &["check"]] {
        let finished = run_on(yaml, verb);
        assert_eq!(finished.code, Some(3), "{finished:?}");
        let output = finished.stdout.clone() + &finished.stderr;
        for (position, word) in [(":4:", "fast"), (":5:", "brust"), (":7:", "nowhere")] {
            assert!(
                output.contains(position) && output.contains(word),
                "{position} {word} is missing in:\n{output}"
            );
        }
        assert!(output.contains("burst"), "no suggestion in:\n{output}");
        assert!(!output.contains("listening"), "{output}");
    }
    let missing = run(&["run", "-c", "no-such-file.yaml"]);
    assert_eq!(missing.code, Some(3), "{missing:?}");
    assert!(missing.stderr.contains("no-such-file.yaml"), "{missing:?}");
}

/// Exit 4: the port is taken, by another program or by a gateway.
#[test]
fn a_taken_port_is_exit_4() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let finished = run_on(&format!("listen: {addr}\nadmin: none\n{HELLO}"), &["run"]);
    assert_eq!(finished.code, Some(4), "{finished:?}");
    assert!(finished.stderr.contains(&addr.to_string()), "{finished:?}");
    let gateway = Gateway::start(HELLO);
    let finished = run_on(&format!("listen: {}\nadmin: none\n{HELLO}", gateway.addr()), &["run"]);
    assert_eq!(finished.code, Some(4), "{finished:?}");
    let finished = run_on(&format!("listen: 127.0.0.1:0\nadmin: {}\n{HELLO}", gateway.admin()), &["run"]);
    assert_eq!(finished.code, Some(4), "{finished:?}");
}

/// `check` accepts a valid file with exit 0.
#[test]
fn check_accepts_a_good_file() {
    let finished = run_on(&format!("listen: 127.0.0.1:0\n{HELLO}"), &["check"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

/// `init` writes a file that `check` accepts, and never over an existing one.
#[test]
fn init_writes_a_good_file_once() {
    let dir = Scratch::new();
    let init = || Run::default().args(&["init"]).finish(dir.path());
    let first = init();
    assert_eq!(first.code, Some(0), "{first:?}");
    let written = std::fs::read_to_string(dir.path().join("gateway.yaml")).expect("gateway.yaml");
    let check = Run::default().args(&["check"]).finish(dir.path());
    assert_eq!(check.code, Some(0), "{check:?}\n{written}");
    let second = init();
    assert_ne!(second.code, Some(0), "{second:?}");
    assert_eq!(std::fs::read_to_string(dir.path().join("gateway.yaml")).expect("gateway.yaml"), written);
}

/// `version` and `--help` exit with 0.
#[test]
fn version_and_help_answer() {
    let version = run(&["version"]);
    assert_eq!(version.code, Some(0), "{version:?}");
    assert!(version.stdout.contains(env!("CARGO_PKG_VERSION")), "{version:?}");
    let help = run(&["--help"]);
    assert_eq!(help.code, Some(0), "{help:?}");
    assert!(help.stdout.contains("check") && help.stdout.contains("proxy"), "{help:?}");
}

/// `proxy --to URL --limit 10/s` serves without a file.
#[test]
fn proxy_needs_no_file() {
    let upstream = Upstream::ok();
    let url = upstream.url();
    let args = ["proxy", "--to", &url, "--limit", "5/h", "--listen", "127.0.0.1:0", "--admin", "none"];
    let gateway = Run::default().args(&args).serve(false);
    let seen: Vec<_> = (0..6).map(|_| gateway.get("/").status).collect();
    assert_eq!(seen, [200, 200, 200, 200, 200, 429]);
}

/// The admin port serves health, readiness and metrics; unknown paths are 404.
#[test]
fn the_admin_port_answers() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /, respond: { body: ok }, limits: { key: global, rate: 2/h } }\n",
    );
    for _ in 0..3 {
        gateway.get("/");
    }
    gateway.admin_get("/healthz").expect(200);
    assert!(!gateway.admin_get("/readyz").expect(200).text().contains("degraded"));
    gateway.admin_get("/no-such-thing").expect(404);
    let metrics = gateway.metrics();
    assert!(metrics.lines().any(|l| l.starts_with("# TYPE sluicegate_")), "{metrics}");
    assert!(metrics.trim_end().ends_with("# EOF"), "not OpenMetrics:\n{metrics}");
}

/// The admin endpoints are not reachable on the public listener.
#[test]
fn the_public_port_has_no_admin() {
    let paths = ["/metrics", "/healthz", "/readyz", "/status", "/explain", "/reload", "/upstreams"];
    let drain = "/upstreams/app/servers/127.0.0.1:1/drain";
    let gateway = Gateway::start("locations:\n  - { path: /app, respond: { body: ok } }\n");
    for target in paths {
        gateway.get(target).expect(404);
    }
    // These paths belong to the application.
    let gateway = Gateway::start(
        "admin: 127.0.0.1:0\nupstreams: { app: { servers: [127.0.0.1:1] } }\nlocations:\n\
         \x20 - { path: /, respond: { body: app } }\n  - { path: /other, upstream: app }\n",
    );
    for target in paths.into_iter().chain([drain]) {
        assert_eq!(gateway.get(target).expect(200).text(), "app", "{target}");
        assert_eq!(gateway.ask(&post(target, b"{}")).expect(200).text(), "app", "{target}");
    }
    // Nothing was drained, and nothing reloaded.
    let servers = gateway.admin_get("/upstreams").expect(200).text();
    assert!(servers.contains("127.0.0.1:1") && !servers.contains("drain"), "{servers}");
    assert!(!gateway.stderr().contains("reload"), "{}", gateway.stderr());
}

/// A configured token is required on the admin port, as a bearer.
#[test]
fn the_admin_token_is_required() {
    let gateway = Gateway::start(&format!("admin: {{ listen: 127.0.0.1:0, token: s3cret }}\n{HELLO}"));
    let ask = |authorization: Option<&str>| {
        let ask = authorization.map_or(get("/metrics"), |a| get("/metrics").header("Authorization", a));
        gateway.ask_admin(&ask).status
    };
    assert_eq!([ask(None), ask(Some("Bearer wrong")), ask(Some("Bearer s3cre"))], [401, 401, 401]);
    assert_eq!(ask(Some("Bearer s3cret")), 200);
    assert!(!gateway.stderr().contains("s3cret"));
}

/// An admin listener on any address but loopback requires a token, before anything is served.
#[test]
fn an_open_admin_port_needs_a_token() {
    let finished = run_on(&format!("listen: 127.0.0.1:0\nadmin: 0.0.0.0:0\n{HELLO}"), &["check"]);
    assert_eq!(finished.code, Some(3), "{finished:?}");
    assert!((finished.stdout + &finished.stderr).contains("token"));
}

/// Variables in the file are replaced from the environment, with defaults.
#[test]
fn the_environment_reaches_the_file() {
    let gateway = Run::default().env("SG_TEST_BODY", "from outside").start(
        "locations:\n  - { path: /, respond: { body: \"${SG_TEST_BODY} ${SG_TEST_NONE:-fallback}\" } }\n",
    );
    assert_eq!(gateway.get("/").expect(200).text(), "from outside fallback");
    let finished = run_on(
        "listen: 127.0.0.1:0\nlocations:\n  - { path: /, respond: { body: \"${SG_TEST_UNSET}\" } }\n",
        &["check"],
    );
    assert_eq!(finished.code, Some(3), "{finished:?}");
    assert!((finished.stdout + &finished.stderr).contains("SG_TEST_UNSET"));
}
