//! One client connection: it is served on the worker that accepted it, or was handed it, and stays there.

use std::rc::Rc;
use std::task::{Poll, ready};

use super::crew::{Crew, Place};
use super::http1::{self, Ended};
use super::http2;
use crate::deadline::ConnectionWatch;
use crate::socket::{Arrival, Socket, WatchedSocket, Wire};
use crate::worker::{Connection, Home};

/// Takes a connection in: counted for its client, and served here or by a worker with fewer.
pub fn receive(home: &Rc<Home>, crew: &Crew, socket: Socket, mut place: Place) {
    if let Some(peer) = socket.peer() {
        let worker = home.worker();
        if !place.count_for(worker.gateway.clients.masked(peer)) {
            // Above connections_per_ip it is closed at once.
            worker.gateway.metrics.refused_per_ip(worker.id);
            return;
        }
    }
    match crew.emptier_seat(&place) {
        None => start(home, socket, place),
        Some(seat) => match socket.into_std() {
            Ok(arrival) => {
                if let Some((arrival, place)) = crew.hand_over(seat, arrival, place) {
                    adopt(home, arrival, place);
                }
            }
            Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
        },
    }
}

/// Serves a connection that another worker accepted.
pub fn adopt(home: &Rc<Home>, arrival: Arrival, place: Place) {
    match Socket::from_std(arrival) {
        Ok(socket) => start(home, socket, place),
        Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
    }
}

/// Serves the connection in a task of its own.
fn start(home: &Rc<Home>, socket: Socket, place: Place) {
    socket.send_at_once();
    let watch = home.watches.open();
    let task = tokio::task::spawn_local(serve(home.clone(), Rc::new(socket), watch.clone(), place));
    watch.set_abort(task.abort_handle());
}

async fn serve(home: Rc<Home>, socket: Rc<Socket>, watch: Rc<ConnectionWatch>, _place: Place) {
    let mut wire = Wire::plain(WatchedSocket::new(socket.clone(), watch.clone()));
    let peer = socket.peer();
    let connection = Rc::new(Connection::new(&home, socket, watch, peer));
    let mut may_be_http2 = true;
    while let Some(spoken) = stand(&connection.watch, &mut wire, may_be_http2).await {
        // Who spoke HTTP/1 once goes on with it.
        may_be_http2 = false;
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
async fn stand(watch: &ConnectionWatch, wire: &mut Wire, may_be_http2: bool) -> Option<Spoken> {
    std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        if wire.ahead().is_empty() {
            watch.rest();
        } else {
            watch.bytes_read();
        }
        loop {
            if let Some(spoken) = recognise(wire.ahead(), may_be_http2) {
                return Poll::Ready(Some(spoken));
            }
            let read = wire.poll_read_ahead(cx);
            if read.is_pending() && watch.closing() && watch.may_leave() {
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
fn recognise(said: &[u8], may_be_http2: bool) -> Option<Spoken> {
    let common = said.len().min(PREFACE.len());
    match common {
        0 => None,
        _ if !may_be_http2 || said[..common] != PREFACE[..common] => Some(Spoken::Http1),
        _ => (common == PREFACE.len()).then_some(Spoken::Http2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_is_told_from_a_request_line_at_the_first_byte_that_differs() {
        assert_eq!(recognise(b"", true), None);
        assert_eq!(recognise(b"G", true), Some(Spoken::Http1));
        assert_eq!(recognise(b"P", true), None);
        assert_eq!(recognise(b"PO", true), Some(Spoken::Http1));
        assert_eq!(recognise(b"PRI * HTTP/1.1\r\n", true), Some(Spoken::Http1));
        assert_eq!(recognise(&PREFACE[..23], true), None);
        assert_eq!(recognise(PREFACE, false), Some(Spoken::Http1));
        assert_eq!(recognise(PREFACE, true), Some(Spoken::Http2));
        assert_eq!(recognise(&[PREFACE, b"x"].concat(), true), Some(Spoken::Http2));
    }
}
