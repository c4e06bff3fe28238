//! Connections of clients: lifetime, number, and rejections during uploads.

use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::support::h2_raw::*;
use crate::support::*;

/// A location that rejects everything after the first request, and a gateway with the first used up.
fn exhausted_gateway(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\", limits: {{ key: global, rate: 1/h }} }}\n",
        upstream.url()
    ));
    gateway.get("/").expect(200);
    gateway
}

/// The last of `keepalive.requests` responses announces the close, and the connection is closed.
#[test]
fn a_connection_serves_a_bounded_number() {
    let gateway = Gateway::start(
        "server: { keepalive: { requests: 3 } }\nlocations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let mut client = gateway.client();
    for _ in 0..2 {
        assert_eq!(client.ask(&get("/")).expect(200).header("connection"), None);
    }
    assert_eq!(client.ask(&get("/")).expect(200).header("connection").as_deref(), Some("close"));
    client.assert_closed();
}

/// A connection older than `keepalive.age` is closed with its next response.
#[test]
fn a_connection_lives_a_bounded_time() {
    let gateway = Gateway::start(
        "server: { keepalive: { age: 500ms } }\nlocations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let mut client = gateway.client();
    assert_eq!(client.ask(&get("/")).expect(200).header("connection"), None);
    thread::sleep(ms(600));
    // It may be closed while idle, or with the next response.
    if client.try_send(get("/").bytes()).is_ok()
        && let Ok(response) = client.response_within(ms(3000))
    {
        assert_eq!(response.expect(200).header("connection").as_deref(), Some("close"));
        client.assert_closed();
    }
}

/// `Connection: close` from the client is honoured.
#[test]
fn a_client_may_ask_to_close() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.ask(&get("/").header("Connection", "close")).expect(200);
    client.assert_closed();
    // The upstream connection stays open.
    gateway.get("/").expect(200);
}

/// A rejected request keeps its connection usable if there is little or no body to drain.
#[test]
fn a_small_rejected_upload_keeps_the_connection() {
    let upstream = Upstream::ok();
    let gateway = exhausted_gateway(&upstream);
    let mut client = gateway.client();
    for size in [0, 10, 10_000, 60_000] {
        client.ask(&post("/", &vec![b'x'; size])).expect(429);
    }
    client.ask(&get("/")).expect(429);
    assert_eq!(upstream.count(), 1);
}

/// A client with a rejected upload of 3 MB reads its response, every time.
#[test]
fn a_large_rejected_upload_gets_its_response() {
    let upstream = Upstream::ok();
    let gateway = exhausted_gateway(&upstream);
    let body = vec![b'x'; 3_000_000];
    for round in 0..10 {
        let mut client = gateway.client();
        let bytes = post("/", &body).bytes();
        let mut writer = client.writer();
        let sender = thread::spawn(move || writer.write_all(&bytes).map_err(|e| e.kind()));
        let response = client.response_within(PATIENCE);
        let response = response.unwrap_or_else(|end| panic!("round {round}: the answer was lost: {end:?}"));
        assert_eq!(response.status, 429);
        drop(client);
        let sent = sender.join().expect("the sender ends");
        assert!(matches!(sent, Ok(()) | Err(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)), "{sent:?}");
    }
    assert_eq!(upstream.count(), 1);
}

/// Uploads to a location that responds by itself: a small one keeps the connection, a large one gets its
/// response.
#[test]
fn an_unread_upload_is_answered() {
    let gateway = Gateway::start("locations:\n  - { path: /, respond: { body: ok } }\n");
    let mut client = gateway.client();
    for _ in 0..3 {
        client.send_pieces(&[&post("/", &[b'x'; 10_000]).head(), &[b'x'; 10_000]], ms(50));
        client.response().expect(200);
    }
    for round in 0..10 {
        let mut client = gateway.client();
        let bytes = post("/", &vec![b'x'; 3_000_000]).bytes();
        let mut writer = client.writer();
        let sender = thread::spawn(move || writer.write_all(&bytes).map_err(|e| e.kind()));
        let response = client.response_within(PATIENCE);
        let response = response.unwrap_or_else(|end| panic!("round {round}: the answer was lost: {end:?}"));
        assert_eq!(response.status, 200);
        drop(client);
        let _ = sender.join().expect("the sender ends");
    }
}

/// A client that sends without end after a rejection is disconnected after the lingering time.
#[test]
fn an_endless_rejected_upload_is_cut() {
    let upstream = Upstream::ok();
    let gateway = exhausted_gateway(&upstream);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let start = Instant::now();
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
    while client.try_send(&chunk).is_ok() {
        assert!(start.elapsed() < ms(6000), "it may send for ever");
        thread::sleep(ms(5));
    }
}

/// A rejected Expect: 100-continue gets the final status at once, without a 100.
#[test]
fn a_rejected_expectation_is_never_continued() {
    let upstream = Upstream::ok();
    let gateway = exhausted_gateway(&upstream);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n");
    let response = client.response();
    assert_eq!((response.status, response.interim.len()), (429, 0));
    assert_eq!(upstream.count(), 1);
}

/// A queued Expect: 100-continue gets its 100 only at its turn.
#[test]
fn a_queued_expectation_continues_at_its_turn() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "locations:\n  - {{ path: /, upstream: \"{}\",
           limits: {{ key: global, algorithm: leaky_bucket, rate: 2/s, queue: 2 }} }}\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    let start = Instant::now();
    client.ask(&get("/")).expect(200);
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    let interim = client.raw_head(PATIENCE).expect("100 Continue");
    assert!(interim.starts_with(b"HTTP/1.1 100"));
    assert!(start.elapsed() >= ms(498), "continued after {:?}", start.elapsed());
    client.send("abc");
    client.response().expect(200);
}

/// A unix listener serves; its peers may announce the client's address.
#[test]
fn a_unix_listener_serves() {
    let dir = Scratch::new();
    let socket = dir.path().join("gateway.sock");
    let gateway = Gateway::start(&format!(
        "listen: [\"unix:{}\", \"127.0.0.1:0\"]\n\
         locations:\n  - path: /\n    respond: {{ body: \"${{client_ip}}\" }}\n    limits: {{ key: ip, rate: 2/h }}\n",
        socket.display()
    ));
    let ask = |forwarded: Option<&str>| {
        let ask = forwarded.map_or(get("/"), |ip| get("/").header("X-Forwarded-For", ip));
        Client::connect_unix(Path::new(&socket)).ask(&ask)
    };
    assert_eq!(ask(Some("192.0.2.1")).expect(200).text(), "192.0.2.1");
    assert_eq!(ask(Some("192.0.2.2")).expect(200).text(), "192.0.2.2");
    // Without a header they share one client.
    let seen: Vec<_> = (0..3).map(|_| ask(None).status).collect();
    assert_eq!(seen, [200, 200, 429]);
    gateway.get("/").expect(200);
}

/// A socket file left behind by a dead gateway does not prevent a start.
#[test]
fn a_stale_socket_file_is_replaced() {
    let dir = Scratch::new();
    let socket = dir.path().join("gateway.sock");
    let yaml = format!(
        "listen: \"unix:{}\"\nlocations:\n  - {{ path: /, respond: {{ body: ok }} }}\n",
        socket.display()
    );
    for _ in 0..2 {
        let gateway = Gateway::start(&yaml);
        Client::connect_unix(&socket).ask(&get("/")).expect(200);
        // Killed, not stopped: the file stays.
        drop(gateway);
    }
}

/// Without free file descriptors the gateway serves its open connections, waits without burning CPU,
/// and accepts again when there is room.
#[test]
fn the_gateway_survives_running_out_of_descriptors() {
    raise_descriptors();
    let gateway = Run::default()
        .under("ulimit -n 256")
        .start("server: { workers: 1 }\nlocations:\n  - { path: /, respond: { body: ok } }\n");
    let mut served = gateway.client();
    served.ask(&get("/")).expect(200);
    let crowd: Vec<_> = (0..1000).map_while(|_| connect_quickly(&gateway)).collect();
    assert!(crowd.len() > 250, "only {} connections could be opened", crowd.len());
    served.ask(&get("/")).expect(200);
    let before = cpu_ticks(&gateway);
    thread::sleep(ms(1000));
    let ticks = cpu_ticks(&gateway) - before;
    assert!(ticks < 20, "{ticks} % of a CPU while out of descriptors");
    served.ask(&get("/")).expect(200);
    drop(crowd);
    eventually("a new connection to be served", || {
        let mut client = gateway.client();
        client.try_send(get("/").bytes()).is_ok()
            && client.response_within(ms(2000)).is_ok_and(|r| r.status == 200)
    });
}

/// Without a descriptor for a connection to a server, the gateway reports it and blames no server.
#[test]
fn a_lack_of_descriptors_is_no_server_fault() {
    raise_descriptors();
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = Run::default().under("ulimit -n 64").start(&format!(
        "server: {{ workers: 1 }}\nupstreams:\n  app: {{ servers: [\"{}\"], eject: {{ errors: 1, for: 1h }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.url()
    ));
    // More streams than descriptors.
    let mut h2 = H2::open(gateway.addr());
    for n in 0..100 {
        h2.ask(2 * n + 1, &request("GET", "/", &[]));
    }
    let rejected = h2.wait(|frame| frame.kind == HEADERS).expect("a rejection");
    assert_eq!(status_of(&rejected.payload), 503);
    gate.open();
    for _ in 1..100 {
        h2.wait(|frame| frame.kind == HEADERS).expect("an answer");
    }
    // Idle connections to servers make room for clients, and one descriptor is kept free for this.
    assert_eq!(gateway.metric("sluicegate_upstream_ejections_total", &[]), 0.0);
    gateway.get("/").expect(200);
}

fn connect_quickly(gateway: &Gateway) -> Option<std::net::TcpStream> {
    std::net::TcpStream::connect_timeout(&gateway.addr(), ms(500)).ok()
}

/// CPU time of the gateway so far, in hundredths of a second.
fn cpu_ticks(gateway: &Gateway) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", gateway.pid())).expect("procfs");
    let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11..13].iter().map(|f| f.parse::<u64>().expect("ticks")).sum()
}
