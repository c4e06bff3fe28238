//! `server.body_memory`: the room of bodies that are read before they are judged.

use crate::support::h2_raw::{self, H2, Outcome};
use crate::support::*;

/// The room of one network is 256 KiB.
const SERVER: &str = "trusted_proxies: 127.0.0.1, body_memory: 1MiB";
const SLOW: &str = "203.0.113";
const HONEST: &str = "198.51.100.1";

/// The location of `location`, and one for slow uploads whose time does not end before that of others.
fn start(upstream: &Upstream, server: &str, location: &str) -> Gateway {
    Gateway::start(&format!(
        "server: {{ {SERVER}{server} }}\nlimits: {{ model: {{ key: json:/model, rate: 1000/s }} }}\nlocations:\n\
         \x20 - {{ path: /, upstream: \"{url}\", {location} }}\n\
         \x20 - {{ path: /slow, upstream: \"{url}\", limits: model, body_peek: 256KiB }}\n",
        url = upstream.url()
    ))
}

/// A body of JSON with this length.
fn body(bytes: usize) -> Vec<u8> {
    format!(r#"{{"model":"{}"}}"#, "m".repeat(bytes - 12)).into_bytes()
}

fn ask(ip: &str, bytes: usize) -> Ask {
    post("/", &body(bytes)).header("X-Forwarded-For", ip)
}

/// A client that sends the first bytes of a body of unknown length, and then nothing.
fn upload(gateway: &Gateway, ip: &str, bytes: usize) -> Client {
    let mut client = gateway.client();
    client.send(format!(
        "POST /slow HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {ip}\r\nTransfer-Encoding: chunked\r\n\r\n{bytes:x}\r\n"
    ));
    client.send(&body(bytes)[..bytes - 1]);
    client
}

fn in_flight(gateway: &Gateway, count: usize) {
    eventually("the requests in flight", || {
        gateway.metric("sluicegate_requests_in_flight", &[]) == count as f64
    });
}

/// Many slow uploads of one network fill its quarter, and clients of others do not notice.
#[test]
fn slow_uploads_stop_their_own_network_alone() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "", "limits: model, body_peek: 128KiB, timeout: 20s");
    let slow: Vec<Client> =
        (0..100).map(|n| upload(&gateway, &format!("{SLOW}.{}", n % 250), 100_000)).collect();
    in_flight(&gateway, 100);
    let honest = |from: usize| {
        let asks = (0..40)
            .map(move |n| post("/", &body(100_000)).header("X-Forwarded-For", format!("198.{from}.0.{n}")));
        volley(gateway.addr(), asks)
    };
    for from in [51, 52, 53] {
        let shots = honest(from);
        assert_eq!(volley::count(&shots, 200), 40);
    }
    // Of their own network even a small body waits, until they leave.
    let mut waiting = gateway.client();
    waiting.send(ask(&format!("{SLOW}.251"), 90_000).bytes());
    assert!(waiting.response_within(ms(300)).is_err(), "there is no room");
    drop(slow);
    waiting.response().expect(200);
    in_flight(&gateway, 0);
}

/// One client holds half of its network's room, so neighbours go on.
#[test]
fn slow_uploads_of_a_client_leave_room_to_its_neighbours() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ {SERVER} }}\nlimits: {{ model: {{ key: json:/model, rate: 1000/s }} }}\nlocations:\n\
         \x20 - {{ path: /, upstream: \"{}\", limits: model, body_peek: 32KiB, timeout: 10s }}\n",
        upstream.url()
    ));
    let slow: Vec<Client> = (0..12).map(|_| upload(&gateway, &format!("{SLOW}.1"), 30_000)).collect();
    in_flight(&gateway, 12);
    for neighbour in 2..6 {
        gateway.ask(&ask(&format!("{SLOW}.{neighbour}"), 30_000)).expect(200);
    }
    drop(slow);
    in_flight(&gateway, 0);
}

/// The bodies of one client take an eighth of `max_waiting`, those of its network a quarter.
#[test]
fn slow_uploads_leave_others_their_places() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ {SERVER}, max_waiting: 400 }}\nlimits:\n\
         \x20 model: {{ key: json:/model, rate: 1000/s }}\n\
         \x20 line: {{ key: global, algorithm: leaky_bucket, rate: 5/s, queue: 9 }}\nlocations:\n\
         \x20 - {{ path: /, upstream: \"{url}\", limits: model }}\n\
         \x20 - {{ path: /line, upstream: \"{url}\", limits: line }}\n",
        url = upstream.url()
    ));
    // A stream without a length weighs 17, an upload over HTTP/1 one.
    let mut h2 = H2::open(gateway.addr());
    let fields = h2_raw::request("POST", "/", &[("x-forwarded-for", "203.0.113.1")]);
    for stream in (0..40u32).map(|n| 2 * n + 1) {
        h2.send(h2_raw::HEADERS, h2_raw::END_HEADERS, stream, &h2_raw::block(&fields));
        h2.send(h2_raw::DATA, 0, stream, b"{");
    }
    let _slow: Vec<Client> =
        (0..60).map(|n| upload(&gateway, &format!("{SLOW}.{}", 1 + n / 30), 100)).collect();
    eventually("all uploads to be read or refused", || {
        let refused = gateway.metric("sluicegate_faults_total", &["too_many_waiting"]);
        gateway.metric("sluicegate_requests_in_flight", &[]) + refused == 100.0
    });
    gateway.ask(&ask(HONEST, 1_000)).expect(200);
    gateway.ask(&ask(&format!("{SLOW}.3"), 1_000)).expect(200);
    let line = volley(gateway.addr(), (0..3).map(|_| get("/line").header("X-Forwarded-For", HONEST)));
    assert_eq!(volley::count(&line, 200), 3);
    drop(h2);
}

/// The room of a POST is free once the server has its body, however long it thinks, and that of a longer body once its
/// beginning is sent.
#[test]
fn a_body_that_was_sent_gives_its_room_back() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/think", &gate);
    let gateway = Gateway::start(&format!(
        "server: {{ {SERVER} }}\nlimits:\n\
         \x20 model: {{ key: json:/model, rate: 1000/s }}\n\
         \x20 tokens: {{ key: global, rate: 1000/s, charge: {{ units: llm, reserve: {{ from: json:/n }} }} }}\nlocations:\n\
         \x20 - {{ path: /, upstream: \"{url}\", limits: model, body_peek: 256KiB, timeout: 5s }}\n\
         \x20 - {{ path: /slow, upstream: \"{url}\", limits: tokens, body_peek: 200KiB }}\n",
        url = upstream.url()
    ));
    let whole = || ask(HONEST, 256 << 10);
    for bytes in [1_000, 250_000] {
        let (mut thinking, before) = (gateway.client(), upstream.count());
        thinking.send(post("/think", &body(bytes)).header("X-Forwarded-For", HONEST).bytes());
        eventually("the body to arrive", || upstream.count() > before);
        gateway.ask(&whole()).expect(200);
    }
    let _slow = upload(&gateway, HONEST, 250_000);
    in_flight(&gateway, 1);
    gateway.ask(&whole()).expect(200);
    gate.open();
}

/// A body that waits for room holds no slot, and gets an honest answer when its time is over.
#[test]
fn a_wait_for_room_ends() {
    let upstream = Upstream::ok();
    let gateway = start(
        &upstream,
        "",
        "limits: [model, { algorithm: concurrency, max_concurrent: 1, key: global }], body_peek: 256KiB, timeout: 2s",
    );
    let slow = upload(&gateway, &format!("{SLOW}.1"), 250_000);
    in_flight(&gateway, 1);
    let mut waiting = gateway.client();
    waiting.send(ask(&format!("{SLOW}.2"), 100_000).bytes());
    in_flight(&gateway, 2);
    gateway.ask(&ask(HONEST, 200_000)).expect(200);
    let answer = waiting.response().expect(503);
    assert_eq!(answer.header("content-type").as_deref(), Some("application/problem+json"));
    assert!(answer.json()["detail"].as_str().unwrap().contains("leave no room for this one"));
    assert_eq!(answer.header("retry-after").as_deref(), Some("1"));
    assert_eq!(answer.header("connection").as_deref(), Some("close"));
    assert_eq!(gateway.metric("sluicegate_faults_total", &["no_body_room"]), 1.0);
    drop(slow);
    in_flight(&gateway, 0);
    assert_eq!(upstream.count(), 1);
}

/// Without a timeout of the location, the wait takes no longer than one for the client.
#[test]
fn a_wait_for_room_has_a_bound() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, ", timeouts: { body: 1s }", "limits: model, body_peek: 256KiB");
    let mut slow = upload(&gateway, &format!("{SLOW}.1"), 250_000);
    in_flight(&gateway, 1);
    let mut waiting = gateway.client();
    waiting.send(ask(&format!("{SLOW}.2"), 200_000).bytes());
    slow.response().expect(408);
    // The slow one has given back its room, or both have waited for a second.
    let status = waiting.response().status;
    assert!([200, 503].contains(&status), "{status}");
    in_flight(&gateway, 0);
}

/// Whatever ends a request, it leaves no room behind.
#[test]
fn room_is_given_back() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "", "limits: model, body_peek: 256KiB, timeout: 20s");
    for turn in 0..6 {
        let slow = upload(&gateway, &format!("{SLOW}.1"), 250_000);
        in_flight(&gateway, 1);
        // These wait for room, over HTTP/1 and HTTP/2.
        let waiting: Vec<Client> =
            (2..6).map(|n| upload(&gateway, &format!("{SLOW}.{n}"), 100_000)).collect();
        let mut h2 = H2::open(gateway.addr());
        let fields = h2_raw::request("POST", "/", &[("x-forwarded-for", "203.0.113.9")]);
        h2.send(h2_raw::HEADERS, h2_raw::END_HEADERS, 1, &h2_raw::block(&fields));
        for piece in body(30_000).chunks(10_000) {
            h2.send(h2_raw::DATA, 0, 1, piece);
        }
        in_flight(&gateway, 6);
        if turn % 2 == 0 {
            h2.send(h2_raw::RST_STREAM, 0, 1, &8u32.to_be_bytes());
            waiting.into_iter().for_each(Client::reset);
            in_flight(&gateway, 1);
            drop(slow);
        } else {
            drop((waiting, h2, slow));
        }
        in_flight(&gateway, 0);
        // The whole room of the network is free again.
        gateway.ask(&ask(&format!("{SLOW}.7"), 256 << 10)).expect(200);
        gateway.ask(&ask(&format!("{SLOW}.7"), (256 << 10) + 1)).expect(413);
    }
}

/// Bodies that are read piece by piece at the same time need more room together than there is, and all are answered.
#[test]
fn bodies_do_not_wait_for_each_other_for_ever() {
    let upstream = Upstream::ok();
    let gateway = start(&upstream, "", "limits: model, body_peek: 256KiB, timeout: 30s");
    let body = body(200_000);
    let mut clients: Vec<Client> =
        (0..12).map(|n| upload(&gateway, &format!("{SLOW}.{n}"), 200_000)).collect();
    in_flight(&gateway, 12);
    clients.iter_mut().for_each(|client| client.send([&body[body.len() - 1..], b"\r\n0\r\n\r\n"].concat()));
    clients.iter_mut().for_each(|client| drop(client.response().expect(200)));
    assert!(upstream.requests().iter().all(|seen| seen.body == body));
    // Over HTTP/2 on one connection, by turns.
    let mut h2 = H2::open(gateway.addr());
    let fields = h2_raw::request("POST", "/", &[("x-forwarded-for", "203.0.113.9")]);
    let streams = || (0..6u32).map(|n| 2 * n + 1);
    streams()
        .for_each(|stream| h2.send(h2_raw::HEADERS, h2_raw::END_HEADERS, stream, &h2_raw::block(&fields)));
    for piece in body[..60_000].chunks(10_000) {
        streams().for_each(|stream| h2.send(h2_raw::DATA, 0, stream, piece));
    }
    streams().for_each(|stream| h2.send(h2_raw::DATA, h2_raw::END_STREAM, stream, b"\"}"));
    for stream in streams() {
        assert!(matches!(h2.outcome(stream), Outcome::Answered(200, _)), "{stream}");
    }
    in_flight(&gateway, 0);
}
