//! An upstream that speaks HTTP/2, by prior knowledge or over TLS.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

use super::timing::eventually;

/// One request as received.
#[derive(Debug, Clone)]
pub struct Seen2 {
    /// Which connection, counted from 0.
    pub connection: usize,
    pub method: String,
    pub uri: String,
    pub headers: HeaderMap,
}

/// The answer to one request.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    Text(&'static str),
    /// Echoes body and trailers, with `grpc-status: 0`.
    Echo,
    /// Answers nothing until [`Upstream2::release`].
    Hold,
    Reset(Reason),
    /// This many bytes.
    Bytes(usize),
    /// Reads nothing for a while, then everything, and answers with the number of bytes.
    Slow(Duration),
    /// Answers at once, and refuses the rest of the body.
    Early,
    /// Begins an answer and breaks it.
    Half(Reason),
}

#[derive(Default)]
struct Book {
    seen: Vec<Seen2>,
    /// Reasons of streams that the peer reset while they were delayed.
    resets: Vec<Reason>,
    connections: usize,
    open: usize,
    in_flight: usize,
    most_in_flight: usize,
    /// Bytes sent by [`Act::Bytes`].
    sent: usize,
}

#[derive(Default)]
struct Shared {
    book: Mutex<Book>,
    released: watch::Sender<()>,
}

/// A running upstream; dropping it ends its connections.
pub struct Upstream2 {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

type Script = Arc<dyn Fn(&Seen2) -> Act + Send + Sync>;

#[derive(Default)]
pub struct Start {
    pub streams_max: Option<u32>,
    pub tls: Option<Arc<ServerConfig>>,
    /// 0 = any.
    pub port: u16,
}

impl Upstream2 {
    pub fn new(script: impl Fn(&Seen2) -> Act + Send + Sync + 'static) -> Upstream2 {
        Upstream2::start(Start::default(), script)
    }

    pub fn start(start: Start, script: impl Fn(&Seen2) -> Act + Send + Sync + 'static) -> Upstream2 {
        let address = SocketAddr::from(([127, 0, 0, 1], start.port));
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("an address can be taken again");
        socket.bind(&address.into()).expect("a port");
        socket.listen(1024).expect("it can listen");
        socket.set_nonblocking(true).expect("a socket may not block");
        let listener: std::net::TcpListener = socket.into();
        let addr = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let (book, script): (_, Script) = (shared.clone(), Arc::new(script));
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, &start, book, script) => {}
                    _ = stopped => {}
                }
            });
        });
        Upstream2 { addr, shared, stop: Some(stop), thread: Some(thread) }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn requests(&self) -> Vec<Seen2> {
        self.shared.book.lock().unwrap().seen.clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.book.lock().unwrap().connections
    }

    pub fn open(&self) -> usize {
        self.shared.book.lock().unwrap().open
    }

    pub fn most_in_flight(&self) -> usize {
        self.shared.book.lock().unwrap().most_in_flight
    }

    pub fn resets(&self) -> Vec<Reason> {
        self.shared.book.lock().unwrap().resets.clone()
    }

    pub fn sent(&self) -> usize {
        self.shared.book.lock().unwrap().sent
    }

    /// Waits until this many requests are being answered.
    #[track_caller]
    pub fn wait_in_flight(&self, count: usize) {
        eventually(&format!("{count} requests in flight"), || {
            self.shared.book.lock().unwrap().in_flight == count
        });
    }

    /// Releases all delayed requests.
    pub fn release(&self) {
        self.shared.released.send_replace(());
    }
}

impl Drop for Upstream2 {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: std::net::TcpListener, start: &Start, shared: Arc<Shared>, script: Script) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    let tls = start.tls.clone().map(TlsAcceptor::from);
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("nodelay can be set");
        let (shared, script, tls, max) = (shared.clone(), script.clone(), tls.clone(), start.streams_max);
        tokio::spawn(async move {
            let number = {
                let mut book = shared.book.lock().unwrap();
                book.connections += 1;
                book.open += 1;
                book.connections - 1
            };
            serve_socket(stream, tls, number, max, &shared, script).await;
            shared.book.lock().unwrap().open -= 1;
        });
    }
}

async fn serve_socket(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    number: usize,
    max: Option<u32>,
    shared: &Arc<Shared>,
    script: Script,
) {
    match tls {
        None => serve(stream, number, max, shared, script).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => serve(stream, number, max, shared, script).await,
            Err(_refused) => {}
        },
    }
}

async fn serve<S>(stream: S, number: usize, max: Option<u32>, shared: &Arc<Shared>, script: Script)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new();
    if let Some(max) = max {
        builder.max_concurrent_streams(max);
    }
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (head, body) = request.into_parts();
        let seen = Seen2 {
            connection: number,
            method: head.method.to_string(),
            uri: head.uri.to_string(),
            headers: head.headers,
        };
        let act = script(&seen);
        let mut released = shared.released.subscribe();
        released.mark_unchanged();
        {
            let mut book = shared.book.lock().unwrap();
            book.seen.push(seen);
            book.in_flight += 1;
            book.most_in_flight = book.most_in_flight.max(book.in_flight);
        }
        let shared = shared.clone();
        tokio::spawn(async move {
            answer(act, body, respond, &shared, released).await;
            shared.book.lock().unwrap().in_flight -= 1;
        });
    }
}

async fn answer(
    act: Act,
    mut body: RecvStream,
    mut respond: SendResponse<Bytes>,
    shared: &Shared,
    mut released: watch::Receiver<()>,
) {
    let ok = || Response::new(());
    match act {
        Act::Text(text) => {
            drain(&mut body).await;
            send(respond.send_response(ok(), false), Bytes::from_static(text.as_bytes())).await;
        }
        Act::Echo => echo(body, respond).await,
        Act::Hold => {
            tokio::select! {
                _ = released.changed() => {
                    send(respond.send_response(ok(), false), Bytes::from_static(b"held")).await;
                }
                reset = std::future::poll_fn(|cx| respond.poll_reset(cx)) => {
                    if let Ok(reason) = reset {
                        shared.book.lock().unwrap().resets.push(reason);
                    }
                }
            }
        }
        Act::Reset(reason) => respond.send_reset(reason),
        Act::Bytes(count) => {
            let Ok(mut stream) = respond.send_response(ok(), false) else { return };
            let mut left = count;
            while left > 0 {
                let piece = Bytes::from(vec![b'x'; left.min(16 * 1024)]);
                left -= piece.len();
                let sent = piece.len();
                if !push(&mut stream, piece).await {
                    return;
                }
                shared.book.lock().unwrap().sent += sent;
            }
            let _ = stream.send_data(Bytes::new(), true);
        }
        Act::Slow(pause) => {
            tokio::time::sleep(pause).await;
            let count = drain(&mut body).await;
            send(respond.send_response(ok(), false), Bytes::from(count.to_string())).await;
        }
        Act::Half(reason) => {
            let Ok(mut stream) = respond.send_response(ok(), false) else { return };
            push(&mut stream, Bytes::from_static(b"half")).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream.send_reset(reason);
        }
        Act::Early => {
            send(respond.send_response(ok(), false), Bytes::from_static(b"early")).await;
            // A reset discards unsent bytes.
            tokio::time::sleep(Duration::from_millis(50)).await;
            respond.send_reset(Reason::NO_ERROR);
        }
    }
}

async fn echo(mut body: RecvStream, mut respond: SendResponse<Bytes>) {
    let response = Response::builder().header("content-type", "application/grpc");
    let Ok(mut stream) = respond.send_response(response.body(()).expect("a head"), false) else { return };
    while let Some(Ok(piece)) = body.data().await {
        let _ = body.flow_control().release_capacity(piece.len());
        if !push(&mut stream, piece).await {
            return;
        }
    }
    let mut trailers = body.trailers().await.ok().flatten().unwrap_or_default();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let _ = stream.send_trailers(trailers);
}

async fn drain(body: &mut RecvStream) -> usize {
    let mut count = 0;
    while let Some(Ok(piece)) = body.data().await {
        count += piece.len();
        let _ = body.flow_control().release_capacity(piece.len());
    }
    count
}

async fn send(stream: Result<SendStream<Bytes>, h2::Error>, bytes: Bytes) {
    if let Ok(mut stream) = stream
        && push(&mut stream, bytes).await
    {
        let _ = stream.send_data(Bytes::new(), true);
    }
}

/// Waits until the peer's window has room; false when the peer is gone.
async fn push(stream: &mut SendStream<Bytes>, mut bytes: Bytes) -> bool {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(Ok(room)) => {
                let piece = bytes.split_to(room.min(bytes.len()));
                if stream.send_data(piece, false).is_err() {
                    return false;
                }
            }
            _ => return false,
        }
    }
    true
}
