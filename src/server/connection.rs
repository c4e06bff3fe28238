//! One client connection: hyper serves it on the worker that accepted it, and it stays there.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tower::Service;

use super::crew::{Crew, Place};
use crate::reject::Fault;
use crate::socket::{Arrival, Socket, WatchedSocket};
use crate::throttle;
use crate::worker::{Connection, Worker};

/// hyper's own default, which sizes its header array at compile time.
const HYPER_MAX_HEADERS: usize = 100;

/// Takes a connection in: counted for its client, and served here or by a worker with fewer.
pub fn receive(worker: &Rc<Worker>, crew: &Crew, socket: Socket, mut place: Place) {
    if let Some(peer) = socket.peer()
        && !place.count_for(worker.gateway.clients.masked(peer))
    {
        // Above connections_per_ip it is closed at once.
        worker.gateway.metrics.refused_per_ip(worker.id);
        return;
    }
    match crew.emptier_seat(&place) {
        None => start(worker, socket, place),
        Some(seat) => match socket.into_std() {
            Ok(arrival) => {
                if let Some((arrival, place)) = crew.hand_over(seat, arrival, place) {
                    adopt(worker, arrival, place);
                }
            }
            Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
        },
    }
}

/// Serves a connection that another worker accepted.
pub fn adopt(worker: &Rc<Worker>, arrival: Arrival, place: Place) {
    match Socket::from_std(arrival) {
        Ok(socket) => start(worker, socket, place),
        Err(error) => tracing::debug!(%error, "a connection broke before it was served"),
    }
}

/// Serves the connection in a task of its own.
fn start(worker: &Rc<Worker>, socket: Socket, place: Place) {
    socket.send_at_once();
    let connection = Rc::new(Connection::new(worker, socket));
    let watch = connection.watch.clone();
    let task = tokio::task::spawn_local(serve(worker.clone(), connection, place));
    watch.set_abort(task.abort_handle());
}

async fn serve(worker: Rc<Worker>, connection: Rc<Connection>, place: Place) {
    let watch = connection.watch.clone();
    let watched = connection.socket.clone();
    let mut hung_up = pin!(watched.hung_up());
    let socket = TokioIo::new(WatchedSocket::new(connection.socket.clone(), watch.clone()));
    let door = throttle::door(worker.clone(), connection);
    // The door is always ready: hyper asks for the next request only when the last one is answered.
    let service = hyper::service::service_fn(move |request| door.clone().call(request));
    let mut served = pin!(builder(&worker).serve_connection(socket, service));
    let mut asked_to_close = false;
    let ended = std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        if watch.closing() && !asked_to_close {
            asked_to_close = true;
            served.as_mut().graceful_shutdown();
        }
        let polled = served.as_mut().poll(cx);
        // hyper misses a client that leaves behind bytes it has not read; nobody waits for the answer any more.
        if polled.is_pending() && watch.is_slow() && hung_up.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        polled
    });
    if let Err(error) = ended.await {
        if let Some(fault) = head_fault(&error) {
            worker.gateway.metrics.fault(worker.id, fault.index());
        }
        tracing::debug!(%error, "a client connection ended");
    }
    drop(place);
}

/// What was wrong with a head that hyper answered by itself.
fn head_fault(error: &hyper::Error) -> Option<Fault> {
    if error.is_parse_too_large() {
        Some(Fault::HeadTooLarge)
    } else if error.is_parse() {
        Some(Fault::BadHead)
    } else {
        None
    }
}

fn builder(worker: &Worker) -> http1::Builder {
    let server = &worker.gateway.server;
    let mut builder = http1::Builder::new();
    // One write of a copied head and body beats gathering for the small bodies that most answers have.
    builder.writev(false).max_header_size(server.max_header_size);
    if server.max_headers != HYPER_MAX_HEADERS {
        builder.max_headers(server.max_headers);
    }
    builder
}
