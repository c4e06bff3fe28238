//! The end of a wait for a server: deadlines, reloads, servers that drain, connections that break, further tries.

use std::time::Instant;

use crate::servers::queue::{Busy, file, gateway, hold, line_up, wait_waiting, waiting};
use crate::support::*;

#[test]
fn max_wait_ends_a_wait() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: { max_wait: 400ms }", "");
    let mut held = hold(&gateway, &busy, 1);
    let before = Instant::now();
    let answer = gateway.get("/late").expect(503);
    let took = answer.at - before;
    assert!(took >= ms(400) && took < ms(2000), "{took:?}");
    assert!(answer.text().contains("free in time"), "{}", answer.text());
    assert_eq!(gateway.metric("sluicegate_faults_total", &["server_queue_timeout"]), 1.0);
    let line = gateway.wait_log(1).remove(0);
    assert_eq!((&line["verdict"], &line["status"]), (&"server_queue_timeout".into(), &503.into()));
    assert!(line["wait_ms"].as_f64().expect("a wait") >= 400.0, "{line}");
    assert!(line.get("upstream").is_none(), "{line}");
    let status = gateway.admin_get("/upstreams/app").expect(200).json();
    let queue = &status["queue"];
    assert_eq!((&queue["size"], &queue["waiting"]), (&1000.into(), &0.into()), "{status}");
    assert_eq!((&queue["waits"], &queue["timeouts"]), (&1.into(), &1.into()), "{status}");
    assert!(queue["wait_seconds"].as_f64().expect("seconds") >= 0.4, "{status}");
    busy.open();
    held[0].response().expect(200);
    // A request that was served says how long it waited, too.
    assert_eq!(gateway.wait_log(2)[1]["wait_ms"], 0.0);
}

#[test]
fn the_timeout_of_the_location_covers_the_wait() {
    let busy = Busy::closed();
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], max_connections: 1, queue: {{}} }}\n\
         locations:\n  - {{ path: /held, upstream: app }}\n  - {{ path: /, upstream: app, timeout: 300ms }}\n",
        busy.upstream.addr()
    ));
    let mut held = hold(&gateway, &busy, 1);
    gateway.get("/late").expect(504);
    assert_eq!(gateway.wait_log(1)[0]["verdict"], "location_timeout");
    assert_eq!(waiting(&gateway), 0.0);
    busy.open();
    held[0].response().expect(200);
    assert_eq!(busy.targets(), ["/held"]);
}

/// A reload that raises the number serves those that wait already; one that removes the queue keeps them.
#[test]
fn a_reload_wakes_waiters() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: {}", "server: { workers: 2 }");
    let mut clients = hold(&gateway, &busy, 1);
    clients.extend(line_up(&gateway, 0..3, 0));
    gateway.change(&file(&busy.upstream, "max_connections: 3, queue: {}", "server: { workers: 2 }"));
    busy.wait_for(3);
    wait_waiting(&gateway, 1);
    gateway.change(&file(&busy.upstream, "max_connections: 3", "server: { workers: 2 }"));
    gateway.get("/rejected").expect(503);
    assert_eq!((busy.count(), busy.most()), (3, 3));
    busy.open();
    for client in &mut clients {
        client.response().expect(200);
    }
    assert_eq!(busy.most(), 3);
}

/// If no server is left, the waiters get the answer of any request, at once.
#[test]
fn drained_servers_end_the_waits() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: {}", "");
    let mut held = hold(&gateway, &busy, 1);
    let mut waiters = line_up(&gateway, 0..3, 0);
    let drain = format!("/upstreams/app/servers/{}/drain?force=true", busy.upstream.addr());
    gateway.ask_admin(&post(&drain, b"").header("Content-Type", "application/json")).expect(200);
    for waiter in &mut waiters {
        waiter.response().expect(503);
    }
    assert_eq!(gateway.metric("sluicegate_faults_total", &["servers_down"]), 3.0);
    busy.open();
    held[0].response().expect(200);
}

/// The body stays at the client while its request waits.
#[test]
fn a_waiting_body_is_not_asked_for() {
    let busy = Busy::closed();
    let gateway = gateway(&busy.upstream, "max_connections: 1, queue: {}", "");
    let mut held = hold(&gateway, &busy, 1);
    let mut waiter = gateway.client();
    let ask = post("/body", b"hello").header("Expect", "100-continue");
    waiter.send(ask.head());
    wait_waiting(&gateway, 1);
    assert_eq!(waiter.raw_head(ms(300)).err(), Some(End::Deadline));
    busy.open();
    held[0].response().expect(200);
    let head = waiter.raw_head(PATIENCE).expect("an interim response");
    assert!(head.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&head));
    waiter.send("hello");
    waiter.response().expect(200);
    assert_eq!(busy.upstream.wait_for(2)[1].body, b"hello");
}

/// A dead pooled connection is replaced from the same place, although another request waits for one.
#[test]
fn a_replaced_connection_keeps_its_place() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        // The pooled connection ends without an answer, but late enough for another request to wait.
        "/again" if seen.connection == 0 => Reply::default().pause(ms(300)).close(),
        _ => Reply::text("ok"),
    });
    let top = "server: { workers: 1 }";
    let gateway = gateway(&upstream, "max_connections: 1, queue: {}", top);
    gateway.get("/first").expect(200);
    let mut again = gateway.client();
    again.send(get("/again").bytes());
    upstream.wait_for(2);
    let mut waiter = gateway.client();
    waiter.send(get("/waiter").bytes());
    wait_waiting(&gateway, 1);
    again.response().expect(200);
    waiter.response().expect(200);
    assert_eq!(upstream.targets(), ["/first", "/again", "/again", "/waiter"]);
}

/// A try that could not connect waits for another server, within the deadlines of the tries.
#[test]
fn a_further_try_waits_too() {
    let (busy, refusing) = (Busy::closed(), Refusing::new());
    let file = |retries: &str| {
        format!(
            "upstreams:\n  app:\n    servers: [\"{}\", \"{}\"]\n    eject: none\n    max_connections: 1\n    \
             queue: {{}}\n    retries: {{ {retries} }}\nlocations:\n  - {{ path: /, upstream: app }}\n",
            busy.upstream.addr(),
            refusing.addr()
        )
    };
    let gateway = Gateway::start(&file("attempts: 1"));
    let mut clients = hold(&gateway, &busy, 1);
    gateway.change(&file("total: 300ms"));
    let before = Instant::now();
    // The failure of the first try says more than the wait for the second.
    gateway.get("/late").expect(502);
    assert!(before.elapsed() >= ms(290), "{:?}", before.elapsed());
    gateway.change(&file("attempts: 1"));
    clients.extend(line_up(&gateway, 0..2, 0));
    busy.open();
    for client in &mut clients {
        client.response().expect(200);
    }
    assert_eq!(busy.numbers(), [0, 1]);
    assert_eq!(waiting(&gateway), 0.0);
}
