//! Serves one client connection on the worker that accepted it or received it from another.

use std::rc::Rc;
use std::task::{Poll, ready};

use super::connection_limits::{AcceptContext, ConnectionLimits};
use super::handshake::{self, HandshakeOutcome};
use super::http1::{self, Http1Outcome};
use super::listener_protocol::AllowedHttp;
use super::{http2, resp};
use crate::gateway::worker::{ClientConnection, WorkerThread};
use sluicegate_http::net::deadline::ConnectionWatch;
use sluicegate_http::net::socket::{ClientStream, Socket, StdSocket, WatchedSocket};
use sluicegate_model::{ListenerPurpose, Scheme};

/// Counts an accepted connection for its client, and serves it here or on a worker with fewer connections.
pub fn dispatch_connection(
    thread: &Rc<WorkerThread>,
    limits: &ConnectionLimits,
    socket: Socket,
    mut context: AcceptContext,
) {
    // The client behind a proxy is known only after the PROXY header.
    if let (Some(peer), None) = (socket.peer(), context.protocol.proxy_protocol)
        && !context.permit.try_count_peer(thread, peer)
    {
        return;
    }
    match limits.less_loaded_worker(&context.permit) {
        None => spawn_connection(thread, socket, context),
        Some(worker) => match socket.into_std() {
            Ok(socket) => {
                if let Some((socket, context)) = limits.hand_to_worker(worker, socket, context) {
                    adopt_connection(thread, socket, context);
                }
            }
            Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
        },
    }
}

/// Serves a connection that another worker accepted.
pub fn adopt_connection(thread: &Rc<WorkerThread>, socket: StdSocket, context: AcceptContext) {
    match Socket::from_std(socket) {
        Ok(socket) => spawn_connection(thread, socket, context),
        Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
    }
}

/// Serves the connection in a task of its own.
fn spawn_connection(thread: &Rc<WorkerThread>, socket: Socket, context: AcceptContext) {
    let watch = thread.watches.watch_connection();
    let task =
        tokio::task::spawn_local(serve_connection(thread.clone(), Rc::new(socket), watch.clone(), context));
    watch.set_abort(task.abort_handle());
}

async fn serve_connection(
    thread: Rc<WorkerThread>,
    socket: Rc<Socket>,
    watch: Rc<ConnectionWatch>,
    context: AcceptContext,
) {
    let AcceptContext { mut permit, protocol } = context;
    watch.set_terms(protocol.terms.clone());
    // The listener may have been removed while this connection stood in its queue.
    watch.recheck_terms();
    let wire = ClientStream::from_plain(WatchedSocket::new(socket.clone(), watch.clone()));
    let (peer, allowed) = (socket.peer(), protocol.allowed_http());
    let outcome = if protocol.is_plain_http() {
        HandshakeOutcome { wire, allowed_http: allowed, peer, scheme: Scheme::Http }
    } else {
        // Boxed, so that the memory of the handshake is freed.
        match Box::pin(handshake::run_handshake(&thread, &protocol, wire, peer, &watch, &mut permit)).await {
            Some(outcome) => outcome,
            None => return,
        }
    };
    let terms = protocol.terms.clone();
    drop(protocol);
    // A reload tightened the terms during the handshake.
    if watch.is_revoked() {
        return;
    }
    let HandshakeOutcome { mut wire, allowed_http: mut allowed, peer, scheme } = outcome;
    if terms.purpose() == ListenerPurpose::Resp {
        return Box::pin(resp::serve_resp(&thread, &watch, wire, peer)).await;
    }
    let connection = Rc::new(ClientConnection::new(&thread, Some(socket), watch, peer, scheme, Some(terms)));
    while let Some(detected) = wait_for_bytes(&connection.watch, &mut wire, allowed).await {
        // A connection that spoke HTTP/1 stays with it.
        allowed = AllowedHttp::Http1;
        match detected {
            DetectedHttp::Http2 => return Box::pin(http2::serve_http2(&thread, &connection, wire)).await,
            // Boxed, so that an idle connection keeps no memory of serving.
            DetectedHttp::Http1 => match Box::pin(http1::serve_http1(&thread, &connection, wire)).await {
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

/// Waits for the first bytes and detects their HTTP version, holding no more than the socket meanwhile; `None` when the
/// connection ends.
async fn wait_for_bytes(
    watch: &ConnectionWatch,
    wire: &mut ClientStream,
    allowed: AllowedHttp,
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
            if let Some(detected) = detect_http(wire.ahead(), allowed) {
                return Poll::Ready(Some(detected));
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

/// The first bytes of an HTTP/2 client with prior knowledge (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// `None` while the bytes may still become either version.
fn detect_http(bytes: &[u8], allowed: AllowedHttp) -> Option<DetectedHttp> {
    let common = bytes.len().min(PREFACE.len());
    match allowed {
        _ if bytes.is_empty() => None,
        AllowedHttp::Http1 => Some(DetectedHttp::Http1),
        AllowedHttp::Http2 => Some(DetectedHttp::Http2),
        AllowedHttp::Either if bytes[..common] != PREFACE[..common] => Some(DetectedHttp::Http1),
        AllowedHttp::Either => (common == PREFACE.len()).then_some(DetectedHttp::Http2),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use sluicegate_http::net::deadline::{ClientSpans, WatchList};

    /// Bytes in the kernel that the runtime has not noticed yet, as after a stall, are a request on its way.
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
            let socket = Rc::new(Socket::from_std((far.into(), None)).unwrap());
            let mut wire = ClientStream::from_plain(WatchedSocket::new(socket, watch.clone()));
            let detected = wait_for_bytes(&watch, &mut wire, AllowedHttp::Either).await;
            assert_eq!(detected.is_some(), !bytes.is_empty());
        }
    }

    #[test]
    fn a_preface_differs_from_a_request_line_at_the_first_other_byte() {
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
