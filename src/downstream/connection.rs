//! One client connection: it is served on the worker that accepted it, or was handed it, and stays there.

use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Poll, ready};

use super::connection_limits::{AcceptContext, ConnectionLimits, ConnectionPermit};
use super::handshake;
use super::handshake::HandshakeOutcome;
use super::http1::{self, Http1Outcome};
use super::http2;
use super::listener_protocol::AllowedHttp;
use crate::net::deadline::ConnectionWatch;
use crate::net::socket::{ClientStream, Socket, StdSocket, WatchedSocket};
use crate::proxy::worker::{ClientConnection, WorkerThread};
use crate::request::headers::forwarded::Proto;

/// Takes a connection in: counted for its client, and served here or by a worker with fewer.
pub fn dispatch_connection(
    home: &Rc<WorkerThread>,
    crew: &ConnectionLimits,
    socket: Socket,
    mut ticket: AcceptContext,
) {
    // Who calls behind a proxy is not known before its header was read.
    if let (Some(peer), None) = (socket.peer(), ticket.protocol.proxy_protocol)
        && !count_client(home, peer, &mut ticket.permit)
    {
        return;
    }
    match crew.less_loaded_worker(&ticket.permit) {
        None => spawn_connection(home, socket, ticket),
        Some(seat) => match socket.into_std() {
            Ok(arrival) => {
                if let Some((arrival, ticket)) = crew.hand_to_worker(seat, arrival, ticket) {
                    adopt_connection(home, arrival, ticket);
                }
            }
            Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
        },
    }
}

/// Counts a connection for its client, who is none of our proxies; false when it has `connections_per_ip` already.
pub fn count_client(home: &WorkerThread, peer: IpAddr, place: &mut ConnectionPermit) -> bool {
    let worker = home.current_worker();
    let clients = &worker.gateway.clients;
    let fits = clients.trusts_proxy(peer) || place.count_client(clients.mask_address(peer));
    if !fits {
        worker.gateway.metrics.count_rejected_per_ip(worker.id);
    }
    fits
}

/// Serves a connection that another worker accepted.
pub fn adopt_connection(home: &Rc<WorkerThread>, arrival: StdSocket, ticket: AcceptContext) {
    match Socket::from_std(arrival) {
        Ok(socket) => spawn_connection(home, socket, ticket),
        Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
    }
}

/// Serves the connection in a task of its own.
fn spawn_connection(home: &Rc<WorkerThread>, socket: Socket, ticket: AcceptContext) {
    let watch = home.watches.watch_connection();
    let task =
        tokio::task::spawn_local(serve_connection(home.clone(), Rc::new(socket), watch.clone(), ticket));
    watch.set_abort(task.abort_handle());
}

async fn serve_connection(
    home: Rc<WorkerThread>,
    socket: Rc<Socket>,
    watch: Rc<ConnectionWatch>,
    ticket: AcceptContext,
) {
    let AcceptContext { permit: mut place, protocol: door } = ticket;
    watch.set_terms(door.admission.clone());
    // It may have stood in the queue of a listener that is gone.
    watch.recheck_terms();
    let wire = ClientStream::from_plain(WatchedSocket::new(socket.clone(), watch.clone()));
    let (peer, speaks) = (socket.peer(), door.allowed_http());
    let opened = if door.is_plain_http() {
        HandshakeOutcome { wire, allowed_http: speaks, peer, proto: Proto::Http }
    } else {
        // Boxed: what opening takes is not kept.
        match Box::pin(handshake::run_handshake(&home, &door, wire, peer, &watch, &mut place)).await {
            Some(opened) => opened,
            None => return,
        }
    };
    drop(door);
    // What was asked of it is no longer enough.
    if watch.is_revoked() {
        return;
    }
    let HandshakeOutcome { mut wire, allowed_http: mut speaks, peer, proto } = opened;
    let connection = Rc::new(ClientConnection::new(&home, socket, watch, peer, proto));
    while let Some(spoken) = wait_for_bytes(&connection.watch, &mut wire, speaks).await {
        // Who spoke HTTP/1 once goes on with it.
        speaks = AllowedHttp::Http1;
        match spoken {
            DetectedHttp::Http2 => return Box::pin(http2::serve_http2(&home, &connection, wire)).await,
            // Boxed: while the connection stands unused, what serving takes is not kept.
            DetectedHttp::Http1 => match Box::pin(http1::serve_http1(&home, &connection, wire)).await {
                Http1Outcome::Closed => return,
                Http1Outcome::Idle(back) => wire = back,
                Http1Outcome::Upgraded(takeover, back) => return takeover(back).await,
            },
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum DetectedHttp {
    Http1,
    Http2,
}

/// Keeps only the socket until the client says something, and tells what it speaks; `None` when the connection ends.
async fn wait_for_bytes(
    watch: &ConnectionWatch,
    wire: &mut ClientStream,
    speaks: AllowedHttp,
) -> Option<DetectedHttp> {
    std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        if watch.is_revoked() {
            return Poll::Ready(None);
        }
        if wire.ahead().is_empty() {
            watch.mark_hibernating();
        } else {
            watch.record_read();
        }
        loop {
            if let Some(spoken) = detect_http(wire.ahead(), speaks) {
                return Poll::Ready(Some(spoken));
            }
            let read = wire.poll_read_ahead(cx);
            if read.is_pending() && watch.is_closing() && watch.may_close() && !wire.has_unread() {
                return Poll::Ready(None);
            }
            match ready!(read) {
                Ok(0) | Err(_) => return Poll::Ready(None),
                Ok(_) => {}
            }
        }
    })
    .await
}

/// What an HTTP/2 client with prior knowledge says first (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// `None` while it may still become either.
fn detect_http(said: &[u8], speaks: AllowedHttp) -> Option<DetectedHttp> {
    let common = said.len().min(PREFACE.len());
    match speaks {
        _ if said.is_empty() => None,
        AllowedHttp::Http1 => Some(DetectedHttp::Http1),
        AllowedHttp::Http2 => Some(DetectedHttp::Http2),
        AllowedHttp::Either if said[..common] != PREFACE[..common] => Some(DetectedHttp::Http1),
        AllowedHttp::Either => (common == PREFACE.len()).then_some(DetectedHttp::Http2),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::net::deadline::{ClientSpans, WatchList};

    /// What lies in the kernel and the runtime has not heard of yet, as after a stall, is a request on its way.
    #[tokio::test(start_paused = true)]
    async fn a_connection_does_not_leave_over_unread_bytes() {
        for bytes in [&b"GET"[..], b""] {
            let (mut near, far) = UnixStream::pair().unwrap();
            far.set_nonblocking(true).unwrap();
            near.write_all(bytes).unwrap();
            let watches = WatchList::default();
            let watch = watches.watch_connection();
            watch.close_gracefully();
            tokio::time::sleep(Duration::from_secs(2)).await;
            watches.sweep_deadlines(
                &ClientSpans { header: 99, idle: 99, spare: 99, body: 99, write: 99, handshake: 99 },
                |_| {},
            );
            let socket = Rc::new(Socket::from_std(StdSocket::Unix(far)).unwrap());
            let mut wire = ClientStream::from_plain(WatchedSocket::new(socket, watch.clone()));
            let spoken = wait_for_bytes(&watch, &mut wire, AllowedHttp::Either).await;
            assert_eq!(spoken.is_some(), !bytes.is_empty());
        }
    }

    #[test]
    fn a_preface_is_told_from_a_request_line_at_the_first_byte_that_differs() {
        assert_eq!(detect_http(b"", AllowedHttp::Either), None);
        assert_eq!(detect_http(b"G", AllowedHttp::Either), Some(DetectedHttp::Http1));
        assert_eq!(detect_http(b"P", AllowedHttp::Either), None);
        assert_eq!(detect_http(b"PO", AllowedHttp::Either), Some(DetectedHttp::Http1));
        assert_eq!(detect_http(b"PRI * HTTP/1.1\r\n", AllowedHttp::Either), Some(DetectedHttp::Http1));
        assert_eq!(detect_http(&PREFACE[..23], AllowedHttp::Either), None);
        assert_eq!(detect_http(PREFACE, AllowedHttp::Either), Some(DetectedHttp::Http2));
        assert_eq!(detect_http(&[PREFACE, b"x"].concat(), AllowedHttp::Either), Some(DetectedHttp::Http2));
        assert_eq!(detect_http(PREFACE, AllowedHttp::Http1), Some(DetectedHttp::Http1));
        assert_eq!(detect_http(b"P", AllowedHttp::Http2), Some(DetectedHttp::Http2));
        assert_eq!(detect_http(b"", AllowedHttp::Http2), None);
    }
}
