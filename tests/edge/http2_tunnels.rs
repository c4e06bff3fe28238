//! WebSockets over HTTP/2 (RFC 8441): an extended CONNECT becomes an Upgrade, and its stream the tunnel.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Instant;

use ::http::StatusCode;
use ::http::request::Builder;
use bytes::Bytes;
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use rustls::{ServerConnection, StreamOwned};
use tungstenite::Message;

use super::caller::{ask, begin, call, next, request, until};
use super::tunnels::tunnels;
use crate::support::h2_raw::*;
use crate::support::*;

pub fn connect(path: &str) -> Builder {
    let request = request("CONNECT", path).header("sec-websocket-version", "13");
    request.extension(Protocol::from_static("websocket"))
}

/// A WebSocket server that echoes until its client closes.
pub fn websocket_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let Ok(mut socket) = tungstenite::accept(stream) else { return };
                while let Ok(message) = socket.read() {
                    if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

fn before(addr: SocketAddr, extra: &str) -> Gateway {
    Gateway::start(&format!(
        "{extra}\nupstreams: {{ app: {{ servers: [\"{addr}\"], timeouts: {{ idle: 2s }} }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n"
    ))
}

/// A frame of a client (RFC 6455, section 5.2), its mask all zeros.
fn text_frame(text: &[u8]) -> Bytes {
    let length = u16::try_from(text.len()).expect("a short text").to_be_bytes();
    [&[0x82, 0x80 | 126][..], &length, &[0; 4], text].concat().into()
}

async fn read_exactly(incoming: &mut RecvStream, length: usize) -> Vec<u8> {
    let mut got = Vec::new();
    while got.len() < length {
        got.extend_from_slice(&next(incoming).await.expect("more").expect("no reset"));
    }
    got
}

async fn echoes(stream: &mut SendStream<Bytes>, incoming: &mut RecvStream, text: &[u8]) {
    stream.send_data(text_frame(text), false).expect("it is sent");
    let got = read_exactly(incoming, text.len() + 4).await;
    assert_eq!(&got[4..], text);
}

/// The frames behind a WebSocket's request are no body that a limit could read.
#[test]
fn a_limit_that_reads_bodies_leaves_a_websocket_alone() {
    let reading = "limits: { model: { key: json:/model, rate: 100/s } }\nserver: { limits: model }";
    let gateway = before(websocket_echo(), reading);
    call(gateway.addr(), async |sender| {
        let (response, mut stream) = begin(&sender, connect("/chat"), false).await;
        let response = response.await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        let mut incoming = response.into_body();
        echoes(&mut stream, &mut incoming, &[b'w'; 300]).await;
        stream.send_reset(h2::Reason::CANCEL);
    });
}

/// WebSocket frames pass over a stream, both ways and beside other streams.
#[test]
fn a_websocket_passes_over_a_stream() {
    let gateway = before(websocket_echo(), "");
    call(gateway.addr(), async |sender| {
        let (response, mut stream) = begin(&sender, connect("/chat"), false).await;
        let response = response.await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        for name in ["sec-websocket-accept", "upgrade", "connection"] {
            assert!(!response.headers().contains_key(name), "{name}");
        }
        let mut incoming = response.into_body();
        for length in [126, 3_000, 48 * 1024] {
            echoes(&mut stream, &mut incoming, &vec![b'w'; length]).await;
        }
        let (other, mut second) = begin(&sender, connect("/other"), false).await;
        let mut others = other.await.expect("an answer").into_body();
        echoes(&mut second, &mut others, &[b'o'; 200]).await;
        echoes(&mut stream, &mut incoming, &[b'm'; 200]).await;
        assert_eq!(tunnels(&gateway), 2.0);
        // A close frame and the end of the stream.
        stream.send_data(Bytes::from_static(&[0x88, 0x80, 0, 0, 0, 0]), true).expect("it is sent");
        assert_eq!(read_exactly(&mut incoming, 2).await, [0x88, 0]);
        assert!(next(&mut incoming).await.is_none(), "the stream ends");
    });
    eventually("both to be closed", || tunnels(&gateway) == 0.0);
    let mut lines = gateway.wait_log(2);
    lines.sort_by_key(|line| line["bytes"].as_u64());
    let line = &lines[1];
    assert_eq!(
        (&line["status"], &line["method"], &line["path"]),
        (&200.into(), &"GET".into(), &"/chat".into())
    );
    assert_eq!((&line["bytes"], &line["received"]), (&52_496.into(), &52_516.into()));
}

/// The server receives an HTTP/1 Upgrade, with a key made for it.
#[test]
fn the_upstream_gets_an_upgrade_request() {
    let upstream = Upstream::new(|_| Reply::with(403, &[], "no"));
    let gateway = forwarding(&upstream, "");
    call(gateway.addr(), async |sender| {
        let request =
            connect("/chat?x=1").header("sec-websocket-protocol", "soap").header("origin", "http://a.test");
        let (response, _stream) = begin(&sender, request, false).await;
        assert_eq!(response.await.expect("an answer").status(), 403);
    });
    let seen = &upstream.requests()[0];
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("GET", "/chat?x=1"));
    let header = |name: &str| seen.header(name).unwrap_or_default();
    assert_eq!((header("upgrade").as_str(), header("connection").as_str()), ("websocket", "Upgrade"));
    assert_eq!(
        (header("host").as_str(), header("sec-websocket-protocol").as_str()),
        ("gateway.test", "soap")
    );
    assert_eq!(header("sec-websocket-key").len(), 24);
}

/// Only a proven switch is reported as one; any other success would be mistaken for it.
#[test]
fn only_a_switch_is_reported_as_one() {
    let gateway = |answer: &'static str| {
        let upstream = Upstream::new(move |_| Reply::raw(answer));
        forwarding(&upstream, "")
    };
    let wrong = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    for (answer, status) in [
        (wrong, 502),
        ("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 502),
        ("HTTP/1.1 204 No Content\r\n\r\n", 502),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", 404),
        ("HTTP/1.1 301 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", 301),
    ] {
        let gateway = gateway(answer);
        call(gateway.addr(), async |sender| {
            let (response, _stream) = begin(&sender, connect("/"), false).await;
            assert_eq!(response.await.expect("an answer").status(), status, "{answer}");
        });
        assert_eq!(tunnels(&gateway), 0.0);
    }
}

/// A tunnel request to a server without tunnels is the client's fault: no server is ejected for its answer.
#[test]
fn tunnel_requests_eject_no_server() {
    let (one, other) = (Upstream::ok(), Upstream::ok());
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ servers: [{}, {}], eject: {{ errors: 1 }} }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        one.addr(),
        other.addr()
    ));
    call(gateway.addr(), async |sender| {
        for _ in 0..6 {
            let (response, _stream) = begin(&sender, connect("/"), false).await;
            assert_eq!(response.await.expect("an answer").status(), 502);
        }
    });
    assert_eq!(gateway.metric("sluicegate_upstream_ejections_total", &[]), 0.0);
}

/// The gateway's own answers are no tunnels, and say so.
#[test]
fn nothing_is_tunnelled_to_the_gateway_itself() {
    let gateway = Gateway::start(
        "locations:\n  - { path: /here, respond: { body: ok } }\n  - { path: /demo, upstream: demo }\n",
    );
    call(gateway.addr(), async |sender| {
        for (path, status) in [("/here", 405), ("/demo", 405), ("/nowhere", 404)] {
            let (response, _stream) = begin(&sender, connect(path), false).await;
            assert_eq!(response.await.expect("an answer").status(), status, "{path}");
        }
    });
}

/// A reset stream ends the server's side, and a broken connection ends all of its tunnels.
#[test]
fn the_end_of_a_stream_ends_its_tunnel() {
    let gateway = before(websocket_echo(), "");
    call(gateway.addr(), async |sender| {
        let (first, mut stream) = begin(&sender, connect("/"), false).await;
        let (second, _kept) = begin(&sender, connect("/"), false).await;
        let _bodies =
            (first.await.expect("an answer").into_body(), second.await.expect("an answer").into_body());
        assert_eq!(tunnels(&gateway), 2.0);
        stream.send_reset(h2::Reason::CANCEL);
        until("one to be closed", || tunnels(&gateway) == 1.0).await;
    });
    eventually("the other to be closed", || tunnels(&gateway) == 0.0);
}

/// Idle tunnels are closed over HTTP/2, too, and the shutdown ends them at its deadline.
#[test]
fn tunnels_of_streams_have_deadlines() {
    let mut gateway = before(websocket_echo(), "server: { timeouts: { shutdown: 1s } }");
    let noise = Noise::listen();
    call(gateway.addr(), async |sender| {
        let (response, mut stream) = begin(&sender, connect("/"), false).await;
        let mut incoming = response.await.expect("an answer").into_body();
        let start = Instant::now();
        tokio::time::sleep(ms(1500)).await;
        echoes(&mut stream, &mut incoming, &[b'x'; 200]).await;
        while next(&mut incoming).await.is_some_and(|piece| piece.is_ok()) {}
        let took = start.elapsed();
        assert!(took > ms(3450) && took < ms(4200) + noise.late(), "closed after {took:?}");
        // Another one, for the shutdown.
        let (response, _stream) = begin(&sender, connect("/"), false).await;
        let mut incoming = response.await.expect("an answer").into_body();
        let start = Instant::now();
        gateway.term();
        while next(&mut incoming).await.is_some_and(|piece| piece.is_ok()) {}
        let took = start.elapsed();
        assert!(took > ms(900) && took < ms(1700) + noise.late(), "ended after {took:?}");
    });
    assert_eq!(gateway.wait_exit(), 0);
}

/// Extended CONNECT is announced, and a plain CONNECT is still rejected.
#[test]
fn extended_connect_is_announced() {
    let upstream = Upstream::ok();
    let gateway = forwarding(&upstream, "");
    let mut h2 = H2::connect(gateway.addr());
    h2.write(PREFACE);
    h2.send(SETTINGS, 0, 0, b"");
    let announced = h2.wait(|frame| frame.kind == SETTINGS && frame.flags == 0).expect("settings");
    assert!(announced.payload.chunks(6).any(|setting| *setting == [0, 8, 0, 0, 0, 1]), "{announced:?}");
    h2.ask(1, &[(":method", "CONNECT"), (":authority", "a.test:443")]);
    assert!(matches!(h2.outcome(1), Outcome::Answered(405, _)));
    call(gateway.addr(), async |sender| {
        assert_eq!(ask(&sender, request("GET", "/"), b"").await.expect("an answer").status, 200);
    });
    assert_eq!(upstream.count(), 1);
}

/// A WebSocket library over HTTP/1: 3 bytes, 48 KiB, then frames that grow.
#[test]
fn a_websocket_library_is_served() {
    let gateway = before(websocket_echo(), "");
    let stream = std::net::TcpStream::connect(gateway.addr()).expect("the gateway accepts");
    let (mut socket, _) =
        tungstenite::client(format!("ws://{}/chat", gateway.addr()), stream).expect("a switch");
    let mut lengths = vec![3, 48 * 1024];
    lengths.extend((0..16).map(|n| 1usize << n));
    for length in lengths {
        let sent = Message::binary(vec![b'f'; length]);
        socket.send(sent.clone()).expect("it is sent");
        assert_eq!(socket.read().expect("the echo"), sent, "{length}");
    }
    socket.send(Message::text("bye")).expect("it is sent");
    assert_eq!(socket.read().expect("the echo"), Message::text("bye"));
    socket.close(None).expect("it closes");
    while socket.read().is_ok() {}
    eventually("the tunnel to be closed", || tunnels(&gateway) == 0.0);
    // Without a key the upstream has to refuse it.
    let bare = get("/").header("Connection", "Upgrade").header("Upgrade", "websocket");
    assert_ne!(gateway.ask(&bare.header("Sec-WebSocket-Version", "13")).status, 101);
}

/// A server that prefers HTTP/2 gets the upgrade by HTTP/1, over a TLS connection of its own.
#[test]
fn a_websocket_reaches_a_server_behind_tls() {
    let config = Authority::new().certify(&["localhost"]).server(&["h2", "http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let config = config.clone();
            thread::spawn(move || {
                let session = ServerConnection::new(config).expect("a session");
                let Ok(mut socket) = tungstenite::accept(StreamOwned::new(session, stream)) else { return };
                while let Ok(message) = socket.read() {
                    if message.is_binary() && socket.send(message).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ servers: [\"https://{addr}\"], tls: {{ verify: false }} }} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n"
    ));
    let stream = std::net::TcpStream::connect(gateway.addr()).expect("the gateway accepts");
    let (mut socket, _) = tungstenite::client(format!("ws://{}/", gateway.addr()), stream).expect("a switch");
    for length in [3, 100_000] {
        let sent = Message::binary(vec![b't'; length]);
        socket.send(sent.clone()).expect("it is sent");
        assert_eq!(socket.read().expect("the echo"), sent);
    }
    call(gateway.addr(), async |sender| {
        let (response, mut stream) = begin(&sender, connect("/"), false).await;
        let mut incoming = response.await.expect("an answer").into_body();
        echoes(&mut stream, &mut incoming, &[b'x'; 300]).await;
    });
}

/// Any success to a CONNECT means an open tunnel: the gateway's own answer never is one.
#[test]
fn an_answer_instead_of_a_tunnel_is_no_success() {
    let gateway = Gateway::start(&format!(
        "limits: {{ one: {{ key: global, rate: 1/h, on_reject: {{ degrade: \
           {{ status: 200, body: later, content_type: text/plain }} }} }} }}\n\
         locations:\n  - {{ path: /, upstream: \"http://{}\", limits: one }}\n",
        websocket_echo()
    ));
    call(gateway.addr(), async |sender| {
        let (response, _stream) = begin(&sender, connect("/"), false).await;
        assert_eq!(response.await.expect("an answer").status(), 200);
        for more in [("x-other", "1"), ("content-type", "application/grpc")] {
            let (response, _other) = begin(&sender, connect("/").header(more.0, more.1), false).await;
            assert_eq!(response.await.expect("an answer").status(), 503, "{more:?}");
        }
    });
}
