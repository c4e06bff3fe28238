//! Servers that speak HTTP/2: shared connections, bodies, trailers, clients that leave, servers that restart.

use std::thread;

use ::http::{HeaderMap, HeaderValue, Request};

use crate::support::nginx::Nginx;
use crate::support::*;

fn gateway(upstream: &Upstream2, settings: &str) -> Gateway {
    Gateway::start(&format!(
        "server: {{ workers: 1 }}\n\
         upstreams:\n  app: {{ servers: [\"{}\"], protocol: http2, {settings} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.addr()
    ))
}

fn assert_statuses(shots: &[Shot], status: u16) {
    let statuses = statuses(shots);
    assert!(statuses.iter().all(|&one| one == status), "{statuses:?}");
}

/// The request has the form of HTTP/2: an absolute target, and no connection fields of HTTP/1.
#[test]
fn a_request_is_sent_in_its_own_form() {
    let upstream = Upstream2::new(|_| Act::Text("ok"));
    let gateway = gateway(&upstream, "");
    let ask = get("/a?b=c").host("shop.test:81").header("TE", "trailers").header("Keep-Alive", "5");
    let response = gateway.ask(&ask).expect(200);
    assert_eq!(response.text(), "ok");
    let mut client = gateway.client();
    client.send(
        "POST /up HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    client.response().expect(200);
    let seen = upstream.requests();
    assert_eq!((seen[0].method.as_str(), seen[0].uri.as_str()), ("GET", "http://shop.test:81/a?b=c"));
    assert_eq!(seen[0].headers.get("te"), Some(&HeaderValue::from_static("trailers")));
    assert_eq!(seen[1].uri, "http://shop.test/up");
    for seen in &seen {
        for name in ["host", "connection", "keep-alive", "transfer-encoding"] {
            assert!(!seen.headers.contains_key(name), "{name}: {seen:?}");
        }
    }
}

/// Requests that come before there is a connection wait for the same one.
#[test]
fn two_hundred_requests_share_a_connection() {
    raise_descriptors();
    let upstream = Upstream2::new(|_| Act::Hold);
    let gateway = gateway(&upstream, "");
    let addr = gateway.addr();
    let firing = thread::spawn(move || volley(addr, (0..200).map(|_| get("/"))));
    upstream.wait_in_flight(200);
    upstream.release();
    assert_statuses(&firing.join().expect("answers"), 200);
    assert_eq!((upstream.connections(), upstream.most_in_flight()), (1, 200));
}

/// A server's limit is kept, and when a connection is full another one is opened.
#[test]
fn a_full_connection_is_joined_by_another() {
    for max in [1, 3] {
        let start = Start { streams_max: Some(max), ..Start::default() };
        let upstream = Upstream2::start(start, |_| Act::Hold);
        let gateway = gateway(&upstream, "");
        let addr = gateway.addr();
        let firing = thread::spawn(move || volley(addr, (0..12).map(|_| get("/"))));
        upstream.wait_in_flight(12);
        let each = |number| upstream.requests().iter().filter(|seen| seen.connection == number).count();
        let per_connection: Vec<usize> = (0..upstream.connections()).map(each).collect();
        assert!(per_connection.iter().all(|&count| count <= max as usize), "{per_connection:?}");
        upstream.release();
        assert_statuses(&firing.join().expect("answers"), 200);
    }
}

/// Requests that find every connection full wait for the first free stream, and get 503 if none is freed.
#[test]
fn a_freed_stream_is_taken() {
    let start = Start { streams_max: Some(1), ..Start::default() };
    let upstream =
        Upstream2::start(start, |seen| if seen.uri.ends_with("/hold") { Act::Hold } else { Act::Text("ok") });
    let gateway = gateway(&upstream, "max_connections: 1, timeouts: { connect: 5s }");
    let mut client = gateway.client();
    client.send(get("/hold").bytes());
    upstream.wait_in_flight(1);
    gateway.get("/").expect(503);
    upstream.release();
    client.response().expect(200);
    gateway.get("/").expect(200);
}

#[test]
fn grpc_passes_with_its_trailers_both_ways() {
    let upstream = Upstream2::new(|_| Act::Echo);
    let gateway = gateway(&upstream, "");
    let mut client = Client2::connect(gateway.addr());
    for turn in 0..3 {
        let request = Request::post(format!("http://{}/pkg.Service/Call", gateway.addr()))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .expect("a request");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-turn", HeaderValue::from(turn));
        // A server may add trailers to the head that it has read.
        let foreign = ["x-real-ip", "x_real_ip", "x_forwarded_for", "keep_alive", "my_own"];
        for name in foreign {
            trailers.insert(name, HeaderValue::from_static("forged"));
        }
        let message = [&[0, 0, 0, 0, 5][..], b"hello"].concat();
        let response = client.ask(request, &message, Some(trailers)).expect("an answer");
        assert_eq!((response.status.as_u16(), response.body), (200, message));
        let trailers = response.trailers.expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(trailers["x-turn"], turn.to_string());
        assert!(foreign.iter().all(|name| !trailers.contains_key(*name)), "{trailers:?}");
    }
    assert_eq!(upstream.connections(), 1);
}

/// 20 MB there and back, each byte through windows of a few hundred kilobytes.
#[test]
fn large_bodies_pass_both_ways() {
    let upstream = Upstream2::new(|_| Act::Echo);
    let gateway = gateway(&upstream, "");
    let body: Vec<u8> = (0..20_000_000u32).map(|index| (index % 251) as u8).collect();
    let mut client = gateway.client();
    let mut writer = client.writer();
    let sent = post("/", &body).bytes();
    let upload = thread::spawn(move || writer.write_all(&sent).expect("the upload passes"));
    let response = client.response().expect(200);
    upload.join().expect("the upload ends");
    assert!(response.body == body, "{} bytes came back", response.body.len());
}

/// A client that does not read holds back only its own response.
#[test]
fn a_slow_reader_affects_its_own_stream_alone() {
    let upstream = Upstream2::new(|seen| match seen.uri.ends_with("/big") {
        true => Act::Bytes(10_000_000),
        false => Act::Text("ok"),
    });
    let gateway = gateway(&upstream, "");
    let mut slow: Vec<Client> = (0..40).map(|_| Client::connect_narrow(gateway.addr())).collect();
    slow.iter_mut().for_each(|client| client.send(get("/big").bytes()));
    eventually("the windows are full", || {
        let before = upstream.sent();
        thread::sleep(ms(200));
        before > 0 && upstream.sent() == before
    });
    assert!(upstream.sent() < 40 * 5_000_000, "{} bytes left the server", upstream.sent());
    for _ in 0..10 {
        gateway.get("/").expect(200);
    }
    // One that reads gets all.
    assert_eq!(gateway.get("/big").expect(200).body.len(), 10_000_000);
    assert_eq!(upstream.connections(), 1);
}

/// A server that does not read holds the client's upload back.
#[test]
fn an_upload_waits_for_its_reader() {
    let upstream = Upstream2::new(|_| Act::Slow(ms(500)));
    let gateway = gateway(&upstream, "");
    let body = vec![b'x'; 3_000_000];
    assert_eq!(gateway.ask(&post("/", &body)).expect(200).text(), "3000000");
}

#[test]
fn an_early_response_ends_the_upload() {
    let upstream = Upstream2::new(|seen| match seen.uri.ends_with("/early") {
        true => Act::Early,
        false => Act::Text("ok"),
    });
    let gateway = gateway(&upstream, "");
    let mut client = gateway.client();
    client.send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nsome");
    assert_eq!(client.response().expect(200).text(), "early");
    gateway.get("/").expect(200);
    assert_eq!(upstream.connections(), 1);
}

/// A server of large responses that holds all other requests, and a client with a held request.
fn held_request() -> (Upstream2, Gateway, Client) {
    let upstream = Upstream2::new(|seen| match seen.uri.ends_with("/big") {
        true => Act::Bytes(50_000_000),
        false => Act::Hold,
    });
    let gateway = gateway(&upstream, "");
    let mut staying = gateway.client();
    staying.send(get("/stay").bytes());
    upstream.wait_in_flight(1);
    (upstream, gateway, staying)
}

/// A client that leaves ends its own stream; the connection continues.
#[test]
fn a_client_that_leaves_resets_its_stream_alone() {
    let (upstream, gateway, mut staying) = held_request();
    for index in 0..5 {
        let mut leaving = gateway.client();
        leaving.send(get("/leave").bytes());
        upstream.wait_in_flight(2);
        drop(leaving);
        eventually("a reset", || upstream.resets().len() == index + 1);
        upstream.wait_in_flight(1);
    }
    assert!(upstream.resets().iter().all(|&reason| reason == h2::Reason::CANCEL), "{:?}", upstream.resets());
    // In the middle of a response.
    let mut leaving = Client::connect_narrow(gateway.addr());
    leaving.send(get("/big").bytes());
    upstream.wait_in_flight(2);
    leaving.reset();
    upstream.wait_in_flight(1);
    upstream.release();
    staying.response().expect(200);
    assert_eq!((upstream.connections(), upstream.open()), (1, 1));
}

#[test]
fn a_server_that_restarts_is_found_again() {
    let upstream = Upstream2::new(|_| Act::Text("first"));
    let gateway = gateway(&upstream, "");
    assert_eq!(gateway.get("/").expect(200).text(), "first");
    let port = upstream.addr().port();
    drop(upstream);
    gateway.get("/").expect(502);
    let upstream = Upstream2::start(Start { port, ..Start::default() }, |_| Act::Text("second"));
    for _ in 0..5 {
        assert_eq!(gateway.get("/").expect(200).text(), "second");
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn an_unused_connection_is_closed() {
    let upstream = Upstream2::new(|_| Act::Text("ok"));
    let gateway = gateway(&upstream, "timeouts: { idle: 300ms }");
    gateway.get("/").expect(200);
    assert_eq!(upstream.open(), 1);
    eventually("the end of the connection", || upstream.open() == 0);
    gateway.get("/").expect(200);
    assert_eq!(upstream.connections(), 2);
}

#[test]
fn http2_over_tls_is_shared_alike() {
    let ours = Authority::new();
    let tls = Some(ours.certify(&["localhost"]).server(&["h2"]));
    let upstream = Upstream2::start(Start { tls, ..Start::default() }, |_| Act::Hold);
    let gateway = Gateway::start(&format!(
        "server: {{ workers: 1 }}\n\
         upstreams:\n  app: {{ servers: [\"https://localhost:{}\"], tls: {{ ca: \"{}\" }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        upstream.addr().port(),
        ours.file().display()
    ));
    let addr = gateway.addr();
    let firing = thread::spawn(move || volley(addr, (0..50).map(|_| get("/"))));
    upstream.wait_in_flight(50);
    upstream.release();
    assert_statuses(&firing.join().expect("answers"), 200);
    assert_eq!(upstream.connections(), 1);
    assert!(upstream.requests().iter().all(|seen| seen.uri == "https://gateway.test/"));
}

/// The parts of a split cookie are one field again for an HTTP/1 server.
#[test]
fn parts_of_a_cookie_are_joined() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let request = Request::get(format!("http://{}/", gateway.addr()));
    let request = request.header("cookie", "a=b").header("cookie", "c=d").body(()).expect("a request");
    let response = Client2::connect(gateway.addr()).ask(request, b"", None).expect("an answer");
    assert_eq!(response.status.as_u16(), 200);
    assert_eq!(upstream.requests()[0].headers.all("cookie"), ["a=b; c=d"]);
}

/// A response that the server breaks in the middle is cut, and never ends in order.
#[test]
fn a_broken_response_is_cut() {
    // A server may even report no error.
    for reason in [h2::Reason::INTERNAL_ERROR, h2::Reason::NO_ERROR] {
        let upstream = Upstream2::new(move |_| Act::Half(reason));
        let gateway = gateway(&upstream, "");
        let response = gateway.get("/");
        assert_eq!((response.status, response.text().as_str()), (200, "half"));
        assert!(response.cut.is_some(), "{reason:?}");
        gateway.get("/");
        assert_eq!(upstream.connections(), 1);
    }
}

#[test]
fn a_silent_server_is_a_timeout_of_one_stream() {
    let upstream = Upstream2::new(|seen| match seen.uri.ends_with("/hold") {
        true => Act::Hold,
        false => Act::Text("ok"),
    });
    let gateway = gateway(&upstream, "timeouts: { response: 300ms }");
    gateway.get("/hold").expect(504);
    eventually("a reset", || upstream.resets() == [h2::Reason::CANCEL]);
    gateway.get("/").expect(200);
    assert_eq!(upstream.connections(), 1);
}

/// A client's broken body is the client's fault, and affects no other request on the connection.
#[test]
fn a_broken_upload_ends_its_stream_alone() {
    let upstream = Upstream2::new(|seen| match seen.uri.ends_with("/hold") {
        true => Act::Hold,
        false => Act::Text("ok"),
    });
    let gateway = gateway(&upstream, "");
    let mut held = gateway.client();
    held.send(get("/hold").bytes());
    upstream.wait_in_flight(1);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nnonsense\r\n");
    client.response().expect(400);
    upstream.release();
    held.response().expect(200);
    assert_eq!((upstream.connections(), upstream.open()), (1, 1));
}

/// Responses without a body, as a real nginx gives them, keep their headers.
#[test]
fn responses_without_a_body_pass() {
    let nginx = Nginx::start(
        "server { listen @0@ http2; location / { return 200 hello; } location /none { return 204; } \
         location /old { add_header ETag x always; return 304; } }",
        1,
    );
    let gateway = Gateway::start(&format!(
        "upstreams:\n  app: {{ servers: [\"{}\"], protocol: http2 }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        nginx.addr(0)
    ));
    let mut client = gateway.client();
    let head = client.ask(&Ask::new("HEAD", "/")).expect(200);
    assert_eq!(head.headers.get("content-length").as_deref(), Some("5"));
    client.ask(&get("/none")).expect(204);
    let old = client.ask(&get("/old")).expect(304);
    assert_eq!(old.headers.get("etag").as_deref(), Some("x"));
    assert_eq!(client.ask(&get("/")).expect(200).text(), "hello");
}

/// Hundreds of clients that leave in the middle of large responses cost the others nothing.
#[test]
fn many_clients_that_leave_cost_the_others_nothing() {
    let (upstream, gateway, mut staying) = held_request();
    for _ in 0..20 {
        let mut leaving: Vec<Client> = (0..50).map(|_| gateway.client()).collect();
        leaving.iter_mut().for_each(|client| client.send(get("/big").bytes()));
        for client in &mut leaving {
            client.raw_head(PATIENCE).expect("a head");
        }
        leaving.into_iter().for_each(Client::reset);
    }
    upstream.wait_in_flight(1);
    upstream.release();
    staying.response().expect(200);
    assert_eq!((upstream.connections(), upstream.open()), (1, 1));
}
