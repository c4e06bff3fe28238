//! Serves HTTP/1 on a client connection with hyper, one request after the other.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tower::Service;

use crate::gateway::worker::{ClientConnection, Takeover, WorkerThread};
use crate::reject::Fault;
use crate::service;
use sluicegate_http::net::socket::ClientStream;
use sluicegate_model as model;

/// hyper's own default, which sizes its header array at compile time.
const HYPER_MAX_HEADERS: usize = 100;

/// The end of serving a connection.
pub(crate) enum Http1Outcome {
    Closed,
    /// The connection is unused: its buffers are freed, and the next bytes allocate them again.
    Idle(ClientStream),
    /// The connection switched to another protocol.
    Upgraded(Takeover, ClientStream),
}

/// Why serving stopped.
enum StopReason {
    /// hyper has nothing left to do.
    Done,
    /// The client left, or this worker may no longer serve it.
    HungUp,
    Idle,
}

/// Serves until the connection ends, or is unused for a while.
pub(crate) async fn serve_http1(
    thread: &Rc<WorkerThread>,
    connection: &Rc<ClientConnection>,
    wire: ClientStream,
) -> Http1Outcome {
    let worker = thread.current_worker();
    let watch = &connection.watch;
    let _end = CloseGuard(connection);
    let mut hung_up = pin!(connection.wait_for_hangup());
    let connection_service = service::connection_service(thread.clone(), connection.clone());
    // The service is always ready: hyper sends the next request only after the answer to the last one.
    let service = hyper::service::service_fn(move |request| connection_service.clone().call(request));
    let gathers = watch.has_large_responses();
    let builder = build_http1(&worker.gateway.config.server, gathers);
    let mut served = builder.serve_connection(TokioIo::new(wire), service);
    drop(worker);
    let mut is_shutting_down = false;
    let stopped = std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        let must_stop = thread.has_stopped_judging() || watch.is_revoked();
        // Also in the middle of a head: hyper would read it to its end.
        if must_stop && !watch.is_busy() && !watch.is_write_blocked() && !watch.would_reset() {
            return Poll::Ready(Ok(StopReason::HungUp));
        }
        let may_close = || must_stop || watch.may_close() && (watch.is_busy() || !connection.has_unread());
        if (must_stop || watch.is_closing()) && !is_shutting_down && may_close() {
            is_shutting_down = true;
            Pin::new(&mut served).graceful_shutdown();
        }
        let polled = Pin::new(&mut served).poll(cx);
        if polled.is_pending() {
            // hyper misses a hang-up behind bytes that it has not read; then no client waits for the answer.
            if connection.is_request_slow() && hung_up.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(StopReason::HungUp));
            }
            // hyper takes its way of writing only at the start.
            let should_gather = watch.has_large_responses() && !gathers && watch.is_unused();
            if watch.may_hibernate() || should_gather {
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
            record_error(thread, &error);
            Http1Outcome::Closed
        }
    }
}

/// Cleans up however serving ends.
struct CloseGuard<'a>(&'a ClientConnection);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        // A pending takeover holds the connection, too.
        drop(self.0.takeover.take());
        if self.0.watch.is_response_unfinished() {
            self.0.reset_on_close();
        }
    }
}

fn recover_wire<S>(parts: http1::Parts<TokioIo<ClientStream>, S>) -> ClientStream {
    let mut wire = parts.io.into_inner();
    wire.put_back(parts.read_buf);
    wire
}

fn record_error(thread: &WorkerThread, error: &hyper::Error) {
    // hyper answered such heads by itself.
    let fault = match error.is_parse_too_large() {
        true => Some(Fault::HeadTooLarge),
        false => error.is_parse().then_some(Fault::BadHead),
    };
    if let Some(fault) = fault {
        let worker = thread.current_worker();
        worker.gateway.metrics.count_fault(worker.id, fault.index());
    }
    tracing::debug!(%error, "a client connection ended");
}

/// `gathers`: head and body are written in place, with one vectored write. One write of copies is cheaper for the small
/// bodies of most answers.
fn build_http1(server: &model::ServerConfig, gathers: bool) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.writev(gathers).max_header_size(server.max_header_size);
    if server.max_headers != HYPER_MAX_HEADERS {
        builder.max_headers(server.max_headers);
    }
    builder
}
