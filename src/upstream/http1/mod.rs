//! A connection of HTTP/1 to a server: one exchange after the other, driven by whoever waits for it.
//!
//! It has no task of its own. The request's task writes head and body, and reads the head of the answer; whoever takes
//! the answer's body reads that. Only a request body that is not over when the answer begins gets a task. While the
//! connection is unused nobody looks at it; what happened meanwhile is seen when it is taken, or swept.

mod framing;
mod head;
mod upload;

use std::cell::RefCell;
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

use super::fault::is_reset;
use super::response::{ExchangeFault, ResponseSlot, SendOutcome, ServerBody};
use super::server_socket::ServerSocket;
use crate::request::body::RequestBody;
use framing::ResponseFraming;
pub(super) use head::FIELDS_MAX;
use head::{HeadReader, ResponseHead};
use upload::{Upload, UploadOutcome};

/// Bytes that are read from a server ahead of a client who takes them slowly, or not at all.
const READ_MAX: usize = 128 * 1024;
/// Bytes that are read at a time until an answer turns out to be long.
const READ_MIN: usize = 8 * 1024;
/// Room that is worth a read of its own before more is made.
const SPARE_MIN: usize = 16 * 1024;
/// How long a request may go on after its answer: the connection is kept if the rest of it is short.
const UPLOAD_GRACE: Duration = Duration::from_secs(5);

/// A connection, kept by whoever has an exchange on it: its lease, the answer's body, and the task of a long request
/// body.
pub(super) struct Http1Connection {
    state: RefCell<Http1State>,
}

/// What passes between two ends, and how far the exchange got.
struct Http1State {
    socket: ServerSocket,
    /// What came and is still to be understood.
    read_buffer: BytesMut,
    /// Bytes to read next of an answer whose length is unknown.
    read_target: usize,
    /// Room was made for a long answer.
    is_buffer_large: bool,
    /// Where the next request is written down.
    write_buffer: Vec<u8>,
    /// The whole request went out.
    is_request_sent: bool,
    /// The whole answer came, and the server takes another request.
    is_response_done: bool,
    /// The client broke its request body: what ends now is not complete.
    is_body_aborted: bool,
}

/// A request body whose answer has begun; given up when dropped.
pub(super) struct UploadTask(JoinHandle<()>);

impl Drop for UploadTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl UploadTask {
    /// Gives the body a moment to go out.
    pub(super) async fn finish_upload(mut self) {
        // If it does not, that is seen by what became of the connection.
        let _ = tokio::time::timeout(UPLOAD_GRACE, &mut self.0).await;
    }
}

impl Http1Connection {
    pub(super) fn new(socket: ServerSocket) -> Rc<Http1Connection> {
        let channel = Http1State {
            socket,
            read_buffer: BytesMut::new(),
            read_target: READ_MIN,
            is_buffer_large: false,
            write_buffer: Vec::new(),
            is_request_sent: true,
            is_response_done: true,
            is_body_aborted: false,
        };
        Rc::new(Http1Connection { state: RefCell::new(channel) })
    }

    /// Whether the last answer is complete, and the server takes another request.
    pub(super) fn is_response_done(&self) -> bool {
        let channel = self.state.borrow();
        channel.is_response_done && channel.read_buffer.is_empty()
    }

    /// The same, of an exchange whose request is complete as well.
    pub(super) fn is_free(&self) -> bool {
        self.is_response_done() && self.state.borrow().is_request_sent
    }

    /// Whether an unused connection is still good for a request: the server neither closed it nor sent what nobody
    /// asked for.
    pub(super) fn is_silent(&self) -> bool {
        self.state.borrow_mut().socket.is_silent()
    }

    /// Gives back the room that a long answer needed.
    pub(super) fn shrink_buffers(&self) {
        let channel = &mut *self.state.borrow_mut();
        if std::mem::take(&mut channel.is_buffer_large) {
            channel.read_buffer = BytesMut::new();
        }
        if channel.write_buffer.capacity() > READ_MIN {
            channel.write_buffer = Vec::new();
        }
    }

    /// Sends `request` and waits for the head of its answer. A body that is not over by then goes on as the returned
    /// upload.
    pub(super) async fn send_request(
        self: &Rc<Self>,
        request: &mut Request<RequestBody>,
        answer: &mut ResponseSlot,
    ) -> (SendOutcome, Option<UploadTask>) {
        let mut heads = HeadReader::new(request.method());
        let mut upload = Some(self.state.borrow_mut().start_request(request));
        let head = poll_fn(|cx| self.state.borrow_mut().poll_head(cx, &mut upload, &mut heads)).await;
        let ResponseHead { status, headers, framing, keeps_alive: keeps } = match head {
            Ok(Some(head)) => head,
            Ok(None) => return (SendOutcome::Unsent, None),
            Err(error) => return (SendOutcome::Failed(error), None),
        };
        self.state.borrow_mut().is_response_done = keeps && matches!(framing, ResponseFraming::Ended);
        let connection = if matches!(framing, ResponseFraming::Ended) { None } else { Some(self.clone()) };
        let body = Http1Body { connection, framing, keeps_alive: keeps };
        let response = answer.insert(Response::new(ServerBody::Http1(body)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        (SendOutcome::Responded(status), upload.map(|upload| self.spawn_upload(upload)))
    }

    /// Sends the rest of a body while its answer comes: a server may wait for the one before it goes on with the other,
    /// and a client may take nothing until it has sent everything.
    fn spawn_upload(self: &Rc<Self>, mut upload: Upload) -> UploadTask {
        let connection = self.clone();
        UploadTask(tokio::task::spawn_local(async move {
            let ended = poll_fn(|cx| upload.poll_send(cx, &mut connection.state.borrow_mut().socket)).await;
            let channel = &mut *connection.state.borrow_mut();
            match ended {
                Ok(UploadOutcome::Sent) => channel.is_request_sent = true,
                Ok(UploadOutcome::Stopped) => {}
                Err(_client) => {
                    channel.is_body_aborted = true;
                    channel.socket.shut_down();
                }
            }
        }))
    }

    /// What the connection is over, once no HTTP is spoken on it any more, and what came already.
    pub(super) fn into_parts(self) -> (ServerSocket, Bytes) {
        let channel = self.state.into_inner();
        (channel.socket, channel.read_buffer.freeze())
    }
}

impl Http1State {
    /// Writes the request's head down, and takes its body.
    fn start_request(&mut self, request: &mut Request<RequestBody>) -> Upload {
        (self.is_request_sent, self.is_response_done, self.read_target) = (false, false, READ_MIN);
        let mut page = std::mem::take(&mut self.write_buffer);
        page.clear();
        let framing = head::write_head(request, &mut page);
        Upload::new(page, framing, request.body_mut().take_body())
    }

    /// Drives the request until the head of its answer has come; `None` when the server took no byte of it.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        upload: &mut Option<Upload>,
        heads: &mut HeadReader,
    ) -> Poll<Result<Option<ResponseHead>, ExchangeFault>> {
        if let Some(going) = upload
            && let Poll::Ready(went) = going.poll_send(cx, &mut self.socket).map_err(ExchangeFault::Client)?
        {
            match went {
                UploadOutcome::Sent => self.is_request_sent = true,
                UploadOutcome::Stopped if going.is_untouched() => return Poll::Ready(Ok(None)),
                // It may have answered nevertheless.
                UploadOutcome::Stopped => {}
            }
            self.write_buffer = upload.take().map(Upload::into_buffer).unwrap_or_default();
        }
        loop {
            if let Some(head) = heads.read_head(&mut self.read_buffer).map_err(ExchangeFault::Malformed)? {
                return Poll::Ready(Ok(Some(head)));
            }
            let is_unanswered = self.read_buffer.is_empty() && !heads.has_read_head();
            match ready!(self.poll_read(cx, READ_MIN)) {
                Ok(0) if is_unanswered => return Poll::Ready(Err(ExchangeFault::NoResponse)),
                Err(error) if is_unanswered && is_reset(&error) => {
                    return Poll::Ready(Err(ExchangeFault::Reset));
                }
                Err(_) if is_unanswered => return Poll::Ready(Err(ExchangeFault::NoResponse)),
                Ok(0) => return Poll::Ready(Err(ExchangeFault::Incomplete)),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(ExchangeFault::Connection(error))),
            }
        }
    }

    /// The next piece of a body that has not ended.
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

    /// Reads more, `want` bytes if they are there; 0 = the server has closed.
    fn poll_read(&mut self, cx: &mut Context<'_>, want: usize) -> Poll<io::Result<usize>> {
        if self.read_buffer.capacity() - self.read_buffer.len() < want.min(SPARE_MIN) {
            self.read_buffer.reserve(want);
            self.is_buffer_large |= self.read_buffer.capacity() > SPARE_MIN;
        }
        let room = self.read_buffer.capacity() - self.read_buffer.len();
        let count = ready!(pin!(self.socket.read_buf(&mut self.read_buffer)).poll(cx))?;
        if count == room {
            self.read_target = (self.read_target * 2).min(READ_MAX);
        }
        Poll::Ready(Ok(count))
    }
}

/// The body of an answer, read from the connection as it is asked for.
pub struct Http1Body {
    /// `None` once the body has ended: whoever is slow with the rest of it holds no connection.
    connection: Option<Rc<Http1Connection>>,
    framing: ResponseFraming,
    /// The server takes another request afterwards.
    keeps_alive: bool,
}

impl Http1Body {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeFault>>> {
        let Http1Body { connection: Some(connection), framing, keeps_alive: keeps } = self else {
            return Poll::Ready(None);
        };
        let polled = ready!(connection.state.borrow_mut().poll_body(cx, framing));
        if !matches!(polled, Some(Ok(_))) {
            *framing = ResponseFraming::Ended;
        }
        if matches!(framing, ResponseFraming::Ended) {
            connection.state.borrow_mut().is_response_done = *keeps && !matches!(polled, Some(Err(_)));
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
