//! Serves HTTP/2 on a client connection with hyper, each stream in a task of its own.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper_util::rt::TokioIo;
use tower::Service;

use super::h2_guard::GuardedWire;
use crate::gateway::worker::{ClientConnection, WorkerThread};
use crate::reject::Fault;
use crate::service;
use sluicegate_http::net::socket::ClientStream;
use sluicegate_http::request::body::STREAM_WINDOW;
use sluicegate_model as model;

/// Concurrent streams; the defaults of nginx and HAProxy have this order of magnitude.
const STREAMS_MAX: u32 = 128;
/// Bytes of request bodies that a client may send ahead on all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of an answer that may wait for their stream's turn.
const SEND_BUFFER_MAX: usize = 64 * 1024;

/// Serves until the connection ends.
pub(crate) async fn serve_http2(
    thread: &Rc<WorkerThread>,
    connection: &Rc<ClientConnection>,
    wire: ClientStream,
) {
    let watch = &connection.watch;
    watch.set_multiplexed();
    watch.recheck_terms();
    let connection_service = service::connection_service(thread.clone(), connection.clone());
    let service = hyper::service::service_fn(move |request| {
        let may_judge = !thread.has_stopped_judging() && !connection.watch.is_revoked();
        let answer = may_judge.then(|| connection_service.clone().call(request));
        async move {
            match answer {
                Some(answer) => answer.await.map_err(|infallible| match infallible {}),
                // The request was not judged, so the client may safely send it to another process.
                None => Err(h2::Error::from(h2::Reason::REFUSED_STREAM)),
            }
        }
    });
    let builder =
        build_http2(&thread.current_worker().gateway.config.server, StreamExecutor(connection.clone()));
    let has_ended = Rc::new(Cell::new(false));
    let wire = GuardedWire::new(wire, watch.clone(), has_ended.clone());
    let mut served = pin!(builder.serve_connection(TokioIo::new(wire), service));
    let mut is_shutting_down = false;
    let ended = std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        if watch.is_closing() && !is_shutting_down {
            is_shutting_down = true;
            served.as_mut().graceful_shutdown();
        }
        match served.as_mut().poll(cx) {
            // After it reset the stream of a CONNECT that announces a body, hyper reports the end of the connection;
            // polled again, it serves on.
            Poll::Ready(Ok(())) if !has_ended.get() => {
                count_reset_connect(thread, connection);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => polled,
        }
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "a client connection ended");
    }
}

/// Counts a stream that was reset before it became a request.
fn count_reset_connect(thread: &WorkerThread, connection: &ClientConnection) {
    let worker = thread.current_worker();
    worker.gateway.metrics.count_fault(worker.id, Fault::BadFraming.index());
    tracing::debug!("a CONNECT with a body was reset");
    connection.count_cancelled();
}

fn build_http2(server: &model::ServerConfig, streams: StreamExecutor) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // Streams reset before they are accepted: as many at once as may be open, since leaving a page resets all.
        .max_pending_accept_reset_streams(STREAMS_MAX as usize)
        .enable_connect_protocol()
        .max_send_buf_size(SEND_BUFFER_MAX)
        .max_header_list_size(server.max_header_size.try_into().unwrap_or(u32::MAX));
    builder
}

/// Starts the task of each stream and registers it with the stream's deadlines, which can wake and end it. hyper calls
/// the service, which judges, in the task of the connection, and hands over the stream right after, so the connection
/// keeps the watch of one stream at most.
#[derive(Clone)]
struct StreamExecutor(Rc<ClientConnection>);

impl<F> Executor<F> for StreamExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, stream: F) {
        let task = tokio::task::spawn_local(stream);
        if let Some(watch) = self.0.take_stream_watch() {
            watch.set_task(task.abort_handle());
        }
    }
}
