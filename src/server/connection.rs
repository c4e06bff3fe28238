//! One client connection: hyper serves it on the worker that accepted it, and it stays there.

use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpStream, UnixStream};

use super::crew::{Arrival, Place};
use crate::reject::Fault;
use crate::socket::{Socket, WatchedSocket};
use crate::throttle;
use crate::worker::{Connection, Worker};

/// hyper's own default, which sizes its header array at compile time.
const HYPER_MAX_HEADERS: usize = 100;

/// Counts the connection for its client; above `connections_per_ip` it is closed at once.
pub fn admit(worker: &Worker, arrival: Arrival, mut place: Place) -> Option<(Arrival, Place)> {
    let Arrival::Tcp(stream) = &arrival else { return Some((arrival, place)) };
    let Ok(peer) = stream.peer_addr() else { return None };
    let ip: IpAddr = worker.gateway.clients.masked(peer.ip().to_canonical());
    if place.count_for(ip) {
        return Some((arrival, place));
    }
    worker.gateway.metrics.refused_per_ip(worker.id);
    None
}

/// Serves the connection in a task of its own.
pub fn start(worker: &Rc<Worker>, arrival: Arrival, place: Place) {
    let socket = match bind_to_runtime(arrival) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!(%error, "a connection broke before it was served");
            return;
        }
    };
    let connection = Rc::new(Connection::new(worker, socket));
    let watch = connection.watch.clone();
    let task = tokio::task::spawn_local(serve(worker.clone(), connection, place));
    watch.set_abort(task.abort_handle());
}

fn bind_to_runtime(arrival: Arrival) -> std::io::Result<Socket> {
    Ok(match arrival {
        Arrival::Tcp(stream) => {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            Socket::Tcp(TcpStream::from_std(stream)?)
        }
        Arrival::Unix(stream) => {
            stream.set_nonblocking(true)?;
            Socket::Unix(UnixStream::from_std(stream)?)
        }
    })
}

async fn serve(worker: Rc<Worker>, connection: Rc<Connection>, place: Place) {
    let watch = connection.watch.clone();
    let socket = TokioIo::new(WatchedSocket::new(connection.socket.clone(), watch.clone()));
    let service = TowerToHyperService::new(throttle::door(worker.clone(), connection));
    let mut served = pin!(builder(&worker).serve_connection(socket, service));
    let mut asked_to_close = false;
    let ended = std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        if watch.closing() && !asked_to_close {
            asked_to_close = true;
            served.as_mut().graceful_shutdown();
        }
        match served.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            ended => ended,
        }
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
