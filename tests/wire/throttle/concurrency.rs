//! Concurrency limits, overload caps, and slots that always return.

use std::thread;
use std::time::Instant;

use crate::support::h2_raw::*;
use crate::support::*;

/// Three locations in front of `upstream`: `/a` and `/b` share a limit of one, `/c` has its own.
fn sharing_gateway(upstream: &Upstream) -> Gateway {
    let url = upstream.url();
    Gateway::start(&format!(
        "limits:\n  one: {{ key: global, algorithm: concurrency, max_concurrent: 1 }}\n  \
           own: {{ key: global, algorithm: concurrency, max_concurrent: 1 }}\n\
         locations:\n  - {{ path: /a, upstream: \"{url}\", limits: one }}\n  \
           - {{ path: /b, upstream: \"{url}\", limits: one }}\n  \
           - {{ path: /c, upstream: \"{url}\", limits: own }}\n"
    ))
}

/// An upstream that holds requests for `/hold` paths until the gate opens and answers others at once.
fn holding(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::new(move |seen| {
        let reply = Reply::text("ok");
        if seen.target.contains("hold") { reply.held_by(&gate) } else { reply }
    })
}

/// Users of a shared limit are rejected while one is in flight, others pass; the slot is free 200 ms
/// after its client has gone.
#[test]
fn a_shared_slot_is_freed_when_its_client_leaves() {
    let gate = Gate::default();
    let upstream = holding(&gate);
    let gateway = sharing_gateway(&upstream);
    let mut holder = gateway.client();
    holder.send(get("/a/hold").bytes());
    upstream.wait_for(1);
    let rejected = gateway.get("/a").expect(503);
    assert_eq!(rejected.header("retry-after").as_deref(), Some("1"));
    assert_eq!(rejected.json()["limit"], "one");
    assert!(rejected.json().get("retry_after_ms").is_none(), "{}", rejected.text());
    assert_eq!(rejected.header("ratelimit").as_deref(), Some("\"one\";r=0"));
    gateway.get("/b").expect(503);
    gateway.get("/c").expect(200);
    let noise = Noise::listen();
    drop(holder);
    let left = Instant::now();
    eventually("a free slot", || gateway.get("/b").status == 200);
    assert!(left.elapsed() < ms(200) + noise.late(), "the slot took {:?}", left.elapsed());
}

/// Accounts have a slot each, shared over the locations that name the limit.
#[test]
fn each_account_has_its_own_slots() {
    let gate = Gate::default();
    let upstream = holding(&gate);
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "account: {{ from: header:x-account }}\n\
         limits:\n  one: {{ key: account, algorithm: concurrency, max_concurrent: 1 }}\n\
         locations:\n  - {{ path: /a, upstream: \"{url}\", limits: one }}\n  \
           - {{ path: /b, upstream: \"{url}\", limits: one }}\n"
    ));
    let mut holder = gateway.client();
    holder.send(get("/a/hold").header("X-Account", "ann").bytes());
    upstream.wait_for(1);
    gateway.ask(&get("/b").header("X-Account", "ann")).expect(503);
    gateway.ask(&get("/b").header("X-Account", "bob")).expect(200);
    gate.open();
    holder.response().expect(200);
    gateway.ask(&get("/b").header("X-Account", "ann")).expect(200);
}

/// A thousand requests that are aborted in every phase leave nothing in flight.
#[test]
fn aborted_requests_free_their_slots() {
    let body = "x".repeat(200_000);
    let gate = Gate::default();
    let script = gate.clone();
    let upstream = Upstream::new(move |seen| match seen.target.as_str() {
        "/held" => Reply::text("ok").held_by(&script),
        "/slow" => Reply::text("late").after(ms(400)),
        "/half" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc").pause(ms(300)).close(),
        "/cut" => Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc").close(),
        "/gone" => Reply::default().reset(),
        "/large" => Reply::text(&body),
        _ => Reply::text("ok"),
    });
    let gateway = Gateway::start(&format!(
        "limits:\n  few: {{ key: global, algorithm: concurrency, max_concurrent: 40 }}\n\
         locations:\n  - {{ path: /, upstream: \"{}\", limits: few }}\n",
        upstream.url()
    ));
    for round in 0..25 {
        let mut crowd: Vec<_> = (0..40).map(|_| gateway.client()).collect();
        for (n, client) in crowd.iter_mut().enumerate() {
            let kind = ["/slow", "/half", "/cut", "/gone", "/large"][n % 5];
            if n % 10 == 9 {
                client.send(b"POST /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf");
            } else {
                client.send(get(kind).bytes());
            }
        }
        if round % 2 == 0 {
            thread::sleep(ms(10));
        }
        for (n, client) in crowd.into_iter().enumerate() {
            if n % 2 == 0 { client.reset() } else { drop(client) }
        }
    }
    eventually("all forty slots", || {
        let shots = volley(gateway.addr(), (0..40).map(|_| get("/ok")));
        shots.iter().all(|shot| shot.response.status == 200)
    });
    // And the limit still counts.
    let mut crowd: Vec<_> = (0..40).map(|_| gateway.client()).collect();
    crowd.iter_mut().for_each(|client| client.send(get("/held").bytes()));
    eventually("forty held requests", || {
        upstream.requests().iter().filter(|seen| seen.target == "/held").count() == 40
    });
    gateway.get("/ok").expect(503);
    gate.open();
}

/// A slot is held until the last byte of the response is out, not only its head.
#[test]
fn a_slot_is_held_while_the_body_streams() {
    let gate = Gate::default();
    let script = gate.clone();
    let upstream = Upstream::new(move |_| {
        Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc").until(&script).then("def")
    });
    let gateway = sharing_gateway(&upstream);
    let mut holder = gateway.client();
    holder.send(get("/a").bytes());
    holder.raw_head(PATIENCE).expect("the head comes before the body");
    gateway.get("/a").expect(503);
    gate.open();
    assert_eq!(holder.rest(ms(300)).0, b"abcdef");
    gateway.get("/a").expect(200);
}

/// Waiting requests hold no slot: the queue comes first, concurrency after it.
#[test]
fn a_queued_request_holds_no_slot() {
    let upstream = Upstream::ok();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "limits:\n  slot: {{ key: global, algorithm: concurrency, max_concurrent: 1 }}\n  \
           queue: {{ key: global, algorithm: leaky_bucket, rate: 2/s, queue: 3 }}\n\
         locations:\n  - {{ path: /queued, upstream: \"{url}\", limits: [slot, queue] }}\n  \
           - {{ path: /direct, upstream: \"{url}\", limits: slot }}\n"
    ));
    gateway.get("/queued").expect(200);
    let start = Instant::now();
    let mut waiter = gateway.client();
    waiter.send(get("/queued").bytes());
    gateway.wait_queued(1);
    gateway.get("/direct").expect(200);
    let waited = waiter.response().expect(200).at - start;
    assert!(waited > ms(400), "it waited only {waited:?}");
}

/// A server takes `max_connections` from all workers together; a request beyond that is answered 503.
#[test]
fn upstream_connections_are_capped() {
    for (servers, cap, served) in [(1, 3, 3), (2, 1, 2)] {
        let gate = Gate::default();
        let upstreams: Vec<_> = (0..servers).map(|_| Upstream::held_by(&gate)).collect();
        let list = upstreams.iter().map(|u| u.addr().to_string()).collect::<Vec<_>>().join(", ");
        let gateway = Gateway::start(&format!(
            "upstreams:\n  app: {{ servers: [{list}], max_connections: {cap} }}\n\
             locations:\n  - {{ path: /, upstream: app }}\n"
        ));
        let mut clients: Vec<_> = (0..=served).map(|_| gateway.client()).collect();
        for client in &mut clients[..served] {
            client.send(get("/").bytes());
        }
        for upstream in &upstreams {
            upstream.wait_for(cap);
        }
        let rejected = clients[served].ask(&get("/")).expect(503);
        let kind = rejected.json()["type"].as_str().expect("a type").to_owned();
        assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
        gate.open();
        for client in &mut clients[..served] {
            client.response().expect(200);
        }
    }
}

/// Above `max_in_flight` a request is rejected with 503 at once, whatever its key.
#[test]
fn requests_in_flight_are_capped() {
    let gate = Gate::default();
    let upstream = holding(&gate);
    let gateway = Gateway::start(&format!(
        "server: {{ max_in_flight: 2 }}\nlocations:\n  - {{ path: /, upstream: \"{}\" }}\n",
        upstream.url()
    ));
    let mut holders = [gateway.client(), gateway.client()];
    for holder in &mut holders {
        holder.send(get("/hold").bytes());
    }
    upstream.wait_for(2);
    let rejected = gateway.get("/").expect(503);
    assert_eq!(rejected.header("retry-after").as_deref(), Some("1"));
    gate.open();
    for holder in &mut holders {
        holder.response().expect(200);
    }
    gateway.get("/").expect(200);
}

/// Above `max_waiting` a request that would have to wait is rejected with 503 at once.
#[test]
fn waiting_requests_are_capped() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "server: {{ max_waiting: 2 }}\nlocations:\n  - {{ path: /, upstream: \"{}\",
           limits: {{ key: global, algorithm: leaky_bucket, rate: 2/s, queue: 50 }} }}\n",
        upstream.url()
    ));
    let shots = volley(gateway.addr(), (0..6).map(|_| get("/")));
    let seen = statuses(&shots);
    assert_eq!(seen.iter().filter(|&&s| s == 200).count(), 3, "{seen:?}");
    assert_eq!(seen.iter().filter(|&&s| s == 503).count(), 3, "{seen:?}");
}

/// `max_waiting` bounds memory: a waiter counts once for each started 16 KiB of its head.
#[test]
fn large_heads_fill_the_queues_sooner() {
    let gateway = Gateway::start(
        "server: { max_waiting: 8 }\nlocations:\n  - path: /\n    respond: { body: ok }\n    \
           limits: { key: global, algorithm: leaky_bucket, rate: 1/h, queue: 50, max_wait: none }\n",
    );
    let large = get("/").header("X-Large", "x".repeat(60_000));
    gateway.ask(&large).expect(200);
    let wait = |ask: &Ask| {
        let mut client = gateway.client();
        client.send(ask.bytes());
        client
    };
    let mut waiters = vec![wait(&large), wait(&large)];
    gateway.wait_queued(2);
    gateway.get("/").expect(503);
    drop(waiters.pop());
    gateway.wait_queued(1);
    waiters.push(wait(&get("/")));
    gateway.wait_queued(2);
    // Three are left, and four would be needed, over HTTP/2 as well.
    gateway.ask(&large).expect(503);
    let url = format!("http://{}/", gateway.addr());
    let streamed =
        ::http::Request::get(url).header("x-large", "x".repeat(60_000)).body(()).expect("a request");
    let answer = Client2::connect(gateway.addr()).ask(streamed, b"", None).expect("an answer");
    assert_eq!(answer.status, 503);
    waiters.extend((0..3).map(|_| wait(&get("/"))));
    gateway.wait_queued(5);
    gateway.get("/").expect(503);
}

/// A client of HTTP/2 may send body data while its request waits: that counts, too.
#[test]
fn bodies_of_streams_fill_the_queues_sooner() {
    let waiting = |max: u32| {
        let gateway = Gateway::start(&format!(
            "server: {{ max_waiting: {max} }}\nlocations:\n  - path: /\n    respond: {{ body: ok }}\n    \
               limits: {{ key: global, algorithm: leaky_bucket, rate: 1/h, queue: 50, max_wait: none }}\n",
        ));
        gateway.get("/").expect(200);
        let h2 = H2::open(gateway.addr());
        (gateway, h2)
    };
    // A single waiter is always admitted.
    let (gateway, mut h2) = waiting(2);
    h2.send(HEADERS, END_HEADERS, 1, &block(&request("POST", "/", &[])));
    gateway.wait_queued(1);
    let (gateway, mut h2) = waiting(20);
    let mut ask = |stream: u32, fields: &[(&str, &str)]| {
        h2.send(HEADERS, END_HEADERS, stream, &block(&request("POST", "/", fields)));
    };
    // 17 of 20, and then one of three; a third finds no room.
    ask(1, &[]);
    gateway.wait_queued(1);
    ask(3, &[("content-length", "16000")]);
    gateway.wait_queued(2);
    ask(5, &[("content-length", "100000")]);
    let answer = h2.wait(|frame| frame.kind == HEADERS).expect("a rejection");
    assert_eq!(answer.stream, 5);
    gateway.wait_queued(2);
}

/// Idle connections make room for new ones; connections in use do not.
#[test]
fn idle_connections_make_room() {
    let gate = Gate::default();
    let upstream = Upstream::holding("/slow", &gate);
    let gateway = forwarding(&upstream, "server: { max_connections: 2 }");
    let mut busy = gateway.client();
    busy.send(get("/slow").bytes());
    upstream.wait_for(1);
    let mut unused = gateway.client();
    unused.ask(&get("/")).expect(200);
    let mut waiting = gateway.client();
    waiting.send(get("/").bytes());
    waiting.response().expect(200);
    unused.assert_closed();
    gate.open();
    busy.response().expect(200);
}

/// Above `max_connections` a new connection waits to be accepted, and is served when one has gone.
#[test]
fn connections_are_capped() {
    let gateway = Gateway::start(
        "server: { max_connections: 2 }\nlocations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let mut held = [gateway.client(), gateway.client()];
    for client in &mut held {
        client.ask(&get("/")).expect(200);
    }
    let mut waiting = gateway.client();
    waiting.send(get("/").bytes());
    assert_eq!(waiting.response_within(ms(400)).err(), Some(End::Deadline));
    let [first, _second] = held;
    drop(first);
    waiting.response().expect(200);
}

/// One client may hold `connections_per_ip` connections; a further one is closed at once, other clients are
/// unaffected.
#[test]
fn connections_of_one_client_are_capped() {
    let gateway = Gateway::start(
        "server: { connections_per_ip: 3 }\nlocations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let mut held: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for client in &mut held {
        client.ask(&get("/")).expect(200);
    }
    gateway.client().assert_closed();
    Client::connect_from("127.0.0.2", gateway.addr()).ask(&get("/")).expect(200);
    drop(held.pop());
    eventually("room for a new connection", || {
        let mut client = gateway.client();
        client.try_send(get("/").bytes()).is_ok() && client.response_within(ms(2000)).is_ok()
    });
}

/// A trusted proxy carries many clients, and does not count as one.
#[test]
fn connections_of_proxies_are_not_capped() {
    let gateway = Gateway::start(
        "server: { connections_per_ip: 1, trusted_proxies: 127.0.0.1 }\n\
         locations:\n  - { path: /, respond: { body: ok } }\n",
    );
    let mut held: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for client in &mut held {
        client.ask(&get("/")).expect(200);
    }
    let mut other = Client::connect_from("127.0.0.2", gateway.addr());
    other.ask(&get("/")).expect(200);
    Client::connect_from("127.0.0.2", gateway.addr()).assert_closed();
}
