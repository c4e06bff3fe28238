//! Upgrades over HTTP/1: permission, transparency, and the resources of an open tunnel.

use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::floods::rss;
use crate::support::*;

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n";

/// A server that switches, then echoes, and ends when its client does.
fn echo(first: &'static str) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let accepting = listener.try_clone().expect("a handle");
    thread::spawn(move || {
        for mut stream in accepting.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let early = read_head(&mut stream);
                let _ = std::io::Write::write_all(&mut stream, &[first.as_bytes(), &early].concat());
                let _ = std::io::copy(&mut stream.try_clone().expect("a handle"), &mut stream);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    listener
}

/// Reads to the empty line; returns the bytes behind it.
fn read_head(stream: &mut TcpStream) -> Vec<u8> {
    let (mut seen, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        if let Some(at) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
            return seen.split_off(at + 4);
        }
        match stream.read(&mut chunk) {
            Ok(count @ 1..) => seen.extend_from_slice(&chunk[..count]),
            _ => return Vec::new(),
        }
    }
}

/// The next connection, after its whole head was read and the switch was sent.
fn granted(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().expect("a connection");
    read_head(&mut stream);
    std::io::Write::write_all(&mut stream, SWITCH.as_bytes()).expect("it takes bytes");
    stream
}

fn before(server: &TcpListener, extra: &str, of_location: &str) -> Gateway {
    let addr = server.local_addr().expect("an address");
    Gateway::start(&format!(
        "{extra}\naccess_log: {{ output: stdout }}\nupstreams: {{ app: {{ servers: [\"{addr}\"], timeouts: {{ idle: 2s }} }} }}\n\
         locations:\n  - {{ path: /, upstream: app{of_location} }}\n"
    ))
}

fn upgrade() -> Ask {
    get("/chat").header("Connection", "keep-alive, Upgrade").header("Upgrade", "test")
}

#[track_caller]
fn switched(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    let answer = client.ask(&upgrade()).expect(101);
    assert_eq!(answer.header("upgrade").as_deref(), Some("test"));
    assert_eq!(answer.header("connection").as_deref(), Some("Upgrade"));
    client
}

#[track_caller]
fn echoes(client: &mut Client, text: &[u8]) {
    client.send(text);
    assert_eq!(client.take(text.len()), text);
}

/// Bytes pass unchanged both ways, and the log has their number, the duration, and the switch.
#[test]
fn a_tunnel_passes_bytes_and_is_logged() {
    let gateway = before(&echo(SWITCH), "", "");
    let mut client = switched(&gateway);
    for text in [&b"abc"[..], &[0; 1000], b"GET / HTTP/1.1\r\n\r\n"] {
        echoes(&mut client, text);
    }
    assert_eq!(tunnels(&gateway), 1.0);
    client.half_close();
    let (rest, end) = client.until_close();
    assert_eq!((rest.len(), end), (0, End::Closed));
    let line = &gateway.wait_log(1)[0];
    assert_eq!(
        (&line["status"], &line["bytes"], &line["received"]),
        (&101.into(), &1021.into(), &1021.into())
    );
    eventually("the tunnel to be closed", || tunnels(&gateway) == 0.0);
    assert_eq!(gateway.metric("sluicegate_tunnels_opened_total", &[]), 1.0);
    assert_eq!(gateway.metric("sluicegate_tunnel_bytes_total", &["received"]), 1021.0);
    // The life of a tunnel is no response time.
    assert_eq!(gateway.metric("sluicegate_requests_total", &["location=\"/\"", "status=\"1xx\""]), 1.0);
    assert_eq!(gateway.metric("sluicegate_request_duration_seconds_count", &[]), 0.0);
}

/// Tunnels that are open.
pub fn tunnels(gateway: &Gateway) -> f64 {
    gateway.metric("sluicegate_tunnels", &[])
}

/// Bytes in the same segment as the head of either side are not lost.
#[test]
fn bytes_behind_the_heads_are_not_lost() {
    let first = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\nhello ";
    let gateway = before(&echo(first), "", "");
    for _ in 0..20 {
        let mut client = gateway.client();
        client.send([upgrade().bytes(), b"early".to_vec()].concat());
        client.response().expect(101);
        assert_eq!(client.take(11), b"hello early");
    }
}

/// Bytes that the other side does not read are held back, not collected.
#[test]
fn a_side_that_does_not_read_holds_the_other_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gateway = before(&listener, "", "");
    let mut client = gateway.client();
    client.send(upgrade().bytes());
    let mut server = granted(&listener);
    client.response().expect(101);
    let before = rss(&gateway);
    let mut writer = client.writer();
    let sender = thread::spawn(move || {
        let piece = [b'x'; 64 * 1024];
        (0..1600).take_while(|_| writer.write_all(&piece).is_ok()).count()
    });
    thread::sleep(ms(700));
    assert!(!sender.is_finished(), "100 MiB were taken though nobody reads");
    assert!(rss(&gateway) < before + 8 * 1024, "{} KiB, then {}", before, rss(&gateway));
    let mut taken = 0;
    let mut chunk = vec![0; 1 << 20];
    while taken < 1600 * 64 * 1024 {
        match server.read(&mut chunk).expect("it goes on") {
            0 => break,
            count => taken += count,
        }
    }
    assert_eq!((taken, sender.join().expect("it ends")), (1600 * 64 * 1024, 1600));
}

/// When the server is gone, the client gets everything sent before, then the end.
#[test]
fn the_end_of_the_server_reaches_the_client() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gateway = before(&server, "", "");
    let mut client = gateway.client();
    client.send(upgrade().bytes());
    let mut stream = granted(&server);
    thread::spawn(move || std::io::Write::write_all(&mut stream, &[b'z'; 300_000]));
    client.response().expect(101);
    let (bytes, end) = client.until_close();
    assert_eq!((bytes.len(), end), (300_000, End::Closed));
}

/// When the client is gone, the server gets the end.
#[test]
fn the_end_of_the_client_reaches_the_server() {
    for by_reset in [false, true] {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let gateway = before(&server, "", "");
        let mut client = gateway.client();
        client.send(upgrade().bytes());
        let mut stream = granted(&server);
        client.response().expect(101);
        if by_reset {
            client.reset()
        } else {
            drop(client)
        }
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let ended = stream.read(&mut [0; 10]);
        assert!(
            matches!(ended, Ok(0)) || ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
        );
        drop(stream);
        eventually("the tunnel to be closed", || tunnels(&gateway) == 0.0);
    }
}

/// A tunnel holds its concurrency slot for its whole life.
#[test]
fn a_tunnel_holds_its_slot() {
    let gateway =
        before(&echo(SWITCH), "", ", limits: { algorithm: concurrency, max_concurrent: 1, key: global }");
    let mut client = switched(&gateway);
    gateway.get("/").expect(503);
    echoes(&mut client, b"still here");
    gateway.ask(&upgrade()).expect(503);
    drop(client);
    eventually("the slot", || gateway.ask(&upgrade()).status == 101);
}

/// A thousand broken tunnels leave nothing behind.
#[test]
fn broken_tunnels_give_their_slots_back() {
    let gateway =
        before(&echo(SWITCH), "", ", limits: { algorithm: concurrency, max_concurrent: 50, key: global }");
    for round in 0..200 {
        let mut client = gateway.client();
        client.send(upgrade().bytes());
        match round % 4 {
            0 => client.reset(),
            1 => drop(client.response()),
            2 => {
                client.response();
                client.reset();
            }
            _ => drop(client),
        }
    }
    eventually("every slot", || {
        let mut clients: Vec<Client> = (0..50).map(|_| gateway.client()).collect();
        clients.iter_mut().all(|client| client.ask(&upgrade()).status == 101)
    });
}

/// An idle tunnel is closed, an active one is not.
#[test]
fn an_idle_tunnel_is_closed() {
    let gateway = before(&echo(SWITCH), "", ", timeout: 1s");
    let noise = Noise::listen();
    let mut client = switched(&gateway);
    for _ in 0..5 {
        thread::sleep(ms(600));
        echoes(&mut client, b"ping");
    }
    let start = Instant::now();
    client.until_close();
    let took = start.elapsed();
    assert!(took > ms(1950) && took < ms(2600) + noise.late(), "closed after {took:?}");
}

/// The shutdown waits for tunnels as for requests, and ends them at its deadline.
#[test]
fn a_tunnel_ends_at_the_shutdown_deadline() {
    let mut gateway = before(&echo(SWITCH), "server: { timeouts: { shutdown: 1s } }", "");
    let noise = Noise::listen();
    let mut client = switched(&gateway);
    echoes(&mut client, b"abc");
    let start = Instant::now();
    gateway.term();
    thread::sleep(ms(300));
    echoes(&mut client, b"def");
    client.until_close();
    assert!(start.elapsed() < ms(1600) + noise.late(), "{:?}", start.elapsed());
    assert_eq!(gateway.wait_exit(), 0);
    let line = &gateway.wait_log(1)[0];
    assert_eq!((&line["bytes"], &line["received"]), (&6.into(), &6.into()));
}

/// The upstream sees the Upgrade as it was sent; a forbidden one becomes an ordinary request.
#[test]
fn permitted_upgrades_reach_the_upstream() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let seen = |upgrade: &[(&str, &str)]| {
        let ask = upgrade.iter().fold(get("/"), |ask, (name, value)| ask.header(name, value));
        gateway.ask(&ask).expect(200);
        let seen = upstream.requests().pop().expect("a request");
        (seen.header("upgrade"), seen.header("connection"), seen.header("http2-settings"))
    };
    let passed = |upgrade: &str| (Some(upgrade.to_owned()), Some("Upgrade".to_owned()), None);
    for upgrade in ["websocket", "WebSocket", "proto1, websocket, proto2", "foo/1"] {
        assert_eq!(seen(&[("Connection", "Upgrade"), ("Upgrade", upgrade)]), passed(upgrade));
    }
    for dropped in [
        &[("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")][..],
        &[("Connection", "Upgrade"), ("Upgrade", "websocket, h2c")],
        &[("Connection", "Upgrade"), ("Upgrade", "H2C")],
        &[("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Upgrade", "h2c")],
        &[("Upgrade", "websocket")],
        &[("Connection", "Upgrade")],
    ] {
        assert_eq!(seen(dropped), (None, None, None), "{dropped:?}");
    }
    // Neither with a body nor in HTTP/1.0.
    let ask = post("/", b"abc").header("Connection", "Upgrade").header("Upgrade", "websocket");
    gateway.ask(&ask).expect(200);
    let mut old = gateway.client();
    old.send("GET / HTTP/1.0\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    old.response().expect(200);
    let seen = upstream.requests();
    assert!(seen[seen.len() - 2..].iter().all(|seen| seen.header("upgrade").is_none()), "{seen:?}");
}

/// A switch to an unrequested protocol is no valid answer, and opens nothing.
#[test]
fn an_unrequested_switch_is_502() {
    for answer in [
        "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: test\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test, h2c\r\n\r\n",
    ] {
        let upstream = Upstream::new(move |_| Reply::raw(answer));
        let gateway = forwarding(&upstream, "");
        let mut client = gateway.client();
        client.ask(&upgrade()).expect(502);
        gateway.get("/").expect(502);
        upstream.wait_ended(2);
    }
}

/// Any other answer is an ordinary one, even with upgrade fields; its connection is not used again.
#[test]
fn an_answer_without_a_switch_is_ordinary() {
    let upstream =
        Upstream::new(|_| Reply::with(200, &[("Connection", "Upgrade"), ("Upgrade", "test")], "no"));
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    for _ in 0..3 {
        let answer = client.ask(&upgrade()).expect(200);
        assert_eq!((answer.text().as_str(), answer.header("upgrade")), ("no", None));
    }
    // This is no tunnel: the next bytes are a request.
    client.ask(&get("/next")).expect(200);
    assert_eq!(upstream.connections(), 4);
    upstream.wait_ended(3);
}

/// CVE-2026-2833: no client bytes are passed on raw before the upstream has switched.
#[test]
fn nothing_passes_before_the_switch() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/chat", &gate);
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.send([upgrade().bytes(), b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()].concat());
    upstream.wait_for(1);
    thread::sleep(ms(200));
    assert!(upstream.raw(0).ends_with(b"\r\n\r\n"));
    assert_eq!(upstream.count(), 1);
    gate.open();
    assert_eq!(client.response().expect(200).text(), "held");
    // The following bytes are a request of their own, judged like any other.
    client.response().expect(200);
    assert_eq!(upstream.targets(), ["/chat", "/smuggled"]);
}

/// A rejected request is answered, not switched.
#[test]
fn a_refused_upgrade_is_an_ordinary_refusal() {
    let gateway = before(&echo(SWITCH), "", ", limits: { key: global, rate: 1/h }");
    let client = switched(&gateway);
    gateway.ask(&upgrade()).expect(429);
    drop(client);
}

/// The last request of a connection may be a switch: its connection header is the one of the switch.
#[test]
fn the_last_request_may_switch() {
    let gateway = before(&echo(SWITCH), "server: { keepalive: { requests: 1 } }", "");
    let mut client = switched(&gateway);
    echoes(&mut client, b"abc");
}

/// Plain CONNECT is not an upgrade.
#[test]
fn connect_stays_refused() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    client.send("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    client.response().expect(405);
    assert_eq!(upstream.count(), 0);
}

/// A reader that stops is cut at the write deadline, as within an ordinary answer.
#[test]
fn a_stopped_reader_of_a_tunnel_is_cut() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gateway = before(&server, "server: { timeouts: { write: 1s } }", "");
    let mut client = Client::connect_narrow(gateway.addr());
    client.send(upgrade().bytes());
    let mut stream = granted(&server);
    client.response().expect(101);
    stream.set_write_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
    let start = Instant::now();
    let piece = [b'x'; 64 * 1024];
    while std::io::Write::write_all(&mut stream, &piece).is_ok() {
        assert!(start.elapsed() < ms(5000), "it is never cut");
    }
    eventually("the tunnel to be closed", || tunnels(&gateway) == 0.0);
    assert!(start.elapsed() < ms(4500), "{:?}", start.elapsed());
}
