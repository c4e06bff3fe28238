//! USR2: a new process of the program replaces the old one, with its sockets and counters.

use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use rustix::process::Signal;

use crate::support::*;

const COUNTED: &str = "limits: { two: { key: header:x-user, rate: 2/h, burst: 2 } }\n\
                       bans: { after: 3/1h, for: 30m, max: 1h }\nserver: { trusted_proxies: 127.0.0.1 }\n\
                       locations:\n  - { path: /, respond: { body: ok }, limits: two }\n";

fn ask(gateway: &Gateway, ip: &str, user: &str) -> u16 {
    gateway.ask(&get("/").header("x-user", user).header("x-forwarded-for", ip)).status
}

/// Spent tokens stay spent and banned clients banned, under the same addresses; twice in a row.
#[test]
fn counters_and_bans_are_handed_over() {
    let mut gateway = Gateway::start(COUNTED);
    assert_eq!([(); 3].map(|()| ask(&gateway, "192.0.2.1", "ann")), [200, 200, 429]);
    for _ in 0..5 {
        ask(&gateway, "192.0.2.66", "eve");
    }
    assert_eq!(gateway.metric("sluicegate_bans_active", &[]), 1.0);
    let (first, addr) = (gateway.pid(), gateway.addr());
    let successor = gateway.upgrade();
    assert_ne!(successor.0 as u32, first);
    let listening = format!("listening http://{addr}\"");
    eventually("its own line", || gateway.stderr().matches(&listening).count() == 2);
    assert_eq!(ask(&gateway, "192.0.2.1", "ann"), 429);
    assert_eq!(ask(&gateway, "192.0.2.66", "bob"), 429);
    assert_eq!(gateway.metric("sluicegate_bans_active", &[]), 1.0);
    assert_eq!([(); 3].map(|()| ask(&gateway, "192.0.2.2", "bob")), [200, 200, 429]);
    // The new process can be upgraded as well.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(successor.0).expect("a process"),
        Signal::USR2,
    )
    .expect("it lives");
    eventually("a third process", || gateway.process() != successor.0 as u32);
    let _third = Successor(gateway.process() as i32);
    assert_eq!(ask(&gateway, "192.0.2.2", "bob"), 429);
    assert_eq!([(); 3].map(|()| ask(&gateway, "192.0.2.3", "cid")), [200, 200, 429]);
}

/// The history goes on in the new process.
#[test]
fn the_history_is_handed_over() {
    let mut gateway = Gateway::start(COUNTED);
    let rejected = |gateway: &Gateway| {
        let history = gateway.admin_get("/history?of=limits&name=two").expect(200).json();
        let values = history["limits"][0]["rejected"].as_array().expect("values").clone();
        values.iter().filter_map(serde_json::Value::as_u64).sum::<u64>()
    };
    assert_eq!([(); 4].map(|()| ask(&gateway, "192.0.2.1", "ann")), [200, 200, 429, 429]);
    eventually("a sample", || rejected(&gateway) == 2);
    let _successor = gateway.upgrade();
    eventually("the history", || rejected(&gateway) == 2);
    ask(&gateway, "192.0.2.1", "ann");
    eventually("the next sample", || rejected(&gateway) == 3);
}

/// A stop that an upstream asked for lasts in the new process as long as in the old one, each key apart.
#[test]
fn stops_of_upstreams_are_handed_over() {
    let upstream = Upstream::new(|request| match request.header("x-user").as_deref() {
        Some("ann") => Reply::with(429, &[("Retry-After", "20")], "had enough"),
        _ => Reply::text("well"),
    });
    let mut gateway = Gateway::start(&format!(
        "account: {{ from: header:x-user }}\n\
         upstreams: {{ app: {{ servers: \"{}\", obey: {{ key: account }} }} }}\n\
         locations: [{{ path: /, upstream: app }}]\n",
        upstream.addr()
    ));
    let start = Instant::now();
    assert_eq!([ask(&gateway, "192.0.2.1", "ann"), ask(&gateway, "192.0.2.1", "bob")], [429, 200]);
    let _successor = gateway.upgrade();
    assert_eq!(gateway.metric("sluicegate_upstream_stopped", &["upstream=\"app\""]), 1.0);
    let rejected = gateway.ask(&get("/").header("x-user", "ann")).expect(429);
    assert!(rejected.text().contains("takes no requests now") && upstream.count() == 2);
    let end = start.elapsed() + ms(rejected.retry_after_ms());
    assert!((ms(19_900)..ms(21_000)).contains(&end), "{end:?}");
    assert_eq!(ask(&gateway, "192.0.2.1", "bob"), 200);
}

/// The old process answers a request in flight, then ends; an idle connection is closed, or its next answer says that
/// it is the last.
#[test]
fn requests_in_flight_end_where_they_began() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let mut gateway = forwarding(&upstream, "");
    let mut busy = gateway.client();
    busy.send(get("/slow").bytes());
    upstream.wait_for(1);
    let mut idle = gateway.client();
    idle.ask(&get("/")).expect(200);
    let old = gateway.pid();
    gateway.signal(Signal::USR2);
    eventually("another process", || gateway.process() != old);
    let _successor = Successor(gateway.process() as i32);
    idle.assert_closed();
    assert_eq!(gateway.get("/").expect(200).text(), "ok");
    assert!(gateway.is_running());
    gate.open();
    let last = busy.response().expect(200);
    assert_eq!((last.text().as_str(), last.header("connection").as_deref()), ("held", Some("close")));
    assert_eq!(gateway.wait_left(), 0);
    assert_eq!(gateway.get("/").expect(200).text(), "ok");
}

/// An accepted connection without a permit is answered by the process that accepted it.
#[test]
fn a_connection_without_a_permit_is_answered() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let mut gateway = forwarding(&upstream, "server: { workers: 2, max_connections: 2 }");
    let mut busy = [gateway.client(), gateway.client()];
    busy.iter_mut().for_each(|client| client.send(get("/slow").bytes()));
    upstream.wait_for(2);
    let mut waiting: Vec<_> = (0..8).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/").bytes()));
    thread::sleep(ms(100));
    let old = gateway.pid();
    gateway.signal(Signal::USR2);
    eventually("another process", || gateway.process() != old);
    let _successor = Successor(gateway.process() as i32);
    for client in &mut waiting {
        client.response().expect(200);
    }
    gate.open();
    busy.iter_mut().for_each(|client| drop(client.response().expect(200)));
    assert_eq!(gateway.wait_left(), 0);
}

/// HTTP/2: the old process answers the streams of a connection, and sends a GOAWAY.
#[test]
fn h2_connections_end_with_a_goaway() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let mut gateway = forwarding(&upstream, "");
    let nghttp = std::process::Command::new("nghttp")
        .args(["-v", "-t20", "-m3", &format!("http://{}/", gateway.addr())])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("nghttp is installed");
    upstream.wait_for(3);
    let old = gateway.pid();
    gateway.signal(Signal::USR2);
    eventually("another process", || gateway.process() != old);
    let _successor = Successor(gateway.process() as i32);
    gate.open();
    let text = String::from_utf8_lossy(&nghttp.wait_with_output().expect("nghttp ends").stdout).into_owned();
    assert!(text.matches(":status: 200").count() == 3 && text.contains("recv GOAWAY frame"), "{text}");
    assert_eq!(gateway.wait_left(), 0);
}

/// No connection is refused at any moment: clients that connect all the time are answered by either process.
#[test]
fn no_connect_is_refused() {
    let mut gateway = Gateway::start("locations:\n  - { path: /, respond: { body: ok } }\n");
    let addr = gateway.addr();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let stop = stop.clone();
            thread::spawn(move || {
                let (mut answered, mut slowest) = (0, ms(0));
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let start = Instant::now();
                    Client::connect(addr).ask(&get("/")).expect(200);
                    answered += 1;
                    slowest = slowest.max(start.elapsed());
                }
                (answered, slowest)
            })
        })
        .collect();
    thread::sleep(ms(200));
    let _successor = gateway.upgrade();
    thread::sleep(ms(200));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for client in clients {
        let (answered, slowest) = client.join().expect("every request was answered");
        assert!(answered > 10 && slowest < ms(5000), "{answered} answered, the slowest after {slowest:?}");
    }
}

/// The new process reads the file; its problems are reported, and the old process continues unchanged.
#[test]
fn a_broken_file_stops_the_upgrade() {
    let mut gateway = Gateway::start(COUNTED);
    assert_eq!(ask(&gateway, "192.0.2.1", "ann"), 200);
    let mut open = gateway.client();
    open.ask(&get("/").header("x-user", "zoe")).expect(200);
    gateway.write("locations: [\n");
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("the upgrade failed, and this process goes on");
    gateway.wait_stderr("exit status: 3");
    assert!(gateway.is_running());
    open.ask(&get("/").header("x-user", "zoe")).expect(200);
    assert_eq!([(); 2].map(|()| ask(&gateway, "192.0.2.1", "ann")), [200, 429]);
    // A port in use by another process is found as well.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address");
    gateway.write(&format!("listen: [127.0.0.1:0, \"{taken}\"]\n{COUNTED}"));
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("exit status: 4");
    assert_eq!(ask(&gateway, "192.0.2.1", "ann"), 429);
    gateway.write(COUNTED);
    let _successor = gateway.upgrade();
    assert_eq!(ask(&gateway, "192.0.2.1", "ann"), 429);
}

/// The new file may change listeners and the number of workers.
#[test]
fn the_new_process_serves_the_new_file() {
    let file = |listen: &str, workers: u32, body: &str| {
        format!(
            "listen: {listen}\nserver: {{ workers: {workers} }}\nlocations:\n  \
               - {{ path: /, respond: {{ body: {body} }} }}\n"
        )
    };
    let mut gateway = Gateway::start(&file("[127.0.0.1:0, 127.0.0.2:0]", 3, "old"));
    let (first, second) = (gateway.addr(), gateway.addrs()[1]);
    gateway.write(&file("[127.0.0.1:0, 127.0.0.3:0]", 1, "new"));
    let _successor = gateway.upgrade();
    for _ in 0..20 {
        assert_eq!(Client::connect(first).ask(&get("/")).expect(200).text(), "new");
    }
    assert!(TcpStream::connect(second).is_err(), "the new file does not listen there");
    let third = gateway.stderr().lines().rev().find_map(|line| {
        let (_, addr) = line.split_once("listening http://")?;
        addr.split('"').next().filter(|addr| addr.starts_with("127.0.0.3:"))?.parse().ok()
    });
    assert_eq!(Client::connect(third.expect("an address")).ask(&get("/")).expect(200).text(), "new");
}

/// A unix socket is handed over too, and its file disappears with the last process.
#[test]
fn a_unix_socket_is_handed_over() {
    let dir = Scratch::new();
    let path = dir.path().join("gate.sock");
    let mut gateway = Gateway::start(&format!(
        "listen: \"unix:{}\"\nlocations:\n  - {{ path: /, respond: {{ body: ok }} }}\n",
        path.display()
    ));
    Client::connect_unix(&path).ask(&get("/")).expect(200);
    let successor = gateway.upgrade();
    Client::connect_unix(&path).ask(&get("/")).expect(200);
    let pid = rustix::process::Pid::from_raw(successor.0).expect("a process");
    rustix::process::kill_process(pid, Signal::TERM).expect("it lives");
    eventually("the file to go", || !path.exists());
}

/// A failed new process does not remove the file of a unix socket, on which the old one still listens.
#[test]
fn an_upgrade_that_fails_leaves_the_unix_socket() {
    let dir = Scratch::new();
    let path = dir.path().join("gate.sock");
    let file = |more: &str| {
        format!(
            "listen: [\"unix:{}\"{more}]\nlocations:\n  - {{ path: /, respond: {{ body: ok }} }}\n",
            path.display()
        )
    };
    let gateway = Gateway::start(&file(""));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    gateway.write(&file(&format!(", \"{}\"", taken.local_addr().expect("an address"))));
    gateway.signal(Signal::USR2);
    gateway.wait_stderr("exit status: 4");
    Client::connect_unix(&path).ask(&get("/")).expect(200);
}

/// TERM while the new process starts ends both, so that none serves unseen. Once the new one serves, it stays.
#[test]
fn term_within_an_upgrade_is_the_end() {
    for pause in [0, 1, 1, 2, 2, 3, 5, 8, 30] {
        let mut gateway = Gateway::start(COUNTED);
        let addr = gateway.addr();
        gateway.signal(Signal::USR2);
        thread::sleep(ms(pause));
        gateway.term();
        assert_eq!(gateway.wait_left(), 0);
        if gateway.stderr().contains("the new process serves") {
            let _successor = Successor(gateway.process() as i32);
            gateway.get("/").expect(200);
        } else {
            eventually("nobody to listen", || TcpStream::connect(addr).is_err());
            thread::sleep(ms(300));
            assert!(
                TcpStream::connect(addr).is_err(),
                "TERM after {pause} ms: somebody serves\n{}",
                gateway.stderr()
            );
        }
    }
}

/// The snapshot file belongs to the new process: the end of the old one does not overwrite it.
#[test]
fn the_snapshot_belongs_to_the_new_process() {
    let dir = Scratch::new();
    let file = dir.path().join("counters.bin");
    let yaml = format!("state: {{ snapshot: {} }}\n{COUNTED}", file.display());
    let mut gateway = Gateway::start(&yaml);
    assert_eq!(ask(&gateway, "192.0.2.1", "ann"), 200);
    let successor = gateway.upgrade();
    assert!(!file.exists(), "the old process wrote a snapshot at its end");
    assert_eq!([(); 2].map(|()| ask(&gateway, "192.0.2.1", "ann")), [200, 429]);
    let pid = rustix::process::Pid::from_raw(successor.0).expect("a process");
    rustix::process::kill_process(pid, Signal::TERM).expect("it lives");
    eventually("the last snapshot", || file.exists());
    eventually("its end", || TcpStream::connect(gateway.addr()).is_err());
    let again = Gateway::start(&yaml);
    assert_eq!(ask(&again, "192.0.2.1", "ann"), 429);
}
