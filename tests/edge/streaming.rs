//! Answers and requests that take long to end: events, long polls, expectations, trailers.

use super::caller::{ask, begin, call, finish, next, request, until};
use crate::support::*;

const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n";

fn event(n: usize) -> String {
    format!("data: {n}\n\n")
}

/// Three events, each of which waits for its gate, framed by `frame`.
fn events(gates: &[Gate], head: &str, frame: impl Fn(&str) -> String) -> Reply {
    let start = Reply::raw(head).then(frame(&event(0)));
    gates.iter().enumerate().fold(start, |reply, (n, gate)| reply.until(gate).then(frame(&event(n + 1))))
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// Every event arrives when it is sent, over both versions, whether the upstream frames it by chunks or by its end.
#[test]
fn events_arrive_at_once() {
    for is_chunked in [false, true] {
        for is_stream in [false, true] {
            let gates: Vec<Gate> = (0..3).map(|_| Gate::default()).collect();
            let server_gates = gates.clone();
            let upstream = Upstream::new(move |_| {
                let head = if is_chunked {
                    "Transfer-Encoding: chunked\r\n\r\n"
                } else {
                    "Connection: close\r\n\r\n"
                };
                let frame = |text: &str| if is_chunked { chunk(text) } else { text.to_owned() };
                let reply = events(&server_gates, &format!("{EVENTS}{head}"), frame);
                if is_chunked { reply.then("0\r\n\r\n") } else { reply.close() }
            });
            let gateway = forwarding(&upstream, "");
            if is_stream {
                call(gateway.addr(), async |sender| {
                    let (response, _) = begin(&sender, request("GET", "/"), true).await;
                    let mut incoming = response.await.expect("an answer").into_body();
                    for n in 0..4 {
                        let piece = next(&mut incoming).await.expect("an event").expect("no reset");
                        assert_eq!(piece, event(n));
                        gates.get(n).inspect(|gate| gate.open());
                    }
                    assert!(next(&mut incoming).await.is_none());
                });
            } else {
                let mut client = gateway.client();
                client.send(get("/").bytes());
                client.raw_head(PATIENCE).expect("a head");
                for n in 0..4 {
                    assert_eq!(client.take(chunk(&event(n)).len()), chunk(&event(n)).as_bytes());
                    gates.get(n).inspect(|gate| gate.open());
                }
                assert_eq!(client.take(5), b"0\r\n\r\n");
            }
        }
    }
}

/// A long poll may take as long as the upstream's timeout, and is cancelled when its client leaves.
#[test]
fn long_polls_are_held_and_given_up() {
    let upstream = Upstream::new(|seen| match seen.target.as_str() {
        "/late" => Reply::text("late").after(ms(1_500)),
        _ => Reply::silence(),
    });
    let gateway =
        forwarding(&upstream, "server: { timeouts: { idle: 1s, header: 1s, body: 1s, write: 1s } }");
    assert_eq!(gateway.get("/late").expect(200).text(), "late");
    call(gateway.addr(), async |sender| {
        let got = ask(&sender, request("GET", "/late"), b"").await.expect("an answer");
        assert_eq!(got.body, b"late");
        let (lost, mut stream) = begin(&sender, request("GET", "/never"), true).await;
        until("the request at the server", || upstream.count() == 3).await;
        stream.send_reset(h2::Reason::CANCEL);
        drop(lost);
    });
    let idle = || gateway.metric("sluicegate_requests_in_flight", &[]) == 0.0;
    eventually("the stream to be given up", idle);
    let mut client = gateway.client();
    client.send(get("/never").bytes());
    upstream.wait_for(4);
    drop(client);
    eventually("the request to be given up", idle);
    let abandoned = gateway.metric("sluicegate_requests_total", &["4xx"]);
    assert_eq!(abandoned, 2.0);
}

/// Interim answers of the upstream stop at the gateway; the client gets its 100 from the gateway, and only on request.
#[test]
fn interim_answers_are_ours() {
    let upstream = Upstream::new(|_| {
        Reply::raw(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n",
        )
        .then("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let gateway = forwarding(&upstream, "");
    let mut client = gateway.client();
    let plain = client.ask(&post("/", b"abc")).expect(200);
    assert_eq!(plain.interim, [0u16; 0]);
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert!(client.raw_head(PATIENCE).expect("100 Continue").starts_with(b"HTTP/1.1 100"));
    client.send("abc");
    let answer = client.response().expect(200);
    assert_eq!((answer.text().as_str(), answer.interim.len()), ("ok", 0));
    // Over HTTP/2 an expectation delays no client: the window limits the bytes sent.
    call(gateway.addr(), async |sender| {
        let expecting = request("POST", "/").header("expect", "100-continue");
        let got = ask(&sender, expecting, b"abc").await.expect("an answer");
        assert_eq!(got.status, 200);
        let got = ask(&sender, request("POST", "/").header("expect", "a miracle"), b"abc")
            .await
            .expect("an answer");
        assert_eq!(got.status, 417);
    });
}

/// Trailers of a request never become header fields, over either version; those of an answer pass over HTTP/2.
#[test]
fn trailers_stay_trailers() {
    let upstream = Upstream::new(|_| {
        Reply::raw(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n",
        )
    });
    let gateway = forwarding(&upstream, "");
    let sneaky =
        "0\r\nHost: evil.test\r\nContent-Length: 5\r\nX-Forwarded-For: 192.0.2.9\r\nX-Account: root\r\n\r\n";
    let mut client = gateway.client();
    client.send(
        ["POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", sneaky]
            .concat(),
    );
    client.response().expect(200);
    let got = call(gateway.addr(), async |sender| {
        let (response, mut stream) = begin(&sender, request("POST", "/"), false).await;
        stream.send_data("abc".into(), false).expect("it is sent");
        let mut trailers = ::http::HeaderMap::new();
        for (name, value) in [("host", "evil.test"), ("x-forwarded-for", "192.0.2.9"), ("x-account", "root")]
        {
            trailers.insert(name, value.parse().expect("a value"));
        }
        stream.send_trailers(trailers).expect("they are sent");
        finish(response).await.expect("an answer")
    });
    assert_eq!((got.body.as_slice(), got.trailer("x-sum")), (&b"ok"[..], Some("7")));
    for seen in upstream.requests() {
        assert_eq!((seen.body.as_slice(), seen.trailers.0.len()), (&b"abc"[..], 0), "{seen:?}");
        let header = |name: &str| seen.header(name);
        assert_eq!((header("x-forwarded-for").as_deref(), header("x-account")), (Some("127.0.0.1"), None));
        assert_ne!(header("host").as_deref(), Some("evil.test"));
    }
}

/// Answers of a megabyte pass while another answer on the same connection is still pending.
#[test]
fn a_slow_stream_holds_up_no_other() {
    let body = "b".repeat(1 << 20);
    let gate = Gate::default();
    let server_gate = gate.clone();
    let upstream = Upstream::new(move |seen| match seen.target.as_str() {
        "/slow" => Reply::text("slow").held_by(&server_gate),
        _ => Reply::text(&body),
    });
    let gateway = forwarding(&upstream, "");
    call(gateway.addr(), async |sender| {
        let (slow, _) = begin(&sender, request("GET", "/slow"), true).await;
        for _ in 0..3 {
            let got = ask(&sender, request("GET", "/big"), b"").await.expect("an answer");
            assert_eq!(got.body.len(), 1 << 20);
        }
        gate.open();
        assert_eq!(finish(slow).await.expect("an answer").body, b"slow");
    });
}

/// The chunks of a client that come together are sent on together, and each write of a slow client at once.
#[test]
fn small_chunks_are_gathered() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let gateway = Gateway::start(&format!("locations: [{{ path: /, upstream: \"http://{addr}\" }}]\n"));
    let mut client = gateway.client();
    client
        .send(format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{}", chunk("first")));
    let (mut server, _) = listener.accept().expect("the gateway connects");
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let (mut received, mut piece, mut reads) = (Vec::new(), vec![0; 64 * 1024], 0);
    let mut read_until = |end: &[u8]| {
        while !received.ends_with(end) {
            let count = std::io::Read::read(&mut server, &mut piece).expect("the gateway sends");
            assert!(count > 0, "the gateway closed");
            received.extend_from_slice(&piece[..count]);
            reads += 1;
        }
        reads
    };
    read_until(chunk("first").as_bytes());
    client.send(chunk("second"));
    let before = read_until(chunk("second").as_bytes());
    client.send(chunk("a").repeat(4_000) + &chunk("last") + "0\r\n\r\n");
    let reads = read_until(format!("{}0\r\n\r\n", chunk("last")).as_bytes()) - before;
    assert!(reads <= 200, "{reads} pieces for 4,000 chunks");
}

/// A close over frames that nobody read would be a reset, which overtakes the answer.
#[test]
fn an_early_answer_arrives_although_the_client_says_goodbye() {
    use crate::support::h2_raw::{DATA, END_HEADERS, GOAWAY, HEADERS, PREFACE, SETTINGS, block, frame};
    let large = "k".repeat(50_000);
    let gateway = Gateway::start(&format!("locations: [{{ path: /, respond: {{ body: {large} }} }}]\n"));
    let head = block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
        ("content-length", "6000000"),
    ]);
    let data = frame(DATA, 0, 1, &[b'a'; 16_000]);
    for _ in 0..10 {
        let mut client = Client::connect_narrow(gateway.addr());
        client.send([PREFACE, &frame(SETTINGS, 0, 0, b""), &frame(HEADERS, END_HEADERS, 1, &head)].concat());
        client.send([&data[..], &frame(GOAWAY, 0, 0, &[0; 8])].concat());
        for _ in 0..2 {
            std::thread::sleep(ms(100));
            client.send(&data);
        }
        let (bytes, _) = client.until_close();
        let received = bytes.iter().filter(|&&byte| byte == b'k').count();
        assert!(received >= 50_000, "{received} bytes of the answer");
    }
}
