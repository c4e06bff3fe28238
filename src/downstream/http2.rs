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

use super::h2_guard::Watched;
use crate::config;
use crate::net::socket::Wire;
use crate::proxy::judge;
use crate::proxy::reject::Fault;
use crate::proxy::worker::{Connection, Home};
use crate::request::body::STREAM_WINDOW;

/// Streams that may be open at a time, as nginx and HAProxy allow by default in this order of magnitude.
const STREAMS_MAX: u32 = 128;
/// Bytes of request bodies that a client may send ahead on all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of an answer that wait for their stream's turn.
const SEND_BUFFER_MAX: usize = 64 * 1024;

/// Serves until the connection ends.
pub async fn serve(home: &Rc<Home>, connection: &Rc<Connection>, wire: Wire) {
    let watch = &connection.watch;
    watch.multiplex();
    watch.recheck_admission();
    let door = judge::door(home.clone(), connection.clone());
    let service = hyper::service::service_fn(move |request| {
        // Boxed: hyper and the task's start move a stream's future many times, kilobytes each time.
        let may_ask = !home.has_left() && !connection.watch.is_revoked();
        let answer = may_ask.then(|| Box::pin(door.clone().call(request)));
        async move {
            match answer {
                Some(answer) => answer.await.map_err(|never| match never {}),
                // Said of what was not judged, so that the client may ask another process the same.
                None => Err(h2::Error::from(h2::Reason::REFUSED_STREAM)),
            }
        }
    });
    let builder = builder(&home.worker().gateway.server, Streams(connection.clone()));
    let over = Rc::new(Cell::new(false));
    let wire = Watched::new(wire, watch.clone(), over.clone());
    let mut served = pin!(builder.serve_connection(TokioIo::new(wire), service));
    let mut asked_to_close = false;
    let ended = std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        if watch.closing() && !asked_to_close {
            asked_to_close = true;
            served.as_mut().graceful_shutdown();
        }
        match served.as_mut().poll(cx) {
            // hyper takes a CONNECT that announces a body for the end, once it has reset that stream; it goes on as
            // before when it is asked again.
            Poll::Ready(Ok(())) if !over.get() => {
                note_connect(home, connection);
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
fn note_connect(home: &Home, connection: &Connection) {
    let worker = home.worker();
    worker.gateway.metrics.fault(worker.id, Fault::BadFraming.index());
    tracing::debug!("a CONNECT with a body was reset");
    connection.count_cancelled();
}

fn builder(server: &config::Server, streams: Streams) -> http2::Builder<Streams> {
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
struct Streams(Rc<Connection>);

impl<F> Executor<F> for Streams
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, stream: F) {
        let task = tokio::task::spawn_local(stream);
        if let Some(watch) = self.0.take_begun() {
            watch.set_task(task.abort_handle());
        }
    }
}
