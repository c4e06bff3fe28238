//! An HTTP/1 connection to a server: one exchange after the other, driven by the task that waits for it.
//!
//! It has no task of its own. The task of the request writes head and body and reads the head of the response; the
//! consumer of the response body reads that. Only a request body that is still being sent when the response begins gets
//! a task. An idle connection is not polled: its end is noticed when it is borrowed or swept.

mod framing;
mod head;
mod upload;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use tokio::io::AsyncReadExt;
use tokio::task::JoinHandle;

use super::fault::{ServerFault, is_reset};
use super::send_outcome::{ExchangeFault, SendOutcome};
use super::server_socket::{IdleState, ServerSocket};
use crate::request::body::RequestBody;
use crate::request::headers::added_fields::AddedFields;
use framing::ResponseFraming;
pub(super) use head::FIELDS_MAX;
use head::{HeadReader, ResponseHead};
use upload::{Upload, UploadOutcome};

/// Most bytes read from a server ahead of a slow client.
const READ_MAX: usize = 128 * 1024;
/// Bytes per read until a response turns out to be long.
const READ_MIN: usize = 8 * 1024;
/// Free space in the buffer that is read into before the buffer grows.
const SPARE_MIN: usize = 16 * 1024;
/// The time that a request body may continue after its response; the connection is kept if it ends in time.
const UPLOAD_GRACE: Duration = Duration::from_secs(5);

/// A connection. During an exchange its borrower, the response body and the upload task share it.
pub(super) struct Http1Connection {
    state: RefCell<Http1State>,
    /// The [`address_tag`](super::address_tag) of the peer.
    pub address: u32,
    /// The tick of the last exchange's end.
    pub idle_since: Cell<u64>,
    /// Counts it among the idle ones that announce a client; set only while it is one.
    pub client_idle: Cell<Option<Rc<()>>>,
}

/// The socket and the progress of the exchange.
struct Http1State {
    socket: ServerSocket,
    /// Unparsed input.
    read_buffer: BytesMut,
    /// Bytes of the next read, for a response of unknown length.
    read_target: usize,
    /// The read buffer has grown for a long response.
    is_buffer_large: bool,
    /// The buffer for the next request.
    write_buffer: Vec<u8>,
    /// The whole request was sent.
    is_request_sent: bool,
    /// The whole response was read, and the server accepts another request.
    is_response_done: bool,
    /// The client broke its request body, so the end of the connection does not end the response.
    is_body_aborted: bool,
}

/// A request body that is sent during its response; abandoned when dropped.
pub(super) struct UploadTask(JoinHandle<()>);

impl Drop for UploadTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl UploadTask {
    /// Waits a moment for the rest of the body.
    pub(super) async fn finish_upload(mut self) {
        // The state of the connection tells whether it finished.
        let _ = tokio::time::timeout(UPLOAD_GRACE, &mut self.0).await;
    }
}

impl Http1Connection {
    pub(super) fn new(socket: ServerSocket, address: u32) -> Rc<Http1Connection> {
        let state = Http1State {
            socket,
            read_buffer: BytesMut::new(),
            read_target: READ_MIN,
            is_buffer_large: false,
            write_buffer: Vec::new(),
            is_request_sent: true,
            is_response_done: true,
            is_body_aborted: false,
        };
        let (state, idle_since, client_idle) = (RefCell::new(state), Cell::new(0), Cell::default());
        Rc::new(Http1Connection { state, address, idle_since, client_idle })
    }

    /// True if the last response is complete and the server accepts another request.
    pub(super) fn is_response_done(&self) -> bool {
        let state = self.state.borrow();
        state.is_response_done && state.read_buffer.is_empty()
    }

    /// True if the exchange is complete, its request included.
    pub(super) fn is_free(&self) -> bool {
        self.is_response_done() && self.state.borrow().is_request_sent
    }

    /// True if data stands behind the last response, which no request asked for.
    pub(super) fn has_stray_data(&self) -> bool {
        let state = self.state.borrow();
        state.is_response_done && !state.read_buffer.is_empty()
    }

    /// The state of an idle connection.
    pub(super) fn check_idle(&self) -> IdleState {
        self.state.borrow_mut().socket.check_idle()
    }

    /// Frees the memory that a long exchange needed.
    pub(super) fn shrink_buffers(&self) {
        let state = &mut *self.state.borrow_mut();
        if std::mem::take(&mut state.is_buffer_large) {
            state.read_buffer = BytesMut::new();
        }
        if state.write_buffer.capacity() > READ_MIN {
            state.write_buffer = Vec::new();
        }
    }

    /// Sends `request` with the `added` fields, and waits for the head of its response. A body that is not complete by
    /// then continues as the returned upload.
    pub(super) async fn send_request<B: From<Http1Body>>(
        self: &Rc<Self>,
        request: &mut Request<RequestBody>,
        added: &AddedFields,
        slot: &mut Option<Response<B>>,
    ) -> (SendOutcome, Option<UploadTask>) {
        let mut reader = HeadReader::new(request.method());
        let mut upload = Some(self.state.borrow_mut().start_request(request, added));
        let polling = poll_fn(|cx| {
            let polled = self.state.borrow_mut().poll_head(cx, &mut upload, &mut reader);
            // No retry needs the body of such a request once it was sent, so its memory is free.
            if upload.is_none() && !request.method().is_idempotent() {
                *request.body_mut() = RequestBody::Consumed;
            }
            polled
        });
        let head = polling.await;
        let ResponseHead { status, headers, framing, keeps_alive } = match head {
            Ok(Some(head)) => head,
            Ok(None) => return (SendOutcome::Unsent, None),
            Err(error) => return (SendOutcome::Failed(error), None),
        };
        self.state.borrow_mut().is_response_done = keeps_alive && matches!(framing, ResponseFraming::Ended);
        let connection = if matches!(framing, ResponseFraming::Ended) { None } else { Some(self.clone()) };
        let body = Http1Body { connection, framing, keeps_alive };
        let response = slot.insert(Response::new(B::from(body)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        (SendOutcome::Responded(status), upload.map(|upload| self.spawn_upload(upload)))
    }

    /// Sends the rest of a body during its response: a server may need more of the request before it continues, and a
    /// client may read nothing until it has sent everything.
    fn spawn_upload(self: &Rc<Self>, mut upload: Upload) -> UploadTask {
        let connection = self.clone();
        UploadTask(tokio::task::spawn_local(async move {
            let ended = poll_fn(|cx| upload.poll_send(cx, &mut connection.state.borrow_mut().socket)).await;
            let state = &mut *connection.state.borrow_mut();
            match ended {
                Ok(UploadOutcome::Sent) => state.is_request_sent = true,
                Ok(UploadOutcome::Stopped) => {}
                Err(_client) => {
                    state.is_body_aborted = true;
                    state.socket.shut_down();
                }
            }
        }))
    }

    /// The socket and the unparsed input, for a protocol after HTTP.
    pub(super) fn into_parts(self) -> (ServerSocket, Bytes) {
        let state = self.state.into_inner();
        (state.socket, state.read_buffer.freeze())
    }
}

impl Http1State {
    /// Writes the head of the request to the buffer and takes its body.
    fn start_request(&mut self, request: &mut Request<RequestBody>, added: &AddedFields) -> Upload {
        (self.is_request_sent, self.is_response_done, self.read_target) = (false, false, READ_MIN);
        let mut buffer = std::mem::take(&mut self.write_buffer);
        buffer.clear();
        let framing = head::write_head(request, added, &mut buffer);
        Upload::new(buffer, framing, request.body_mut().take_body())
    }

    /// Drives the request until the head of its response was read; `None` if the server accepted no byte of the
    /// request.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        upload: &mut Option<Upload>,
        reader: &mut HeadReader,
    ) -> Poll<Result<Option<ResponseHead>, ExchangeFault>> {
        if let Some(active) = upload
            && let Poll::Ready(outcome) =
                active.poll_send(cx, &mut self.socket).map_err(ExchangeFault::Client)?
        {
            match outcome {
                UploadOutcome::Sent => self.is_request_sent = true,
                UploadOutcome::Stopped if active.is_untouched => return Poll::Ready(Ok(None)),
                // The server may have responded nevertheless.
                UploadOutcome::Stopped => {}
            }
            self.write_buffer = upload.take().map(|sent| sent.write_buffer).unwrap_or_default();
        }
        loop {
            if let Some(head) = reader.read_head(&mut self.read_buffer).map_err(ExchangeFault::Malformed)? {
                return Poll::Ready(Ok(Some(head)));
            }
            let is_unanswered = self.read_buffer.is_empty() && !reader.has_read_head();
            match ready!(self.poll_read(cx, READ_MIN)) {
                Ok(0) if is_unanswered => return Poll::Ready(Err(ExchangeFault::NoResponse)),
                Err(error) if is_unanswered && is_reset(&error) => {
                    return Poll::Ready(Err(ExchangeFault::Reset));
                }
                Err(error) if is_unanswered && ServerFault::from_alert(&error).is_none() => {
                    return Poll::Ready(Err(ExchangeFault::NoResponse));
                }
                Ok(0) => return Poll::Ready(Err(ExchangeFault::Incomplete)),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(ExchangeFault::Connection(error))),
            }
        }
    }

    /// The next frame of a body that has not ended.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        framing: &mut ResponseFraming,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeFault>>> {
        loop {
            let next = framing.next_frame(&mut self.read_buffer).map_err(ExchangeFault::Malformed);
            match next.transpose() {
                None if matches!(framing, ResponseFraming::Ended) => return Poll::Ready(None),
                None => {}
                some => return Poll::Ready(some),
            }
            let want = framing.bytes_left().map_or(self.read_target, |left| left.clamp(READ_MIN, READ_MAX));
            match ready!(self.poll_read(cx, want)) {
                Ok(0) if matches!(framing, ResponseFraming::UntilClose) && !self.is_body_aborted => {
                    return Poll::Ready(None);
                }
                Ok(0) => return Poll::Ready(Some(Err(ExchangeFault::Incomplete))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(ExchangeFault::Connection(error)))),
            }
        }
    }

    /// Reads up to `want` bytes; 0 = the server has closed.
    fn poll_read(&mut self, cx: &mut Context<'_>, want: usize) -> Poll<io::Result<usize>> {
        if self.read_buffer.capacity() - self.read_buffer.len() < want.min(SPARE_MIN) {
            self.read_buffer.reserve(want);
            self.is_buffer_large |= self.read_buffer.capacity() > SPARE_MIN;
        }
        let spare = self.read_buffer.capacity() - self.read_buffer.len();
        let count = ready!(pin!(self.socket.read_buf(&mut self.read_buffer)).poll(cx))?;
        if count == spare {
            self.read_target = (self.read_target * 2).min(READ_MAX);
        }
        Poll::Ready(Ok(count))
    }
}

/// The body of a response, read from the connection on demand.
pub struct Http1Body {
    /// `None` once the body has ended, so that a slow consumer does not keep the connection.
    connection: Option<Rc<Http1Connection>>,
    framing: ResponseFraming,
    /// The server accepts another request afterwards.
    keeps_alive: bool,
}

impl Http1Body {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeFault>>> {
        let Http1Body { connection: Some(connection), framing, keeps_alive } = self else {
            return Poll::Ready(None);
        };
        let polled = ready!(connection.state.borrow_mut().poll_body(cx, framing));
        if !matches!(polled, Some(Ok(_))) {
            *framing = ResponseFraming::Ended;
        }
        if matches!(framing, ResponseFraming::Ended) {
            connection.state.borrow_mut().is_response_done = *keeps_alive && !matches!(polled, Some(Err(_)));
            self.connection = None;
        }
        Poll::Ready(polled)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.connection.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.framing.bytes_left().map_or_else(SizeHint::default, |left| SizeHint::with_exact(left as u64))
    }
}

#[cfg(test)]
mod tests;
