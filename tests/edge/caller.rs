//! An HTTP/2 client that follows the standard, driven step by step by the test.

use std::net::SocketAddr;
use std::time::Instant;

use ::http::request::Builder;
use ::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest, handshake};
use h2::{RecvStream, SendStream};
use tokio::net::TcpStream;

use crate::support::{PATIENCE, ms};

/// One answer, read to its end.
#[derive(Debug)]
pub struct Got {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

impl Got {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.as_ref()?.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Connects and runs `work` within the timeout of tests.
#[track_caller]
pub fn call<T>(addr: SocketAddr, work: impl AsyncFnOnce(SendRequest<Bytes>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let stream = TcpStream::connect(addr).await.expect("the gateway accepts");
        stream.set_nodelay(true).expect("nodelay can be set");
        let (sender, connection) = handshake(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        tokio::time::timeout(2 * PATIENCE, work(sender)).await.expect("an end in time")
    })
}

/// A request to the gateway, without a body yet.
pub fn request(method: &str, path: &str) -> Builder {
    Request::builder().method(method).uri(format!("http://gateway.test{path}"))
}

/// Sends the head; the returned stream sends the rest.
pub async fn begin(
    sender: &SendRequest<Bytes>,
    request: Builder,
    is_bare: bool,
) -> (ResponseFuture, SendStream<Bytes>) {
    let mut sender = sender.clone().ready().await.expect("a free stream");
    sender.send_request(request.body(()).expect("a request"), is_bare).expect("it is sent")
}

/// Sends a request with this body and reads the answer.
pub async fn ask(sender: &SendRequest<Bytes>, request: Builder, body: &[u8]) -> Result<Got, h2::Error> {
    let (response, mut stream) = begin(sender, request, body.is_empty()).await;
    if !body.is_empty() {
        stream.send_data(Bytes::copy_from_slice(body), true)?;
    }
    finish(response).await
}

pub async fn finish(response: ResponseFuture) -> Result<Got, h2::Error> {
    let (head, mut incoming) = response.await?.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = next(&mut incoming).await {
        body.extend_from_slice(&piece?);
    }
    let trailers = incoming.trailers().await?;
    Ok(Got { status: head.status, headers: head.headers, body, trailers })
}

/// The next non-empty piece of a body; its window is released.
pub async fn next(incoming: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    loop {
        let piece = incoming.data().await?;
        if !piece.as_ref().is_ok_and(Bytes::is_empty) {
            return Some(piece.inspect(|piece| drop(incoming.flow_control().release_capacity(piece.len()))));
        }
    }
}

/// Waits for an event in another task.
pub async fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(ms(10)).await;
    }
}
