//! HTTP/1 heads and bodies are written and read alike, whatever pieces they arrive in.

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::framing::MalformedResponse;
use super::*;

/// The final head in `text`, and the rest; read at once and byte by byte.
fn head_in(method: &Method, text: &str) -> Result<Option<(ResponseHead, BytesMut)>, MalformedResponse> {
    let mut all = BytesMut::from(text);
    let whole = HeadReader::new(method).read_head(&mut all).map(|head| head.map(|head| (head, all)));
    let (mut dripped, mut read) = (HeadReader::new(method), BytesMut::new());
    let mut found = Ok(None);
    for byte in text.bytes() {
        read.extend_from_slice(&[byte]);
        if !matches!(found, Ok(None)) {
            continue;
        }
        found = dripped.read_head(&mut read);
    }
    match (&whole, &found) {
        (Ok(Some((head, rest))), Ok(Some(other))) => {
            assert_eq!(
                (head.status, &head.headers, head.keeps_alive),
                (other.status, &other.headers, other.keeps_alive)
            );
            assert_eq!(rest, &read);
        }
        (Ok(None), Ok(None)) => {}
        (Err(_), Err(_)) => {}
        _ => panic!("pieces make a difference in {text:?}"),
    }
    whole
}

/// The body that follows `head` in `text`, its trailers, whether it ended, and the rest.
fn body_in(
    head: &str,
    text: &str,
    pieces: usize,
) -> Result<(Vec<u8>, Option<HeaderMap>, bool, String), MalformedResponse> {
    let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n");
    let (head, mut read) = head_in(&Method::GET, &head)?.expect("a head");
    let (mut framing, mut body, mut trailers) = (head.framing, Vec::new(), None);
    let mut left = text.as_bytes();
    loop {
        match framing.next_frame(&mut read)? {
            Some(frame) => match frame.into_data() {
                Ok(data) => body.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
            None if matches!(framing, ResponseFraming::Ended) || left.is_empty() => break,
            None => {
                let (piece, rest) = left.split_at(pieces.min(left.len()));
                read.extend_from_slice(piece);
                left = rest;
            }
        }
    }
    read.extend_from_slice(left);
    let is_over = matches!(framing, ResponseFraming::Ended);
    Ok((body, trailers, is_over, String::from_utf8_lossy(&read).into_owned()))
}

const CHUNKED: &str = "transfer-encoding: chunked\r\n";

#[test]
fn bodies_are_the_same_in_any_pieces() {
    for (head, text, body, is_over, rest) in [
        ("content-length: 5\r\n", "hello", "hello", true, ""),
        ("content-length: 5\r\n", "hello, you", "hello", true, ", you"),
        ("content-length: 5, 5\r\ncontent-length: 5\r\n", "hello", "hello", true, ""),
        ("content-length: 5\r\n", "hell", "hell", false, ""),
        ("content-length: 0\r\n", "x", "", true, "x"),
        ("", "until the end", "until the end", false, ""),
        ("transfer-encoding: gzip\r\n", "until the end", "until the end", false, ""),
        (CHUNKED, "5\r\nhello\r\n0\r\n\r\n", "hello", true, ""),
        (
            CHUNKED,
            "0005 ;a=\"b\"\r\nhello\r\nA\r\n, chunked!\r\n0\r\n\r\nHTTP",
            "hello, chunked!",
            true,
            "HTTP",
        ),
        (CHUNKED, "5\r\nhello\r\n0\r\n", "hello", false, ""),
        ("transfer-encoding: gzip, Chunked\r\ncontent-length: 3\r\n", "1\r\nx\r\n0\r\n\r\n", "x", true, ""),
    ] {
        for pieces in [1, 2, 3, 7, 1000] {
            let (got, trailers, over, left) = body_in(head, text, pieces).expect(text);
            let got = String::from_utf8(got).unwrap();
            assert_eq!(
                (got.as_str(), over, left.as_str()),
                (body, is_over, rest),
                "{head:?} {text:?} {pieces}"
            );
            assert!(trailers.is_none());
        }
    }
}

#[test]
fn malformed_chunks_are_rejected() {
    let many = format!("1;{}\r\nx\r\n", "e".repeat(3000)).repeat(6);
    for text in [
        "\r\n",
        "x\r\n",
        "-5\r\nhello\r\n",
        "+5\r\nhello\r\n",
        "0x5\r\nhello\r\n",
        "5\nhello\r\n",
        "5 5\r\nhello\r\n",
        "5\r\r\nhello\r\n",
        "5\r;a\r\nhello\r\n",
        "5;a\rb\r\nhello\r\n",
        "5\u{b}\r\nhello\r\n",
        "5\r\nhello!\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "10000000000000000\r\n",
        "0\r\nno trailer\r\n\r\n",
        "0\r\na b: c\r\n\r\n",
        &many,
        &"0".repeat(5000),
        &format!("0\r\na: {}\r\n\r\n", "b".repeat(20_000)),
        "0\r\na: b\n\nHTTP/1.1 200 OK\r\n\r\n",
    ] {
        for pieces in [1, 5, 100_000] {
            assert!(body_in(CHUNKED, text, pieces).is_err(), "{text:?} in pieces of {pieces}");
        }
    }
}

#[test]
fn trailers_are_read() {
    for pieces in [1, 4, 100] {
        let text = "1\r\nx\r\n0\r\ngrpc-status: 0\r\ngrpc-message: fine\r\n\r\nrest";
        let (body, trailers, is_over, rest) = body_in(CHUNKED, text, pieces).unwrap();
        let trailers = trailers.expect("trailers");
        assert_eq!((body.as_slice(), is_over, rest.as_str()), (&b"x"[..], true, "rest"));
        assert_eq!(
            (trailers["grpc-status"].as_bytes(), trailers["grpc-message"].as_bytes()),
            (&b"0"[..], &b"fine"[..])
        );
    }
}

#[test]
fn heads_decide_whether_the_connection_stays() {
    for (head, keeps) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
        ("HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", true),
        ("HTTP/1.1 200 OK\nContent-Length: 0\n\n", true),
        ("HTTP/1.1 204 No Content\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", false),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: x, Close\r\nconnection: keep-alive\r\n\r\n",
            false,
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: Keep-Alive\r\n\r\n", true),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", true),
        // The end of the body is ambiguous.
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n", false),
        ("HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n", false),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", false),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", true),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", true),
    ] {
        let (found, rest) = head_in(&Method::GET, head).expect(head).expect(head);
        assert_eq!((found.keeps_alive, rest.len()), (keeps, 0), "{head:?}");
    }
}

#[test]
fn interim_heads_are_skipped_within_bounds() {
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n";
    let text = format!("HTTP/1.1 100 Continue\r\n\r\n{interim}HTTP/1.1 204 No Content\r\na: b\r\n\r\n");
    let (head, _) = head_in(&Method::GET, &text).unwrap().unwrap();
    assert_eq!((head.status, head.headers.len()), (StatusCode::NO_CONTENT, 1));
    assert!(head_in(&Method::GET, interim).unwrap().is_none());
    assert!(head_in(&Method::GET, &interim.repeat(4000)).is_err());
}

#[test]
fn malformed_heads_are_rejected() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(1001));
    let long = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(140_000));
    for head in [
        "\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 099 Low\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\na b: c\r\n\r\n",
        "HTTP/1.1 200 OK\r\na : c\r\n\r\n",
        "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
        "HTTP/1.1 200 OK\r\na: \u{1}\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        // Input that can never become a head fails at once.
        "SSH-2.0-x\r\n",
        "\r\n220 mail",
        "h",
        &many,
        &long,
    ] {
        assert!(head_in(&Method::GET, head).is_err(), "{head:?}");
    }
}

#[test]
fn responses_to_head_and_some_statuses_have_no_body() {
    for (method, status) in [(Method::HEAD, 200), (Method::HEAD, 404), (Method::GET, 304)] {
        let text = format!("HTTP/1.1 {status} X\r\ncontent-length: 5\r\n\r\n");
        let (head, _) = head_in(&method, &text).unwrap().unwrap();
        assert!(matches!(head.framing, ResponseFraming::Ended) && head.keeps_alive, "{method} {status}");
        assert_eq!(head.headers[CONTENT_LENGTH], "5");
    }
}

#[test]
fn a_request_without_a_body_announces_none() {
    let mut request = Request::post("/x?y").body(RequestBody::Empty).unwrap();
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("a.test"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("5"));
    headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    let mut buffer = Vec::new();
    head::write_head(&request, &AddedFields::default(), &mut buffer);
    assert_eq!(buffer, b"POST /x?y HTTP/1.1\r\nhost: a.test\r\n\r\n");
    request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    buffer.clear();
    head::write_head(&request, &AddedFields::default(), &mut buffer);
    assert_eq!(buffer, b"POST /x?y HTTP/1.1\r\nhost: a.test\r\ncontent-length: 0\r\n\r\n");
    let mut added = AddedFields::default();
    added.set(HeaderName::from_static("x-request-id"), HeaderValue::from_static("7"));
    buffer.clear();
    head::write_head(&request, &added, &mut buffer);
    assert_eq!(buffer, b"POST /x?y HTTP/1.1\r\nhost: a.test\r\nx-request-id: 7\r\ncontent-length: 0\r\n\r\n");
}

#[test]
fn a_length_is_written_once_and_as_a_number() {
    for (body, lengths, written) in [
        ("abc", &["3"][..], "content-length: 3\r\n"),
        ("abc", &["003"], "content-length: 3\r\n"),
        ("abc", &["3", "003"], "content-length: 3\r\n"),
        ("abc", &["0000000000000000000000000000003"], "content-length: 3\r\n"),
        ("", &["00"], "content-length: 0\r\n"),
        ("", &["0", "00"], "content-length: 0\r\n"),
        ("", &["3", "03"], ""),
        ("abc", &["3", "4"], "transfer-encoding: chunked\r\n"),
        ("abc", &[], "transfer-encoding: chunked\r\n"),
    ] {
        let body = if body.is_empty() { RequestBody::Empty } else { RequestBody::Consumed };
        let mut request = Request::post("/x").body(body).unwrap();
        for length in lengths {
            request.headers_mut().append(CONTENT_LENGTH, HeaderValue::from_static(length));
        }
        let mut buffer = Vec::new();
        head::write_head(&request, &AddedFields::default(), &mut buffer);
        let buffer = String::from_utf8(buffer).unwrap();
        assert_eq!(buffer, format!("POST /x HTTP/1.1\r\n{written}\r\n"), "{lengths:?}");
    }
}

async fn pair() -> (Rc<Http1Connection>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (Http1Connection::new(ServerSocket::Plain(near), 0), listener.accept().await.unwrap().0)
}

fn request() -> Request<RequestBody> {
    Request::get("/").header(HOST, "a.test").body(RequestBody::Empty).unwrap()
}

#[tokio::test(flavor = "local")]
async fn a_connection_serves_one_exchange_after_the_other() {
    let (connection, mut server) = pair().await;
    for _ in 0..3 {
        assert_eq!(connection.check_idle(), IdleState::Usable);
        let mut response: Option<Response<Http1Body>> = None;
        let mut sent_request = request();
        let served = async {
            let mut seen = [0; 1024];
            let count = server.read(&mut seen).await.unwrap();
            assert_eq!(&seen[..count], b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n");
            server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        };
        let added = AddedFields::default();
        let ((sent, upload), ()) =
            tokio::join!(connection.send_request(&mut sent_request, &added, &mut response), served);
        assert!(
            matches!(sent, SendOutcome::Responded(StatusCode::OK))
                && upload.is_none()
                && !connection.is_free()
        );
        let mut body = response.unwrap().into_body();
        let frame = poll_fn(|cx| body.poll_frame(cx)).await.unwrap().unwrap();
        assert!(frame.into_data().is_ok_and(|data| data == "ok"));
        assert!(body.is_complete() && connection.is_free());
    }
    server.set_nodelay(true).unwrap();
    server.write_all(b"HTTP/1.1 408 Request Timeout\r\n").await.unwrap();
    // The runtime has not looked at the socket since.
    assert_eq!(connection.check_idle(), IdleState::Stray);
}

#[tokio::test(flavor = "local")]
async fn bytes_after_a_response_make_the_connection_unusable() {
    let (connection, mut server) = pair().await;
    let (mut response, mut sent_request) = (None::<Response<Http1Body>>, request());
    server.write_all(b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n").await.unwrap();
    let (sent, _) = connection.send_request(&mut sent_request, &AddedFields::default(), &mut response).await;
    assert!(matches!(sent, SendOutcome::Responded(StatusCode::NO_CONTENT)));
    assert!(connection.has_stray_data() && !connection.is_free());
}

#[tokio::test(flavor = "local")]
async fn closing_before_and_within_a_response_are_distinguished() {
    let (connection, server) = pair().await;
    drop(server);
    let (sent, _) = connection
        .send_request(&mut request(), &AddedFields::default(), &mut None::<Response<Http1Body>>)
        .await;
    assert!(
        matches!(sent, SendOutcome::Failed(error) if error.has_no_response())
            || connection.check_idle() == IdleState::Unusable
    );
    let (connection, mut server) = pair().await;
    server.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
    drop(server);
    let (sent, _) = connection
        .send_request(&mut request(), &AddedFields::default(), &mut None::<Response<Http1Body>>)
        .await;
    assert!(matches!(sent, SendOutcome::Failed(error) if !error.has_no_response()));
}
