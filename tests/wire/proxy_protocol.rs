//! PROXY protocol: trusted peers, valid headers on the wire, and the end of all other connections.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::support::tls::shake_hands_over;
use crate::support::*;

const V1: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.7 12345 80\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x07\x30\x39\x00\x50";
const V2_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

/// Trusts 127.0.0.1 only.
fn gateway_with_proxy_protocol(wanted: &str, server: &str) -> Gateway {
    Gateway::start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", proxy_protocol: {wanted} }}]\n\
         server: {{ trusted_proxies: [127.0.0.1, 203.0.113.5], {server} }}\n\
         locations: [{{ path: /, upstream: demo }}]\n"
    ))
}

fn client_of(response: &Response) -> String {
    response.json()["headers"]["x-forwarded-for"].as_str().unwrap_or("none").to_owned()
}

fn headers(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric("sluicegate_proxy_headers_total", &[result])
}

/// Both versions, in one piece with the request, apart from it, and byte by byte.
#[test]
fn the_announced_address_is_the_client() {
    let gateway = gateway_with_proxy_protocol("required", "");
    for (header, client) in [
        (V1, "192.0.2.1"),
        (V2, "192.0.2.1"),
        (V2_LOCAL, "127.0.0.1"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (b"PROXY TCP6 2001:db8::9 ::1 1 2\r\n", "2001:db8::9"),
    ] {
        let request = get("/").bytes();
        let whole = [header, &request].concat();
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        for pieces in [vec![&whole[..]], vec![header, &request], bytes] {
            let mut one = gateway.client();
            one.send_pieces(&pieces, ms(3));
            assert_eq!(client_of(&one.response().expect(200)), client);
            assert_eq!(client_of(&one.ask(&get("/again")).expect(200)), client);
        }
    }
    assert_eq!((headers(&gateway, "announced"), headers(&gateway, "local")), (9.0, 6.0));
    let log = gateway.wait_log(30);
    assert!(log.iter().any(|line| line.to_string().contains("\"192.0.2.1\"")), "{}", log[0]);
}

/// A real client: curl sends a header of version 1 with the addresses of its connection.
#[test]
fn curl_announces_itself() {
    let gateway = gateway_with_proxy_protocol("required", "");
    let authority = Authority::new();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let expected = if version == "--http1.1" { "200 1.1" } else { "200 2" };
        let arguments = ["--haproxy-protocol", version, "http://a.test/"];
        let curled = authority.curl(gateway.addr(), &arguments).expect(expected);
        assert_eq!(curled.received("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    }
}

/// If a header is required, all other connections are closed without a response.
#[test]
fn without_a_valid_header_there_is_no_response() {
    let gateway = gateway_with_proxy_protocol("required", "");
    let wrong: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.7 12345\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PROXY TCP4 999.0.2.1 198.51.100.7 1 2\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x11\x11\x00\x0c",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        b"\xff\xfe\x00garbage",
    ];
    for bytes in wrong {
        let mut client = gateway.client();
        client.send(bytes);
        client.assert_closed();
    }
    // Cut off in the middle.
    for bytes in [&V1[..20], &V2[..20]] {
        let mut client = gateway.client();
        client.send(bytes);
        client.half_close();
        client.assert_closed();
    }
    assert_eq!(headers(&gateway, "refused"), 8.0);
    // An untrusted peer may not announce a client.
    let mut stranger = Client::connect_from("127.0.0.2", gateway.addr());
    let _ = stranger.try_send([V1, &get("/").bytes()].concat());
    stranger.assert_closed();
    assert_eq!(headers(&gateway, "refused"), 9.0);
    // A port scan is no event.
    for _ in 0..20 {
        gateway.client().half_close();
    }
    eventually("none is open", || gateway.metric("sluicegate_connections", &[]) == 0.0);
    assert_eq!(headers(&gateway, ""), 9.0);
    assert!(gateway.log_lines().is_empty() && !gateway.stderr().contains("PROXY"), "{}", gateway.stderr());
}

/// If a header is optional, a request may come first; a header of an untrusted peer is a bad request.
#[test]
fn an_optional_header_may_be_absent() {
    let gateway = gateway_with_proxy_protocol("optional", "");
    assert_eq!(client_of(&gateway.get("/").expect(200)), "127.0.0.1");
    // It begins like a header.
    assert_eq!(client_of(&gateway.ask(&post("/", b"x")).expect(200)), "127.0.0.1");
    for header in [V1, V2] {
        let mut client = gateway.client();
        client.send([header, &get("/").bytes()].concat());
        assert_eq!(client_of(&client.response().expect(200)), "192.0.2.1");
        let mut stranger = Client::connect_from("127.0.0.2", gateway.addr());
        stranger.send([header, &get("/").bytes()].concat());
        let answer = stranger.response();
        assert_eq!(answer.status, 400);
    }
    let mut stranger = Client::connect_from("127.0.0.2", gateway.addr());
    assert_eq!(client_of(&stranger.ask(&get("/")).expect(200)), "127.0.0.2");
    assert_eq!((headers(&gateway, "absent"), headers(&gateway, "announced")), (5.0, 2.0));
    // A header is read once: a second one is no request.
    let mut twice = gateway.client();
    twice.send([V1, V1, &get("/").bytes()].concat());
    twice.response().expect(400);
}

/// The announced client may not claim another address, unless it is a trusted proxy itself.
#[test]
fn an_announced_client_is_trusted_no_further() {
    let gateway = gateway_with_proxy_protocol("required", "");
    let claim = get("/").header("X-Forwarded-For", "198.51.100.99").header("X-Real-IP", "198.51.100.99");
    let mut client = gateway.client();
    client.send(V1);
    let answer = client.ask(&claim).expect(200);
    assert_eq!(client_of(&answer), "192.0.2.1");
    assert!(answer.json()["headers"]["x-real-ip"].is_null());
    let mut proxy = gateway.client();
    proxy.send(b"PROXY TCP4 203.0.113.5 198.51.100.7 12345 80\r\n");
    assert_eq!(client_of(&proxy.ask(&claim).expect(200)), "198.51.100.99, 203.0.113.5");
}

/// Limits and `connections_per_ip` count by the announced address, not by the proxy's.
#[test]
fn each_announced_client_counts_by_itself() {
    let gateway = Gateway::start(
        "listen: [{ address: \"127.0.0.1:0\", proxy_protocol: required }]\n\
         server: { trusted_proxies: 127.0.0.1, connections_per_ip: 2 }\n\
         locations: [{ path: /, upstream: demo, limits: 2/h }]\n",
    );
    let connect = |ip: &str| {
        let mut client = gateway.client();
        client.send(format!("PROXY TCP4 {ip} 198.51.100.7 12345 80\r\n"));
        client
    };
    let mut held = Vec::new();
    for ip in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        for status in [200, 200] {
            let mut client = connect(ip);
            client.ask(&get("/")).expect(status);
            held.push(client);
        }
        let mut third = connect(ip);
        let _ = third.try_send(get("/").bytes());
        third.assert_closed();
        held[0].ask(&get("/")).expect(429);
    }
    assert_eq!(gateway.metric("sluicegate_connections_rejected_total", &["per_client"]), 3.0);
    drop(held);
    eventually("none is open", || gateway.metric("sluicegate_connections", &[]) == 0.0);
    connect("192.0.2.1").ask(&get("/")).expect(429);
}

/// A header that does not come, or comes slowly, is cut after `timeouts.handshake`.
#[test]
fn a_header_has_a_deadline() {
    let gateway =
        gateway_with_proxy_protocol("required", "timeouts: { handshake: 1s, header: 200ms, idle: 200ms }");
    let addr = gateway.addr();
    let run = |drops: &'static [u8]| {
        thread::spawn(move || {
            let start = Instant::now();
            let mut client = Client::connect(addr);
            let mut writer = client.writer();
            thread::spawn(move || {
                for drop in drops {
                    let _ = writer.write_all(&[*drop]);
                    thread::sleep(ms(70));
                }
            });
            client.assert_closed();
            start.elapsed()
        })
    };
    for thread in [run(b""), run(&V1[..10]), run(&V2[..25])] {
        let took = thread.join().unwrap();
        assert!((ms(1000)..ms(3000)).contains(&took), "{took:?}");
    }
    assert_eq!(headers(&gateway, "timed_out"), 3.0);
}

/// The header precedes the handshake, and may come in one piece with it.
#[test]
fn tls_begins_behind_the_header() {
    let authority = Authority::new();
    authority.issue("a", &["a.test"]);
    let gateway = Gateway::start(&format!(
        "listen: [{{ address: \"127.0.0.1:0\", proxy_protocol: required, tls: {{ {} }} }}]\n\
         server: {{ trusted_proxies: 127.0.0.1 }}\nlocations: [{{ path: /, upstream: demo }}]\n",
        authority.entry("a")
    ));
    let arguments = ["--haproxy-protocol", "--http2", "https://a.test/"];
    authority.curl(gateway.addr(), &arguments).expect("200 2");
    let config = Arc::new(authority.client(None));
    for header in [V1, V2] {
        use std::io::Write;
        let mut stream = std::net::TcpStream::connect(gateway.addr()).unwrap();
        stream.write_all(header).unwrap();
        let stream = shake_hands_over(stream, &config, "a.test").unwrap();
        let answer = Client::over_tls(stream).ask(&get("/").host("a.test")).expect(200);
        assert_eq!(client_of(&answer), "192.0.2.1");
        assert_eq!(answer.json()["headers"]["x-forwarded-proto"], "https");
    }
    // Without a header there is no handshake either.
    let stream = std::net::TcpStream::connect(gateway.addr()).unwrap();
    assert!(shake_hands_over(stream, &config, "a.test").is_err());
}

/// Peers on a unix socket are trusted to announce clients; an announced client is not trusted.
#[test]
fn a_unix_socket_takes_headers_too() {
    let scratch = Scratch::new();
    let path = scratch.path().join("gate.sock");
    let gateway = Gateway::start(&format!(
        "listen: [{{ address: \"unix:{}\", proxy_protocol: optional }}]\n\
         locations: [{{ path: /, upstream: demo }}]\n",
        path.display()
    ));
    let claim = get("/").header("X-Forwarded-For", "198.51.100.99");
    assert_eq!(client_of(&Client::connect_unix(&path).ask(&claim).expect(200)), "198.51.100.99");
    let mut client = Client::connect_unix(&path);
    client.send(V2);
    assert_eq!(client_of(&client.ask(&claim).expect(200)), "192.0.2.1");
    drop(gateway);
    assert!(UnixStream::connect(&path).is_err());
}
