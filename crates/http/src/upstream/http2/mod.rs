//! An HTTP/2 connection to a server: many concurrent requests, which end independently.

pub(crate) mod streams;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Request;
use http::uri::Scheme;
use hyper::client::conn::http2::{self, Connection, SendRequest};
use hyper::rt::{Executor, Read, Write};
use hyper_util::rt::TokioTimer;

use super::response::{ResponseSlot, ServerBody};
use super::send_outcome::{ExchangeFault, SendOutcome, UnprocessedCause};
use super::server::Server;
use super::translate::{to_http1, to_http2};
use crate::net::deadline::SweepCounter;
use crate::request::body::RequestBody;
use crate::request::headers::added_fields::AddedFields;

/// Most concurrent requests on one connection, even if the server allows more.
const STREAMS_MAX: usize = 1000;
/// The server's stream limit in hyper until its settings arrive: a number that no server announces.
const SETTINGS_UNKNOWN: usize = 0x5e77_1e55;
/// Bytes of one response in flight or buffered here for a slow client.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Unbounded, since the stream windows bound the memory: with a smaller one slow readers would stop all the others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of one request body buffered here for a slow server.
const SEND_BUFFER: usize = 128 * 1024;
const HEADER_LIST: u32 = 64 * 1024;
/// The time that the server may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, owned by its pool and by each [`Http2Stream`](streams::Http2Stream) on it; it closes when all are
/// gone.
pub(super) struct Http2Connection {
    sender: SendRequest<RequestBody>,
    scheme: Scheme,
    /// The [`address_tag`](super::address_tag) of the peer.
    pub address: u32,
    /// The server's current limit.
    streams_max: Rc<Cell<usize>>,
    pub stream_count: Cell<usize>,
    /// The tick of the last stream's end.
    pub idle_since: Cell<u64>,
    /// The tick until which it gets no new requests, because it refused one.
    paused_until: Cell<u64>,
    /// The connection gets no new requests and finishes those on it.
    pub is_draining: Cell<bool>,
}

impl Http2Connection {
    /// Starts HTTP/2 on `socket` and waits for the server's settings: they prove that it speaks HTTP/2, and limit the
    /// concurrent requests.
    ///
    /// # Errors
    /// The connection ended before.
    pub(super) async fn from_socket<T>(
        socket: T,
        server: &Server,
        address: u32,
    ) -> io::Result<Rc<Http2Connection>>
    where
        T: Read + Write + Unpin + 'static,
    {
        let progress = Rc::new(ConnectionProgress::default());
        let mut builder = http2::Builder::new(LocalExecutor(progress.clone()));
        builder
            .timer(TokioTimer::new())
            .initial_max_send_streams(SETTINGS_UNKNOWN)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(HEADER_LIST)
            // Many clients that leave must not end the connection of all the others: late frames of reset streams are
            // ignored, or rejected without counting them.
            .max_concurrent_reset_streams(STREAMS_MAX)
            .max_local_error_reset_streams(None)
            .keep_alive_interval(server.ping_interval)
            .keep_alive_timeout(PING_TIMEOUT);
        let (sender, mut connection) = builder.handshake(socket).await.map_err(io::Error::other)?;
        let streams_max = poll_fn(|cx| poll_settings(&mut connection, &progress, cx)).await?;
        let streams_max = Rc::new(Cell::new(streams_max));
        let current_max = streams_max.clone();
        tokio::task::spawn_local(async move {
            let ended = poll_fn(|cx| {
                let polled = Pin::new(&mut connection).poll(cx);
                current_max.set(connection.current_max_send_streams());
                polled
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "an upstream connection ended");
            }
        });
        let scheme = if server.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        Ok(Rc::new(Http2Connection {
            sender,
            scheme,
            address,
            streams_max,
            stream_count: Cell::new(0),
            idle_since: Cell::new(0),
            paused_until: Cell::new(0),
            is_draining: Cell::new(false),
        }))
    }

    /// True if it accepts requests, now or after others on it have ended.
    pub(super) fn is_open(&self) -> bool {
        !self.is_draining.get() && !self.sender.is_closed()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.stream_count.get() == 0
    }

    /// True if it accepts one more request at tick `now`.
    pub(super) fn has_capacity(&self, now: u64) -> bool {
        self.is_open()
            && self.stream_count.get() < self.streams_max.get().min(STREAMS_MAX)
            && self.paused_until.get() <= now
    }

    /// Sends `request` with the `added` fields, and waits for the head of the response. A request that the server
    /// certainly has not begun to process is unsent, and put back; one with a body is lost once it was sent.
    pub(super) async fn send_request(
        &self,
        request: &mut Option<Request<RequestBody>>,
        added: &AddedFields,
        slot: &mut ResponseSlot,
        ticks: &SweepCounter,
    ) -> SendOutcome {
        let Some(mut outgoing) = request.take() else { return SendOutcome::Unsent };
        let copy = outgoing.body().copy_at_hand().map(|body| copy_with_body(&outgoing, body));
        if !to_http2(&mut outgoing, &self.scheme) {
            *request = Some(outgoing);
            return SendOutcome::Unsent;
        }
        *request = copy;
        added.copy_into(outgoing.headers_mut());
        let mut fault = match self.sender.clone().try_send_request(outgoing).await {
            Ok(response) => {
                return SendOutcome::Responded(slot.insert(response.map(ServerBody::Http2)).status());
            }
            Err(fault) => fault,
        };
        if let Some(mut unsent) = fault.take_message() {
            self.is_draining.set(true);
            to_http1(&mut unsent);
            added.remove_from(unsent.headers_mut());
            *request = Some(unsent);
            return SendOutcome::Unsent;
        }
        let error = fault.into_error();
        match UnprocessedCause::of(&error) {
            // Other connections are preferred for at least one full tick.
            Some(UnprocessedCause::RefusedStream) => self.paused_until.set(ticks.current_tick() + 2),
            Some(UnprocessedCause::GoAway) => self.is_draining.set(true),
            None => return SendOutcome::Failed(ExchangeFault::Http2(error)),
        }
        tracing::debug!(%error, "a server did not process a request");
        if request.is_some() { SendOutcome::Unsent } else { SendOutcome::Failed(ExchangeFault::Http2(error)) }
    }
}

/// A copy of a request, with a copy of its body.
fn copy_with_body(request: &Request<RequestBody>, body: RequestBody) -> Request<RequestBody> {
    let mut copy = Request::new(body);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// Waits for the server's settings; resolves to its limit of concurrent requests.
fn poll_settings<T>(
    connection: &mut Connection<T, RequestBody, LocalExecutor>,
    progress: &ConnectionProgress,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>>
where
    T: Read + Write + Unpin + 'static,
{
    if let Poll::Ready(ended) = Pin::new(&mut *connection).poll(cx) {
        let closed =
            || io::Error::other("the server closed the connection before it sent its HTTP/2 settings");
        return Poll::Ready(Err(ended.err().map_or_else(closed, io::Error::other)));
    }
    match connection.current_max_send_streams() {
        // A server that announces 0 may raise it; otherwise the connect times out.
        SETTINGS_UNKNOWN | 0 => {
            *progress.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        }
        streams_max => Poll::Ready(Ok(streams_max)),
    }
}

/// Wakes the connect when the connection's own task makes progress.
#[derive(Default)]
struct ConnectionProgress {
    has_connection: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Runs hyper's tasks on this thread. The first one is the connection itself; its progress wakes the connect.
#[derive(Clone)]
struct LocalExecutor(Rc<ConnectionProgress>);

impl<F: Future + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        if self.0.has_connection.replace(true) {
            tokio::task::spawn_local(async move {
                future.await;
            });
            return;
        }
        let progress = self.0.clone();
        tokio::task::spawn_local(async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                let polled = future.as_mut().poll(cx);
                progress.waker.take().into_iter().for_each(Waker::wake);
                polled.map(drop)
            })
            .await;
        });
    }
}

#[cfg(test)]
mod tests;
