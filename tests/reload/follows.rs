//! A reload also applies to everything beside requests: caps, deadlines, logs, snapshots, lists.

use std::thread;

use crate::support::*;

const HELLO: &str = "locations:\n  - { path: /, respond: { body: hello } }\n";

/// Caps of connections hold for new ones; open connections stay.
#[test]
fn connection_caps_follow() {
    let gateway = Gateway::start(HELLO);
    let mut clients: Vec<Client> = (0..4).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| drop(client.ask(&get("/")).expect(200)));
    gateway.change(&format!("server: {{ connections_per_ip: 2 }}\n{HELLO}"));
    let mut counted: Vec<Client> = (0..2).map(|_| gateway.client()).collect();
    counted.iter_mut().for_each(|client| drop(client.ask(&get("/")).expect(200)));
    gateway.client().assert_closed();
    clients.iter_mut().for_each(|client| drop(client.ask(&get("/")).expect(200)));
    gateway.change(&format!("server: {{ max_connections: 6 }}\n{HELLO}"));
    let mut late = gateway.client();
    late.send(get("/").bytes());
    assert!(late.response_within(ms(300)).is_err(), "a seventh was served");
    gateway.change(HELLO);
    late.response().expect(200);
}

/// Client deadlines change for open connections as well.
#[test]
fn deadlines_follow() {
    let gateway = Gateway::start(HELLO);
    let mut idle = gateway.client();
    idle.ask(&get("/")).expect(200);
    thread::sleep(ms(500));
    gateway.change(&format!("server: {{ timeouts: {{ idle: 200ms }} }}\n{HELLO}"));
    idle.assert_closed();
}

/// The drain uses the shutdown timeout of the file in force.
#[test]
fn the_shutdown_timeout_follows() {
    let upstream = Upstream::new(|_| Reply::silence());
    let file = |timeout: &str| {
        format!(
            "server: {{ timeouts: {{ shutdown: {timeout} }} }}\nlocations:\n  - {{ path: /, upstream: \"{}\" }}\n",
            upstream.url()
        )
    };
    let mut gateway = Gateway::start(&file("60s"));
    let mut busy = gateway.client();
    busy.send(get("/").bytes());
    upstream.wait_for(1);
    gateway.change(&file("300ms"));
    gateway.term();
    assert_eq!(gateway.wait_exit_within(ms(5000)), 0);
}

/// The level of the program's log changes.
#[test]
fn the_log_level_follows() {
    let gateway = Gateway::start(&format!("log: {{ level: error }}\n{HELLO}"));
    gateway.change(&format!("log: {{ level: error }}\nbans: {{ after: 9/1m }}\n{HELLO}"));
    assert!(!gateway.stderr().contains("reloaded"), "{}", gateway.stderr());
    gateway.change(&format!("log: {{ level: debug }}\n{HELLO}"));
    gateway.wait_stderr("reloaded");
}

/// The access log moves to another file, with the lines of requests that end after the reload.
#[test]
fn the_access_log_follows() {
    let dir = Scratch::new();
    let file = |name: &str| {
        let path = dir.path().join(name);
        format!("access_log: {{ output: \"{}\" }}\n{HELLO}", path.display())
    };
    let lines =
        |name: &str| std::fs::read_to_string(dir.path().join(name)).map_or(0, |text| text.lines().count());
    let gateway = Gateway::start(&file("one.log"));
    let mut client = gateway.client();
    client.ask(&get("/")).expect(200);
    gateway.change(&file("two.log"));
    client.ask(&get("/")).expect(200);
    eventually("both lines", || lines("one.log") == 1 && lines("two.log") == 1);
    // The same output continues.
    gateway.change(&format!("bans: {{ after: 9/1m }}\n{}", file("two.log")));
    client.ask(&get("/")).expect(200);
    eventually("another line", || lines("two.log") == 2);
}

/// Snapshots begin, move, and contain the counters of the gateway in force.
#[test]
fn snapshots_follow() {
    let dir = Scratch::new();
    let (one, two) = (dir.path().join("one.bin"), dir.path().join("two.bin"));
    let counted = "limits: { two: { key: header:x-user, rate: 2/h, burst: 2 } }\n\
                   locations:\n  - { path: /, respond: { body: ok }, limits: two }\n";
    let state = |path: &std::path::Path| format!("state: {{ snapshot: \"{}\" }}\n{counted}", path.display());
    let ask = |gateway: &Gateway| gateway.ask(&get("/").header("x-user", "ann")).status;
    let mut gateway = Gateway::start(counted);
    gateway.change(&state(&one));
    gateway.change(&state(&two));
    assert_eq!([ask(&gateway), ask(&gateway), ask(&gateway)], [200, 200, 429]);
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    assert!(!one.exists() && two.exists());
    let again = Gateway::start(&state(&two));
    assert_eq!(ask(&again), 429);
}

/// `explain` and the metrics describe the gateway in force.
#[test]
fn explanations_follow() {
    let gateway = Gateway::start(HELLO);
    gateway.change(
        "limits: { new: { rate: 5/s } }\nlocations:\n  - { path: /, respond: { body: x }, limits: new }\n",
    );
    gateway.get("/").expect(200);
    let query = post("/explain", br#"{"method": "GET", "url": "/"}"#);
    let explanation = gateway.ask_admin(&query).expect(200).text();
    assert!(explanation.contains("new"), "{explanation}");
    assert_eq!(gateway.metric("sluicegate_decisions_total", &["limit=\"new\"", "admit"]), 1.0);
}
