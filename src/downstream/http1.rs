//! HTTP/1 on a client connection: one request after the other, served by hyper.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tower::Service;

use crate::config;
use crate::net::socket::ClientStream;
use crate::proxy::judge;
use crate::proxy::reject::Fault;
use crate::proxy::worker::{ClientConnection, Takeover, WorkerThread};

/// hyper's own default, which sizes its header array at compile time.
const HYPER_MAX_HEADERS: usize = 100;

/// How serving a connection ended.
pub enum Http1Outcome {
    Closed,
    /// It stands unused: what it takes to serve it was given back, and is taken anew with the next bytes.
    Idle(ClientStream),
    /// It speaks something else from now on.
    Upgraded(Takeover, ClientStream),
}

/// What stopped hyper.
enum StopReason {
    /// It has nothing left to do.
    Done,
    /// Nobody waits for more, or somebody else has to be asked.
    HungUp,
    Idle,
}

/// Serves until the connection ends, or stands unused for a while.
pub async fn serve_http1(
    home: &Rc<WorkerThread>,
    connection: &Rc<ClientConnection>,
    wire: ClientStream,
) -> Http1Outcome {
    let worker = home.current_worker();
    let watch = &connection.watch;
    let _end = CloseGuard(connection);
    let mut hung_up = pin!(connection.socket.wait_for_hangup());
    let door = judge::judge_service(home.clone(), connection.clone());
    // The door is always ready: hyper asks for the next request only when the last one is answered.
    let service = hyper::service::service_fn(move |request| door.clone().call(request));
    let gathers = watch.has_large_responses();
    let builder = build_http1(&worker.gateway.server, gathers);
    let mut served = builder.serve_connection(TokioIo::new(wire), service);
    drop(worker);
    let mut asked_to_close = false;
    let stopped = std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        let left = home.has_stopped_judging() || watch.is_revoked();
        // Also over half a head: hyper would go on to the end of it.
        if left && !watch.is_busy() && !watch.is_write_blocked() && !watch.would_reset() {
            return Poll::Ready(Ok(StopReason::HungUp));
        }
        let may_close = || left || watch.may_close() && (watch.is_busy() || !connection.socket.has_unread());
        if (left || watch.is_closing()) && !asked_to_close && may_close() {
            asked_to_close = true;
            Pin::new(&mut served).graceful_shutdown();
        }
        let polled = Pin::new(&mut served).poll(cx);
        if polled.is_pending() {
            // hyper misses a client that leaves behind bytes it has not read; nobody waits for the answer any more.
            if connection.is_request_slow() && hung_up.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(StopReason::HungUp));
            }
            // hyper is told only in the beginning how to write.
            let shall_gather = watch.has_large_responses() && !gathers && watch.is_unused();
            if watch.may_hibernate() || shall_gather {
                return Poll::Ready(Ok(StopReason::Idle));
            }
        }
        polled.map_ok(|()| StopReason::Done)
    })
    .await;
    let takeover = connection.takeover.take();
    match (stopped, takeover) {
        (Ok(StopReason::Done), Some(takeover)) => {
            Http1Outcome::Upgraded(takeover, recover_wire(served.into_parts()))
        }
        (Ok(StopReason::Idle), _) => Http1Outcome::Idle(recover_wire(served.into_parts())),
        (Ok(StopReason::Done | StopReason::HungUp), _) => Http1Outcome::Closed,
        (Err(error), _) => {
            record_error(home, &error);
            Http1Outcome::Closed
        }
    }
}

/// What is left to do whatever ends the serving of a connection.
struct CloseGuard<'a>(&'a ClientConnection);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        // Who waits to take the connection over holds it, too.
        drop(self.0.takeover.take());
        if self.0.watch.is_response_unfinished() {
            self.0.socket.reset_on_close();
        }
    }
}

fn recover_wire<S>(parts: http1::Parts<TokioIo<ClientStream>, S>) -> ClientStream {
    let mut wire = parts.io.into_inner();
    wire.put_back(parts.read_buf);
    wire
}

fn record_error(home: &WorkerThread, error: &hyper::Error) {
    if let Some(fault) = head_fault(error) {
        let worker = home.current_worker();
        worker.gateway.metrics.count_fault(worker.id, fault.index());
    }
    tracing::debug!(%error, "a client connection ended");
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

/// `gathers`: head and body are written from where they are. For the small bodies that most answers have, one write
/// of copies is cheaper.
fn build_http1(server: &config::ServerConfig, gathers: bool) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.writev(gathers).max_header_size(server.max_header_size);
    if server.max_headers != HYPER_MAX_HEADERS {
        builder.max_headers(server.max_headers);
    }
    builder
}
