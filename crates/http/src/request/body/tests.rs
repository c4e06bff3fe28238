//! Bodies of which the beginning was read: what is forwarded is what the client sent.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use http::Response;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::net::deadline::WatchList;
use sluicegate_limit::table::CounterKey;

/// A forwarded body, as an upstream would get it.
#[derive(Debug, Default, PartialEq)]
struct Forwarded {
    bytes: Vec<u8>,
    trailers: Option<HeaderMap>,
    fault: Option<BodyFault>,
    /// The length that was known before the first byte was forwarded.
    length: Option<u64>,
    /// All of it was read before.
    was_at_hand: bool,
    /// Milliseconds that the gateway paused.
    paused: u128,
}

/// Sends `wire` over HTTP/1 in pieces, reads up to `peek_bytes` of the body first, and then forwards it with at most
/// `max` bytes.
fn forward(pieces: &[&[u8]], peek_bytes: u64, max: u64) -> Forwarded {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let forwarded = Rc::new(RefCell::new(Forwarded::default()));
        let result = forwarded.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let result = result.clone();
            async move {
                let connection = WatchList::default().watch_connection();
                let body = RequestBody::receive(request.into_body(), &connection);
                let start = tokio::time::Instant::now();
                let body = collect(body, peek_bytes, max).await;
                *result.borrow_mut() = Forwarded { paused: start.elapsed().as_millis(), ..body };
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
            }
        });
        let serving = tokio::task::spawn_local(async move {
            let _ = http1::Builder::new().serve_connection(TokioIo::new(server), service).await;
        });
        for piece in pieces {
            client.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        // A client that ends its side first leaves before it is answered.
        let _ = tokio::time::timeout(Duration::from_secs(60), client.read(&mut [0; 512])).await;
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        serving.await.unwrap();
        forwarded.take()
    })
}

async fn collect(mut body: RequestBody, peek_bytes: u64, max: u64) -> Forwarded {
    let watches = WatchList::default();
    let watch = watches.watch_request(&watches.watch_connection());
    let mut forwarded = Forwarded::default();
    let memory = BodyMemory::adopt(None, 1 << 30, 1 << 20, 1);
    let client = CounterKey::new(0, 0);
    let room = memory.begin_reading(client, 1, peek_bytes).expect("a place");
    if let Err(fault) = body.peek_beginning(&watch, &room, peek_bytes, max).await {
        forwarded.fault = Some(fault);
        return forwarded;
    }
    forwarded.length = body.size_hint().exact();
    body.start_forwarding(&watch, Some(max), || Some(Box::new(|trailers| drop(trailers.remove("x-hop")))));
    forwarded.was_at_hand = body.is_at_hand();
    assert_eq!(body.size_hint().exact(), forwarded.length);
    let mut sent = body.take_body();
    assert_eq!(body.is_at_hand(), forwarded.was_at_hand);
    while let Some(frame) = sent.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => forwarded.bytes.extend_from_slice(&data),
            Ok(Err(trailers)) => forwarded.trailers = trailers.into_trailers().ok(),
            Err(fault) => {
                forwarded.fault = Some(fault);
                break;
            }
        }
    }
    forwarded
}

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\n";

#[test]
fn what_was_read_goes_on_first() {
    let body: Vec<u8> = (0..=255).cycle().take(3_000).collect();
    let mut chunks = Vec::new();
    for piece in body.chunks(37) {
        chunks.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunks.extend_from_slice(piece);
        chunks.extend_from_slice(b"\r\n");
    }
    chunks.extend_from_slice(b"0\r\nx-sum: 7\r\nx-hop: 8\r\n\r\n");
    for peek_bytes in [0, 1, 36, 37, 38, 1_000, 2_999, 3_000, 3_001, 100_000] {
        for piece in [1_000, 1, 7, 100_000] {
            let pieces = |bytes: &'static [u8]| [HEAD, bytes];
            let head =
                pieces(b"Transfer-Encoding: chunked\r\nTrailer: x-sum\r\nTE: trailers\r\n\r\n").concat();
            let wire: Vec<&[u8]> = std::iter::once(&head[..]).chain(chunks.chunks(piece)).collect();
            let got = forward(&wire, peek_bytes, u64::MAX);
            assert!(got.bytes == body && got.fault.is_none(), "{peek_bytes} {piece}");
            assert_eq!((got.length, got.was_at_hand), (None, peek_bytes >= 3_000), "{peek_bytes} {piece}");
            let trailers = got.trailers.expect("trailers");
            assert_eq!((trailers.len(), trailers["x-sum"].as_bytes()), (1, &b"7"[..]));
            let head = pieces(b"Content-Length: 3000\r\n\r\n").concat();
            let wire: Vec<&[u8]> = std::iter::once(&head[..]).chain(body.chunks(piece)).collect();
            let got = forward(&wire, peek_bytes, u64::MAX);
            assert!(got.bytes == body && got.fault.is_none(), "{peek_bytes} {piece}");
            assert_eq!((got.length, got.was_at_hand), (Some(3_000), peek_bytes >= 3_000));
        }
    }
}

#[test]
fn a_broken_body_is_the_fault_of_its_client() {
    let head = [HEAD, b"Content-Length: 10\r\n\r\n"].concat();
    let chunked = [HEAD, b"Transfer-Encoding: chunked\r\n\r\n"].concat();
    for peek_bytes in [0, 3, 100] {
        let cut = forward(&[&head, b"12345"], peek_bytes, u64::MAX);
        assert_eq!(cut.fault, Some(BodyFault::Malformed), "{peek_bytes}");
        let cut = forward(&[&chunked, b"5\r\n12345\r\n", b"x\r\n"], peek_bytes, u64::MAX);
        assert_eq!(cut.fault, Some(BodyFault::Malformed), "{peek_bytes}");
        let large = forward(&[&chunked, b"5\r\n12345\r\n", b"5\r\n12345\r\n0\r\n\r\n"], peek_bytes, 9);
        assert_eq!(large.fault, Some(BodyFault::TooLarge), "{peek_bytes}");
        let fits = forward(&[&chunked, b"5\r\n12345\r\n", b"5\r\n12345\r\n0\r\n\r\n"], peek_bytes, 10);
        assert_eq!((fits.bytes.as_slice(), fits.fault), (&b"1234512345"[..], None), "{peek_bytes}");
    }
}

#[test]
fn an_empty_body_keeps_its_framing() {
    let chunked = [HEAD, b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"].concat();
    let got = forward(&[&chunked], 10, u64::MAX);
    assert_eq!(got, Forwarded { was_at_hand: true, ..Forwarded::default() });
    let body = WholeBody::new(Bytes::new(), None, false);
    assert!(!body.is_end_stream(), "its end is still to be marked");
    let none = [HEAD, b"\r\n"].concat();
    assert_eq!(
        forward(&[&none], 10, 0),
        Forwarded { length: Some(0), was_at_hand: true, ..Forwarded::default() }
    );
}

/// A client that chops its body makes the gateway work for a hundredth of a core, and gets all of it through.
#[test]
fn a_body_in_tiny_pieces_is_read_slowly() {
    let head = [HEAD, b"Transfer-Encoding: chunked\r\n\r\n"].concat();
    for (size, count, paused) in
        [(1, 8_000, 0..1), (1, 10_100, 200..210), (15, 10_100, 200..210), (16, 10_100, 0..1)]
    {
        let chunk = format!("{size:x}\r\n{}\r\n", "a".repeat(size));
        let wire = [&head[..], chunk.repeat(count).as_bytes(), b"0\r\n\r\n"].concat();
        for peek_bytes in [0, 1_000_000] {
            let got = forward(&[&wire], peek_bytes, u64::MAX);
            assert_eq!((got.bytes.len(), got.fault), (size * count, None));
            assert!(paused.contains(&got.paused), "{} ms for {count} pieces of {size}", got.paused);
        }
    }
}
