//! The effect of the end of the process on its clients, and the time until the next process serves.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;

use crate::support::*;

/// TERM with requests in flight and in a queue: all are answered, no new connection is accepted, and the exit code is
/// 0.
#[test]
fn term_serves_requests_in_flight_and_in_queues() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let mut gateway = Gateway::start(&format!(
        "limits: {{ q: {{ key: global, algorithm: leaky_bucket, rate: 5/s, queue: 10 }} }}\nlocations:\n  \
           - {{ path: /slow, upstream: \"{0}\" }}\n  - {{ path: /, upstream: \"{0}\", limits: q }}\n",
        upstream.url()
    ));
    let mut busy = gateway.client();
    busy.send(get("/slow").bytes());
    upstream.wait_for(1);
    let mut waiting: Vec<Client> = (0..5).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/").bytes()));
    gateway.wait_queued(4);
    gateway.term();
    let addr = gateway.addr();
    eventually("the listener to close", || TcpStream::connect(addr).is_err());
    for client in &mut waiting {
        assert_eq!(client.response().expect(200).text(), "ok");
    }
    gate.open();
    assert_eq!(busy.response().expect(200).text(), "held");
    assert_eq!(gateway.wait_exit(), 0);
}

/// TERM under HTTP/2: streams that began are answered, and the client gets a GOAWAY.
#[test]
fn term_ends_h2_connections_with_a_goaway() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let mut gateway = forwarding(&upstream, "");
    let nghttp = Command::new("nghttp")
        .args(["-v", "-t10", &format!("http://{}/", gateway.addr())])
        .stdout(Stdio::piped())
        .spawn()
        .expect("nghttp is installed");
    upstream.wait_for(1);
    gateway.term();
    thread::sleep(ms(200));
    gate.open();
    let text = String::from_utf8_lossy(&nghttp.wait_with_output().expect("nghttp ends").stdout).into_owned();
    assert!(text.contains(":status: 200") && text.contains("recv GOAWAY frame"), "{text}");
    assert_eq!(gateway.wait_exit(), 0);
}

/// A connection that the kernel had accepted before TERM is served, though the gateway had not accepted it yet.
#[test]
fn term_accepts_the_queue() {
    let mut gateway =
        Gateway::start("server: { workers: 1 }\nlocations:\n  - { path: /, respond: { body: ok } }\n");
    gateway.signal(Signal::STOP);
    let mut clients: Vec<Client> = (0..10).map(|_| gateway.client()).collect();
    clients.iter_mut().for_each(|client| client.send(get("/").bytes()));
    gateway.term();
    gateway.signal(Signal::CONT);
    for client in &mut clients {
        client.response().expect(200);
    }
    assert_eq!(gateway.wait_exit(), 0);
}

/// Killed and restarted twenty times under load on the same port, it listens again within a second.
#[test]
fn a_killed_gateway_listens_again_within_a_second() {
    let port = free_addr();
    let yaml = format!("listen: {port}\nlocations:\n  - {{ path: /, respond: {{ body: ok }} }}\n");
    let mut gateway = Gateway::start(&yaml);
    let (ended, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    if is_served(port) {
                        served.fetch_add(1, Relaxed);
                    } else {
                        thread::sleep(ms(5));
                    }
                }
            });
        }
        for _ in 0..20 {
            let clients: Vec<Client> = (0..10).map(|_| gateway.client()).collect();
            gateway.get("/").expect(200);
            gateway.signal(Signal::KILL);
            eventually("its end", || !gateway.is_running());
            let start = Instant::now();
            gateway = Gateway::start(&yaml);
            gateway.get("/").expect(200);
            assert!(start.elapsed() < ms(1000), "{:?}", start.elapsed());
            drop(clients);
        }
        ended.store(true, Relaxed);
    });
    assert!(served.load(Relaxed) > 20, "only {} were served", served.load(Relaxed));
}

/// One request of a client, which may fail when the gateway is killed.
fn is_served(addr: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(addr) else { return false };
    let mut answer = String::new();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").and_then(|()| stream.read_to_string(&mut answer)).is_ok()
        && answer.ends_with("\r\n\r\nok")
}
