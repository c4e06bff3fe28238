//! Clients that do not finish a handshake, or speak another protocol: each is bounded, and leaves nothing
//! behind.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::support::tls::shake_hands;
use crate::support::*;

fn tls_gateway(server: &str) -> (Authority, Gateway) {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let gateway = Gateway::start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]\nserver: {server}\n\
         locations: [{{ path: /, upstream: demo }}]\n",
        authority.entry("a")
    ));
    (authority, gateway)
}

/// The first bytes that a client of `authority` would send.
fn hello(authority: &Authority) -> Vec<u8> {
    let name = rustls::pki_types::ServerName::try_from("a.test").unwrap();
    let config = Arc::new(authority.client(None));
    let mut connection = rustls::ClientConnection::new(config, name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

fn handshakes(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("sluicegate_tls_handshakes_total", &[result])
}

/// The time until the gateway closes.
#[track_caller]
fn closed_after(addr: SocketAddr, act: impl FnOnce(&mut Client)) -> std::time::Duration {
    let start = Instant::now();
    let mut client = Client::connect(addr);
    act(&mut client);
    client.until_close();
    start.elapsed()
}

/// An unfinished handshake ends after `timeouts.handshake`, however slowly it continues.
#[test]
fn a_handshake_has_a_deadline() {
    let (authority, gateway) = tls_gateway("{ timeouts: { handshake: 1s, header: 300ms, idle: 300ms } }");
    let hello = hello(&authority);
    let addr = gateway.addr();
    let silent = thread::spawn(move || closed_after(addr, |_| {}));
    let half = hello[..hello.len() / 2].to_vec();
    let partial = thread::spawn(move || closed_after(addr, |client| client.send(half)));
    let whole = hello.clone();
    let unanswered = thread::spawn(move || closed_after(addr, |client| client.send(whole)));
    let dripping = thread::spawn(move || {
        closed_after(addr, |client| {
            for byte in hello {
                if client.try_send([byte]).is_err() {
                    break;
                }
                thread::sleep(ms(20));
            }
        })
    });
    for (what, thread) in
        [("silent", silent), ("partial", partial), ("unanswered", unanswered), ("dripping", dripping)]
    {
        let took = thread.join().unwrap();
        // A write into a closed connection is noticed a little later.
        assert!((ms(1000)..ms(3000)).contains(&took), "{what}: {took:?}");
    }
    eventually("four are counted", || handshakes(&gateway, "timed_out") == 4.0);
    eventually("none is open", || gateway.metric("sluicegate_connections", &[]) == 0.0);
    assert_eq!(gateway.metric("sluicegate_faults_total", &["slow_head"]), 0.0);
}

/// After the handshake the ordinary deadlines hold: for the first byte, and for the rest of a head.
#[test]
fn the_first_request_has_its_deadlines() {
    let (authority, gateway) = tls_gateway("{ timeouts: { header: 700ms, idle: 2500ms } }");
    let config = Arc::new(authority.client(None));
    for (bytes, from, to) in [(&b""[..], 2500, 5000), (b"GET / HT", 700, 2400)] {
        let mut client = Client::over_tls(shake_hands(gateway.addr(), &config, "a.test").unwrap());
        let start = Instant::now();
        client.send(bytes);
        client.until_close();
        let took = start.elapsed();
        assert!((ms(from)..ms(to)).contains(&took), "{took:?} after {}", bytes.len());
    }
    // One record that holds a request and the beginning of the next.
    let mut client = Client::over_tls(shake_hands(gateway.addr(), &config, "a.test").unwrap());
    client.send([get("/").host("a.test").bytes(), b"GET / HT".to_vec()].concat());
    client.response().expect(200);
    let start = Instant::now();
    client.until_close();
    assert!(start.elapsed() < ms(2400), "{:?}", start.elapsed());
}

/// Plain HTTP on a TLS port gets a 400 that says so; other bytes are closed without HTTP.
#[test]
fn bytes_that_are_no_handshake_are_rejected() {
    let (_authority, gateway) = tls_gateway("{}");
    let mut client = gateway.client();
    client.send(get("/").bytes());
    let answer = client.response().expect(400);
    assert!(answer.text().contains("HTTPS") && answer.header("connection").as_deref() == Some("close"));
    client.assert_closed();
    for bytes in [&b"\0\0\0\0"[..], b"\x80\x2e\x01\x03\x01", b"SSH-2.0-x\r\n", b"\x16\x03\x01\xff\xff"] {
        let mut client = gateway.client();
        client.send(bytes);
        client.half_close();
        let (answer, end) = client.rest(PATIENCE);
        assert!(end != End::Deadline, "{}", bytes.escape_ascii());
        let is_explained = answer.starts_with(b"HTTP/1.1 400");
        assert_eq!(is_explained, bytes[0] == b'S', "{}", answer.escape_ascii());
    }
    eventually("they are counted", || handshakes(&gateway, "plain_http") == 4.0);
    assert_eq!(gateway.log_lines().len(), 0);
    assert!(!gateway.stderr().contains("handshake"), "no noise: {}", gateway.stderr());
}

/// A handshake sent to a plain HTTP port is closed.
#[test]
fn tls_on_a_plain_port_is_closed() {
    let (authority, _) = tls_gateway("{}");
    let gateway = Gateway::start("locations: [{ path: /, upstream: demo }]\n");
    let config = Arc::new(authority.client(None));
    let start = Instant::now();
    assert!(shake_hands(gateway.addr(), &config, "a.test").is_err());
    assert!(start.elapsed() < ms(3000), "{:?}", start.elapsed());
    gateway.get("/").expect(200);
}

/// A thousand clients that leave at any point of a handshake leave no connection and no slot behind.
#[test]
fn a_thousand_aborted_handshakes_leave_nothing() {
    raise_descriptors();
    let (authority, gateway) = tls_gateway("{ max_connections: 600, connections_per_ip: 590 }");
    let hello = hello(&authority);
    let mut open: Vec<TcpStream> = Vec::new();
    for round in 0..1000 {
        let mut stream = TcpStream::connect(gateway.addr()).unwrap();
        stream.write_all(&hello[..hello.len() * (round % 11) / 10]).unwrap();
        if round % 3 == 0 {
            socket2::SockRef::from(&stream).set_linger(Some(ms(0))).unwrap();
        }
        open.push(stream);
        if open.len() == 200 {
            open.clear();
        }
    }
    open.clear();
    eventually("none is open", || gateway.metric("sluicegate_connections", &[]) == 0.0);
    let config = Arc::new(authority.client(None));
    for _ in 0..3 {
        let stream = shake_hands(gateway.addr(), &config, "a.test").unwrap();
        Client::over_tls(stream).ask(&get("/").host("a.test")).expect(200);
    }
    assert_eq!(handshakes(&gateway, "full") + handshakes(&gateway, "resumed"), 3.0);
    assert_eq!(handshakes(&gateway, "timed_out"), 0.0);
    assert_eq!(gateway.wait_log(3).len(), 3);
}

/// A handshake counts as a connection of its address from the accept on.
#[test]
fn handshakes_count_as_connections_of_their_client() {
    let (authority, gateway) = tls_gateway("{ connections_per_ip: 2 }");
    let held: Vec<Client> = (0..2).map(|_| gateway.client()).collect();
    eventually("two are open", || gateway.metric("sluicegate_connections", &[]) == 2.0);
    let config = Arc::new(authority.client(None));
    assert!(shake_hands(gateway.addr(), &config, "a.test").is_err());
    drop(held);
    eventually("none is open", || gateway.metric("sluicegate_connections", &[]) == 0.0);
    assert!(shake_hands(gateway.addr(), &config, "a.test").is_ok());
}

/// TERM lets requests over TLS finish, and does not wait for clients that have sent nothing yet.
#[test]
fn the_shutdown_waits_for_requests_alone() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let mut gateway = Gateway::start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", tls: {{ {} }} }}]\nserver: {{ timeouts: {{ handshake: 1h }} }}\n\
         locations: [{{ path: /, upstream: \"{}\" }}]\n",
        authority.entry("a"),
        upstream.url()
    ));
    let config = Arc::new(authority.client(None));
    let mut client = Client::over_tls(shake_hands(gateway.addr(), &config, "a.test").unwrap());
    client.send(get("/").host("a.test").bytes());
    upstream.wait_for(1);
    let mut silent = gateway.client();
    eventually("both are open", || gateway.metric("sluicegate_connections", &[]) == 2.0);
    gateway.term();
    silent.assert_closed();
    gate.open();
    client.response().expect(200);
    assert_eq!(gateway.wait_exit(), 0);
}
