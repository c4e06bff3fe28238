//! HTTP/2 on a client connection: hyper tells its frames apart, and each stream is a task of its own.

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
use crate::config;
use crate::net::socket::ClientStream;
use crate::proxy::judge;
use crate::proxy::reject::Fault;
use crate::proxy::worker::{ClientConnection, WorkerThread};
use crate::request::body::STREAM_WINDOW;

/// Streams that may be open at a time, as nginx and HAProxy allow by default in this order of magnitude.
const STREAMS_MAX: u32 = 128;
/// Bytes of request bodies that a client may send ahead on all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of an answer that wait for their stream's turn.
const SEND_BUFFER_MAX: usize = 64 * 1024;

/// Serves until the connection ends.
pub async fn serve_http2(home: &Rc<WorkerThread>, connection: &Rc<ClientConnection>, wire: ClientStream) {
    let watch = &connection.watch;
    watch.set_multiplexed();
    watch.recheck_terms();
    let door = judge::judge_service(home.clone(), connection.clone());
    let service = hyper::service::service_fn(move |request| {
        // Boxed: hyper and the task's start move a stream's future many times, kilobytes each time.
        let may_ask = !home.has_stopped_judging() && !connection.watch.is_revoked();
        let answer = may_ask.then(|| Box::pin(door.clone().call(request)));
        async move {
            match answer {
                Some(answer) => answer.await.map_err(|never| match never {}),
                // Said of what was not judged, so that the client may ask another process the same.
                None => Err(h2::Error::from(h2::Reason::REFUSED_STREAM)),
            }
        }
    });
    let builder = build_http2(&home.current_worker().gateway.server, StreamExecutor(connection.clone()));
    let over = Rc::new(Cell::new(false));
    let wire = GuardedWire::new(wire, watch.clone(), over.clone());
    let mut served = pin!(builder.serve_connection(TokioIo::new(wire), service));
    let mut asked_to_close = false;
    let ended = std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        if watch.is_closing() && !asked_to_close {
            asked_to_close = true;
            served.as_mut().graceful_shutdown();
        }
        match served.as_mut().poll(cx) {
            // hyper takes a CONNECT that announces a body for the end, once it has reset that stream; it goes on as
            // before when it is asked again.
            Poll::Ready(Ok(())) if !over.get() => {
                count_reset_connect(home, connection);
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

/// A stream was reset before it became a request.
fn count_reset_connect(home: &WorkerThread, connection: &ClientConnection) {
    let worker = home.current_worker();
    worker.gateway.metrics.count_fault(worker.id, Fault::BadFraming.index());
    tracing::debug!("a CONNECT with a body was reset");
    connection.count_cancelled();
}

fn build_http2(server: &config::ServerConfig, streams: StreamExecutor) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // Taken back before we looked at them: no more at one go than may be open, which is what leaving a page does.
        .max_pending_accept_reset_streams(STREAMS_MAX as usize)
        .enable_connect_protocol()
        .max_send_buf_size(SEND_BUFFER_MAX)
        .max_header_list_size(server.max_header_size.try_into().unwrap_or(u32::MAX));
    builder
}

/// Gives each stream its task, which the stream's own deadlines can wake and end.
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
