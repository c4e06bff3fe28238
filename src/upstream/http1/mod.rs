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
use super::response::{Answer, ExchangeError, Sent, ServerBody};
use super::server_socket::ServerSocket;
use crate::request::body::RequestBody;
use framing::Framing;
pub(super) use head::FIELDS_MAX;
use head::{AnswerHead, Heads};
use upload::{Upload, Went};

/// Bytes that are read from a server ahead of a client who takes them slowly, or not at all.
const READ_MAX: usize = 128 * 1024;
/// Bytes that are read at a time until an answer turns out to be long.
const READ_MIN: usize = 8 * 1024;
/// Room that is worth a read of its own before more is made.
const ROOM: usize = 16 * 1024;
/// How long a request may go on after its answer: the connection is kept if the rest of it is short.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(5);

/// A connection, kept by whoever has an exchange on it: its lease, the answer's body, and the task of a long request
/// body.
pub(super) struct Http1 {
    channel: RefCell<Channel>,
}

/// What passes between two ends, and how far the exchange got.
struct Channel {
    socket: ServerSocket,
    /// What came and is still to be understood.
    read: BytesMut,
    /// Bytes to read next of an answer whose length is unknown.
    appetite: usize,
    /// Room was made for a long answer.
    is_stretched: bool,
    /// Where the next request is written down.
    page: Vec<u8>,
    /// The whole request went out.
    is_sent: bool,
    /// The whole answer came, and the server takes another request.
    is_answered: bool,
    /// The client broke its request body: what ends now is not complete.
    is_cut: bool,
}

/// A request body whose answer has begun; given up when dropped.
pub(super) struct Uploading(JoinHandle<()>);

impl Drop for Uploading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Uploading {
    /// Gives the body a moment to go out.
    pub(super) async fn end(mut self) {
        // If it does not, that is seen by what became of the connection.
        let _ = tokio::time::timeout(UPLOAD_PATIENCE, &mut self.0).await;
    }
}

impl Http1 {
    pub(super) fn new(socket: ServerSocket) -> Rc<Http1> {
        let channel = Channel {
            socket,
            read: BytesMut::new(),
            appetite: READ_MIN,
            is_stretched: false,
            page: Vec::new(),
            is_sent: true,
            is_answered: true,
            is_cut: false,
        };
        Rc::new(Http1 { channel: RefCell::new(channel) })
    }

    /// Whether the last answer is complete, and the server takes another request.
    pub(super) fn is_answered(&self) -> bool {
        let channel = self.channel.borrow();
        channel.is_answered && channel.read.is_empty()
    }

    /// The same, of an exchange whose request is complete as well.
    pub(super) fn is_free(&self) -> bool {
        self.is_answered() && self.channel.borrow().is_sent
    }

    /// Whether an unused connection is still good for a request: the server neither closed it nor sent what nobody
    /// asked for.
    pub(super) fn is_silent(&self) -> bool {
        self.channel.borrow_mut().socket.is_silent()
    }

    /// Gives back the room that a long answer needed.
    pub(super) fn rest(&self) {
        let channel = &mut *self.channel.borrow_mut();
        if std::mem::take(&mut channel.is_stretched) {
            channel.read = BytesMut::new();
        }
        if channel.page.capacity() > READ_MIN {
            channel.page = Vec::new();
        }
    }

    /// Sends `request` and waits for the head of its answer. A body that is not over by then goes on as the returned
    /// upload.
    pub(super) async fn send(
        self: &Rc<Self>,
        request: &mut Request<RequestBody>,
        answer: &mut Answer,
    ) -> (Sent, Option<Uploading>) {
        let mut heads = Heads::new(request.method());
        let mut upload = Some(self.channel.borrow_mut().begin(request));
        let head = poll_fn(|cx| self.channel.borrow_mut().poll_head(cx, &mut upload, &mut heads)).await;
        let AnswerHead { status, headers, framing, keeps } = match head {
            Ok(Some(head)) => head,
            Ok(None) => return (Sent::Unsent, None),
            Err(error) => return (Sent::Failed(error), None),
        };
        self.channel.borrow_mut().is_answered = keeps && matches!(framing, Framing::Ended);
        let connection = if matches!(framing, Framing::Ended) { None } else { Some(self.clone()) };
        let body = AnswerBody { connection, framing, keeps };
        let response = answer.insert(Response::new(ServerBody::Http1(body)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        (Sent::Answered(status), upload.map(|upload| self.go_on(upload)))
    }

    /// Sends the rest of a body while its answer comes: a server may wait for the one before it goes on with the other,
    /// and a client may take nothing until it has sent everything.
    fn go_on(self: &Rc<Self>, mut upload: Upload) -> Uploading {
        let connection = self.clone();
        Uploading(tokio::task::spawn_local(async move {
            let ended = poll_fn(|cx| upload.poll(cx, &mut connection.channel.borrow_mut().socket)).await;
            let channel = &mut *connection.channel.borrow_mut();
            match ended {
                Ok(Went::Out) => channel.is_sent = true,
                Ok(Went::Refused) => {}
                Err(_client) => {
                    channel.is_cut = true;
                    channel.socket.cut();
                }
            }
        }))
    }

    /// What the connection is over, once no HTTP is spoken on it any more, and what came already.
    pub(super) fn into_parts(self) -> (ServerSocket, Bytes) {
        let channel = self.channel.into_inner();
        (channel.socket, channel.read.freeze())
    }
}

impl Channel {
    /// Writes the request's head down, and takes its body.
    fn begin(&mut self, request: &mut Request<RequestBody>) -> Upload {
        (self.is_sent, self.is_answered, self.appetite) = (false, false, READ_MIN);
        let mut page = std::mem::take(&mut self.page);
        page.clear();
        let framing = head::write(request, &mut page);
        Upload::new(page, framing, request.body_mut().take())
    }

    /// Drives the request until the head of its answer has come; `None` when the server took no byte of it.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        upload: &mut Option<Upload>,
        heads: &mut Heads,
    ) -> Poll<Result<Option<AnswerHead>, ExchangeError>> {
        if let Some(going) = upload
            && let Poll::Ready(went) = going.poll(cx, &mut self.socket).map_err(ExchangeError::Client)?
        {
            match went {
                Went::Out => self.is_sent = true,
                Went::Refused if going.is_untouched() => return Poll::Ready(Ok(None)),
                // It may have answered nevertheless.
                Went::Refused => {}
            }
            self.page = upload.take().map(Upload::into_page).unwrap_or_default();
        }
        loop {
            if let Some(head) = heads.next(&mut self.read).map_err(ExchangeError::Garbled)? {
                return Poll::Ready(Ok(Some(head)));
            }
            let is_unanswered = self.read.is_empty() && !heads.have_begun();
            match ready!(self.poll_read(cx, READ_MIN)) {
                Ok(0) if is_unanswered => return Poll::Ready(Err(ExchangeError::Unanswered)),
                Err(error) if is_unanswered && is_reset(&error) => {
                    return Poll::Ready(Err(ExchangeError::Reset));
                }
                Err(_) if is_unanswered => return Poll::Ready(Err(ExchangeError::Unanswered)),
                Ok(0) => return Poll::Ready(Err(ExchangeError::Incomplete)),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(ExchangeError::Connection(error))),
            }
        }
    }

    /// The next piece of a body that has not ended.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        framing: &mut Framing,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        loop {
            let next = framing.next(&mut self.read).map_err(ExchangeError::Garbled);
            match next.transpose() {
                None if matches!(framing, Framing::Ended) => return Poll::Ready(None),
                None => {}
                some => return Poll::Ready(some),
            }
            let want = framing.left().map_or(self.appetite, |left| left.clamp(READ_MIN, READ_MAX));
            match ready!(self.poll_read(cx, want)) {
                Ok(0) if matches!(framing, Framing::UntilClose) && !self.is_cut => return Poll::Ready(None),
                Ok(0) => return Poll::Ready(Some(Err(ExchangeError::Incomplete))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(ExchangeError::Connection(error)))),
            }
        }
    }

    /// Reads more, `want` bytes if they are there; 0 = the server has closed.
    fn poll_read(&mut self, cx: &mut Context<'_>, want: usize) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < want.min(ROOM) {
            self.read.reserve(want);
            self.is_stretched |= self.read.capacity() > ROOM;
        }
        let room = self.read.capacity() - self.read.len();
        let count = ready!(pin!(self.socket.read_buf(&mut self.read)).poll(cx))?;
        if count == room {
            self.appetite = (self.appetite * 2).min(READ_MAX);
        }
        Poll::Ready(Ok(count))
    }
}

/// The body of an answer, read from the connection as it is asked for.
pub struct AnswerBody {
    /// `None` once the body has ended: whoever is slow with the rest of it holds no connection.
    connection: Option<Rc<Http1>>,
    framing: Framing,
    /// The server takes another request afterwards.
    keeps: bool,
}

impl AnswerBody {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        let AnswerBody { connection: Some(connection), framing, keeps } = self else {
            return Poll::Ready(None);
        };
        let polled = ready!(connection.channel.borrow_mut().poll_body(cx, framing));
        if !matches!(polled, Some(Ok(_))) {
            *framing = Framing::Ended;
        }
        if matches!(framing, Framing::Ended) {
            connection.channel.borrow_mut().is_answered = *keeps && !matches!(polled, Some(Err(_)));
            self.connection = None;
        }
        Poll::Ready(polled)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.connection.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.framing.left().map_or_else(SizeHint::default, |left| SizeHint::with_exact(left as u64))
    }
}

#[cfg(test)]
mod tests;
