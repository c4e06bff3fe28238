//! One client connection: it is served on the worker that accepted it, or was handed it, and stays there.

use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Poll, ready};

use super::connection_limits::{Crew, Place, Ticket};
use super::handshake;
use super::handshake::Opened;
use super::http1::{self, Ended};
use super::http2;
use super::listener_protocol::Speaks;
use crate::net::deadline::ConnectionWatch;
use crate::net::socket::{Arrival, Socket, WatchedSocket, Wire};
use crate::proxy::worker::{Connection, Home};
use crate::request::headers::forwarded::Proto;

/// Takes a connection in: counted for its client, and served here or by a worker with fewer.
pub fn receive(home: &Rc<Home>, crew: &Crew, socket: Socket, mut ticket: Ticket) {
    // Who calls behind a proxy is not known before its header was read.
    if let (Some(peer), None) = (socket.peer(), ticket.door.proxy_protocol)
        && !count(home, peer, &mut ticket.place)
    {
        return;
    }
    match crew.emptier_seat(&ticket.place) {
        None => start(home, socket, ticket),
        Some(seat) => match socket.into_std() {
            Ok(arrival) => {
                if let Some((arrival, ticket)) = crew.hand_over(seat, arrival, ticket) {
                    adopt(home, arrival, ticket);
                }
            }
            Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
        },
    }
}

/// Counts a connection for its client, who is none of our proxies; false when it has `connections_per_ip` already.
pub fn count(home: &Home, peer: IpAddr, place: &mut Place) -> bool {
    let worker = home.worker();
    let clients = &worker.gateway.clients;
    let fits = clients.trusts(peer) || place.count_for(clients.masked(peer));
    if !fits {
        worker.gateway.metrics.refused_per_ip(worker.id);
    }
    fits
}

/// Serves a connection that another worker accepted.
pub fn adopt(home: &Rc<Home>, arrival: Arrival, ticket: Ticket) {
    match Socket::from_std(arrival) {
        Ok(socket) => start(home, socket, ticket),
        Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
    }
}

/// Serves the connection in a task of its own.
fn start(home: &Rc<Home>, socket: Socket, ticket: Ticket) {
    let watch = home.watches.open();
    let task = tokio::task::spawn_local(serve(home.clone(), Rc::new(socket), watch.clone(), ticket));
    watch.set_abort(task.abort_handle());
}

async fn serve(home: Rc<Home>, socket: Rc<Socket>, watch: Rc<ConnectionWatch>, ticket: Ticket) {
    let Ticket { mut place, door } = ticket;
    watch.set_admission(door.admission.clone());
    // It may have stood in the queue of a listener that is gone.
    watch.recheck_admission();
    let wire = Wire::plain(WatchedSocket::new(socket.clone(), watch.clone()));
    let (peer, speaks) = (socket.peer(), door.speaks());
    let opened = if door.is_open() {
        Opened { wire, speaks, peer, proto: Proto::Http }
    } else {
        // Boxed: what opening takes is not kept.
        match Box::pin(handshake::open(&home, &door, wire, peer, &watch, &mut place)).await {
            Some(opened) => opened,
            None => return,
        }
    };
    drop(door);
    // What was asked of it is no longer enough.
    if watch.is_revoked() {
        return;
    }
    let Opened { mut wire, mut speaks, peer, proto } = opened;
    let connection = Rc::new(Connection::new(&home, socket, watch, peer, proto));
    while let Some(spoken) = stand(&connection.watch, &mut wire, speaks).await {
        // Who spoke HTTP/1 once goes on with it.
        speaks = Speaks::Http1;
        match spoken {
            Spoken::Http2 => return Box::pin(http2::serve(&home, &connection, wire)).await,
            // Boxed: while the connection stands unused, what serving takes is not kept.
            Spoken::Http1 => match Box::pin(http1::serve(&home, &connection, wire)).await {
                Ended::Closed => return,
                Ended::Rested(back) => wire = back,
                Ended::TakenOver(takeover, back) => return takeover(back).await,
            },
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Spoken {
    Http1,
    Http2,
}

/// Keeps only the socket until the client says something, and tells what it speaks; `None` when the connection ends.
async fn stand(watch: &ConnectionWatch, wire: &mut Wire, speaks: Speaks) -> Option<Spoken> {
    std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        if watch.is_revoked() {
            return Poll::Ready(None);
        }
        if wire.ahead().is_empty() {
            watch.rest();
        } else {
            watch.bytes_read();
        }
        loop {
            if let Some(spoken) = recognise(wire.ahead(), speaks) {
                return Poll::Ready(Some(spoken));
            }
            let read = wire.poll_read_ahead(cx);
            if read.is_pending() && watch.closing() && watch.may_leave() && !wire.has_unread() {
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
fn recognise(said: &[u8], speaks: Speaks) -> Option<Spoken> {
    let common = said.len().min(PREFACE.len());
    match speaks {
        _ if said.is_empty() => None,
        Speaks::Http1 => Some(Spoken::Http1),
        Speaks::Http2 => Some(Spoken::Http2),
        Speaks::Either if said[..common] != PREFACE[..common] => Some(Spoken::Http1),
        Speaks::Either => (common == PREFACE.len()).then_some(Spoken::Http2),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::net::deadline::{ClientSpans, Watches};

    /// What lies in the kernel and the runtime has not heard of yet, as after a stall, is a request on its way.
    #[tokio::test(start_paused = true)]
    async fn a_connection_does_not_leave_over_unread_bytes() {
        for bytes in [&b"GET"[..], b""] {
            let (mut near, far) = UnixStream::pair().unwrap();
            far.set_nonblocking(true).unwrap();
            near.write_all(bytes).unwrap();
            let watches = Watches::default();
            let watch = watches.open();
            watch.close_gracefully();
            tokio::time::sleep(Duration::from_secs(2)).await;
            watches.sweep(
                &ClientSpans { header: 99, idle: 99, spare: 99, body: 99, write: 99, handshake: 99 },
                |_| {},
            );
            let socket = Rc::new(Socket::from_std(Arrival::Unix(far)).unwrap());
            let mut wire = Wire::plain(WatchedSocket::new(socket, watch.clone()));
            let spoken = stand(&watch, &mut wire, Speaks::Either).await;
            assert_eq!(spoken.is_some(), !bytes.is_empty());
        }
    }

    #[test]
    fn a_preface_is_told_from_a_request_line_at_the_first_byte_that_differs() {
        assert_eq!(recognise(b"", Speaks::Either), None);
        assert_eq!(recognise(b"G", Speaks::Either), Some(Spoken::Http1));
        assert_eq!(recognise(b"P", Speaks::Either), None);
        assert_eq!(recognise(b"PO", Speaks::Either), Some(Spoken::Http1));
        assert_eq!(recognise(b"PRI * HTTP/1.1\r\n", Speaks::Either), Some(Spoken::Http1));
        assert_eq!(recognise(&PREFACE[..23], Speaks::Either), None);
        assert_eq!(recognise(PREFACE, Speaks::Either), Some(Spoken::Http2));
        assert_eq!(recognise(&[PREFACE, b"x"].concat(), Speaks::Either), Some(Spoken::Http2));
        assert_eq!(recognise(PREFACE, Speaks::Http1), Some(Spoken::Http1));
        assert_eq!(recognise(b"P", Speaks::Http2), Some(Spoken::Http2));
        assert_eq!(recognise(b"", Speaks::Http2), None);
    }
}
