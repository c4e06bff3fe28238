//! gRPC: messages and trailers both ways, streams in both directions, and rejections that clients can read.

use ::http::request::Builder;
use bytes::Bytes;

use super::caller::{Got, begin, call, finish, next, request, until};
use crate::support::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A message with its prefix of five bytes.
fn message(text: &str) -> Bytes {
    let length = u32::try_from(text.len()).expect("a short text").to_be_bytes();
    [&[0][..], &length, text.as_bytes()].concat().into()
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn rpc(path: &str) -> Builder {
    request("POST", path).header("te", "trailers").header("content-type", "application/grpc+proto")
}

fn said(got: &Got) -> (u16, Option<&str>, Option<&str>) {
    (got.status.as_u16(), got.header("grpc-status"), got.trailer("grpc-status"))
}

/// A unary call: `te: trailers` is forwarded, and the answer's trailers pass.
#[test]
fn a_unary_call_passes() {
    let upstream = Upstream::new(|_| {
        let trailers = "0\r\ngrpc-status: 0\r\ngrpc-message: fine%21\r\nx-cost: 3\r\n\r\n";
        Reply::raw(OK).then(chunk(&message("hello"))).then(trailers)
    });
    let gateway = forwarding(&upstream, "");
    let got = call(gateway.addr(), async |sender| {
        let (response, mut stream) = begin(&sender, rpc("/echo.Echo/Say"), false).await;
        stream.send_data(message("hello"), true).expect("it is sent");
        finish(response).await.expect("an answer")
    });
    assert_eq!(said(&got), (200, None, Some("0")));
    assert_eq!((got.trailer("grpc-message"), got.trailer("x-cost")), (Some("fine%21"), Some("3")));
    assert_eq!(got.body, message("hello"));
    let seen = &upstream.requests()[0];
    assert_eq!(seen.header("te").as_deref(), Some("trailers"));
    assert_eq!(seen.header("content-type").as_deref(), Some("application/grpc+proto"));
    assert_eq!(seen.body, message("hello"));
}

/// Each message of a server's stream arrives when it is sent, not when the stream ends.
#[test]
fn a_servers_stream_is_not_collected() {
    let gates: Vec<Gate> = (0..3).map(|_| Gate::default()).collect();
    let server_gates = gates.clone();
    let upstream = Upstream::new(move |_| {
        let start = Reply::raw(OK).then(chunk(&message("0")));
        let reply = server_gates
            .iter()
            .enumerate()
            .fold(start, |reply, (n, gate)| reply.until(gate).then(chunk(&message(&(n + 1).to_string()))));
        reply.then("0\r\ngrpc-status: 0\r\n\r\n")
    });
    let gateway = forwarding(&upstream, "");
    call(gateway.addr(), async |sender| {
        let (response, mut stream) = begin(&sender, rpc("/echo.Echo/List"), false).await;
        stream.send_data(message("list"), true).expect("it is sent");
        let mut incoming = response.await.expect("an answer").into_body();
        for n in 0..4 {
            let piece = next(&mut incoming).await.expect("a message").expect("no reset");
            assert_eq!(piece, message(&n.to_string()));
            if let Some(gate) = gates.get(n) {
                gate.open();
            }
        }
        assert!(next(&mut incoming).await.is_none());
        let trailers = incoming.trailers().await.expect("no reset").expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
    });
}

/// Each message of a client's stream reaches the server when it is sent, and the server may answer before the last.
#[test]
fn a_clients_stream_is_not_collected() {
    let upstream = Upstream::new(|_| {
        Reply::raw(OK).then(chunk(&message("early"))).then("0\r\ngrpc-status: 0\r\n\r\n").early()
    });
    let gateway = forwarding(&upstream, "");
    call(gateway.addr(), async |sender| {
        let (response, mut stream) = begin(&sender, rpc("/echo.Echo/Talk"), false).await;
        stream.send_data(message("first"), false).expect("it is sent");
        let mut incoming = response.await.expect("an answer before the request ended").into_body();
        assert_eq!(next(&mut incoming).await.expect("a message").expect("no reset"), message("early"));
        for n in 1..4 {
            stream.send_data(message("more"), false).expect("it is sent");
            let came = || upstream.raw(0).windows(9).filter(|nine| *nine == message("more")).count();
            until("the message at the server", || came() == n).await;
        }
        stream.send_data(Bytes::new(), true).expect("it is sent");
        assert!(next(&mut incoming).await.is_none());
        assert_eq!(incoming.trailers().await.expect("no reset").expect("trailers")["grpc-status"], "0");
    });
}

/// A rejection has trailers only: HTTP 200, the status and a readable reason in its single head.
#[test]
fn rejections_are_grpc_statuses() {
    let upstream = Upstream::new(|_| Reply::raw(OK).then("0\r\ngrpc-status: 0\r\n\r\n"));
    let gone = Refusing::new();
    let silent = Upstream::new(|_| Reply::silence());
    let gateway = Gateway::start(&format!(
        "upstreams:\n  gone: \"{}\"\n  silent: {{ servers: [\"{}\"], timeouts: {{ response: 300ms }} }}\n\
         access: {{ deny: [192.0.2.0/24] }}\n\
         locations:\n  - {{ path: /limited/, upstream: \"{url}\", limits: {{ rate: 1/h, key: global }} }}\n\
         \x20 - {{ path: /busy/, upstream: silent, limits: {{ algorithm: concurrency, max_concurrent: 1, key: global }} }}\n\
         \x20 - {{ path: /gone/, upstream: gone }}\n  - {{ path: /silent/, upstream: silent }}\n\
         \x20 - {{ path: /denied/, upstream: gone, access: {{ deny: [127.0.0.0/8] }} }}\n",
        gone.addr(),
        silent.addr(),
        url = upstream.url()
    ));
    call(gateway.addr(), async |sender| {
        let ask = async |path: &str| {
            let (response, mut stream) = begin(&sender, rpc(path), false).await;
            stream.send_data(message("x"), true).expect("it is sent");
            finish(response).await.expect("an answer")
        };
        assert_eq!(said(&ask("/limited/x").await), (200, None, Some("0")));
        for (path, status) in [
            ("/limited/x", "8"),
            ("/gone/x", "14"),
            ("/silent/x", "4"),
            ("/nowhere", "12"),
            ("/denied/x", "7"),
        ] {
            let got = ask(path).await;
            assert_eq!(said(&got), (200, Some(status), None), "{path}");
            assert_eq!((got.body.len(), got.header("content-type")), (0, Some("application/grpc")), "{path}");
            let reason = got.header("grpc-message").expect("a reason");
            assert!(reason.len() > 5 && reason.is_ascii(), "{reason}");
        }
        let (_held, mut stream) = begin(&sender, rpc("/busy/x"), false).await;
        stream.send_data(message("x"), true).expect("it is sent");
        until("the first to be in flight", || silent.count() == 2).await;
        assert_eq!(said(&ask("/busy/x").await), (200, Some("14"), None));
    });
    // gRPC for browsers has its trailers in the body, so the gateway does not treat it as gRPC.
    let web = post("/nowhere", b"x").header("Content-Type", "application/grpc-web+proto");
    gateway.ask(&web).expect(404);
}
