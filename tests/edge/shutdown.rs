//! TERM during all kinds of traffic at once.

use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::caller::{begin, call, finish, next, request};
use super::http2_tunnels::{connect, websocket_echo};
use super::tunnels::tunnels;
use crate::support::*;

/// Requests in flight and in a queue, tunnels, and streams: no new connection is accepted, all that can finish does,
/// the rest is cut at the deadline, and the exit code is 0.
#[test]
fn everything_ends_by_the_deadline() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let mut gateway = Gateway::start(&format!(
        "server: {{ timeouts: {{ shutdown: 2s }} }}\n\
         limits: {{ q: {{ key: global, algorithm: leaky_bucket, rate: 5/s, queue: 10 }} }}\nlocations:\n  \
           - {{ path: /slow, upstream: \"{0}\" }}\n  - {{ path: /chat, upstream: \"http://{1}\" }}\n  \
           - {{ path: /, upstream: \"{0}\", limits: q }}\n",
        upstream.url(),
        websocket_echo()
    ));
    let addr = gateway.addr();
    let noise = Noise::listen();
    let mut busy = gateway.client();
    busy.send(get("/slow").bytes());
    let mut waiting: Vec<Client> = (0..5).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(get("/").bytes()));
    let idle = gateway.client();
    let (mut socket, _) =
        tungstenite::client(format!("ws://{addr}/chat"), TcpStream::connect(addr).expect("a place"))
            .expect("a switch");
    let (ended, exit) = call(addr, async |sender| {
        let (slow, _) = begin(&sender, request("GET", "/slow"), true).await;
        let (queued, _) = begin(&sender, request("GET", "/"), true).await;
        let (tunnel, _kept) = begin(&sender, connect("/chat"), false).await;
        let mut tunnel = tunnel.await.expect("an answer").into_body();
        upstream.wait_for(3);
        gateway.wait_queued(4);
        assert_eq!(tunnels(&gateway), 2.0);
        let start = Instant::now();
        gateway.term();
        eventually("the listener to close", || TcpStream::connect(addr).is_err());
        // A connection of another test may have the port for a moment.
        eventually("nobody to listen", || TcpListener::bind(addr).is_ok());
        thread::sleep(ms(300));
        gate.open();
        assert_eq!(finish(slow).await.expect("an answer").body, b"held");
        assert_eq!(finish(queued).await.expect("an answer").body, b"ok");
        while next(&mut tunnel).await.is_some_and(|piece| piece.is_ok()) {}
        (start.elapsed(), gateway.wait_exit())
    });
    assert_eq!(exit, 0);
    assert!(ended > ms(1500) && ended < ms(2500) + noise.late(), "{ended:?}");
    assert_eq!(busy.response().expect(200).text(), "held");
    waiting.iter_mut().for_each(|client| assert_eq!(client.response().expect(200).text(), "ok"));
    assert!(socket.read().is_err(), "the tunnel goes on");
    { idle }.assert_closed();
}
