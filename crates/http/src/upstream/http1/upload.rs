//! Sends a request to a server: the written head, then the body as the client sends it.

use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::Body;
use tokio::io::AsyncWrite;

use crate::request::body::{BodyFault, RequestBody};
use crate::upstream::server_socket::ServerSocket;

/// Bytes gathered for one write. Longer chunks are written without a copy.
const GATHER_MAX: usize = 16 * 1024;

/// Bytes up to which a part of the body waits for the next one.
const SHORT_PIECE: usize = 512;

/// The framing of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestFraming {
    /// Bytes still to be sent.
    Length(u64),
    Chunked,
}

/// The outcome of sending.
pub(super) enum UploadOutcome {
    Sent,
    /// The server accepts no more.
    Stopped,
}

/// The unsent part of a request.
pub(super) struct Upload {
    /// The head, and parts of the body that are short enough to be copied.
    pub write_buffer: Vec<u8>,
    /// Bytes of the buffer that were sent.
    written: usize,
    /// A long part of the body that follows the buffer without a copy.
    piece: Bytes,
    body: RequestBody,
    framing: RequestFraming,
    /// The body was read to its end.
    is_body_done: bool,
    /// The server accepted no byte, and the body is at hand: the request can be sent again.
    pub is_untouched: bool,
}

impl Upload {
    /// `write_buffer` contains the head.
    pub(super) fn new(write_buffer: Vec<u8>, framing: RequestFraming, body: RequestBody) -> Upload {
        let is_untouched = body.is_at_hand();
        let is_body_done = framing == RequestFraming::Length(0);
        let body = if is_body_done { RequestBody::Empty } else { body };
        Upload { write_buffer, written: 0, piece: Bytes::new(), body, framing, is_body_done, is_untouched }
    }

    /// Sends as fast as the client sends and the server reads.
    ///
    /// A failed write is no error here, because the reading side knows more: a server that responds early and closes
    /// resets the connection during the request, and its response has arrived by then.
    ///
    /// # Errors
    /// The client's body is broken.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut ServerSocket,
    ) -> Poll<Result<UploadOutcome, BodyFault>> {
        loop {
            let gathered = self.write_buffer.len();
            self.gather_body(cx)?;
            if self.may_gather_more(gathered) {
                // hyper decodes the next chunk only after this task has yielded.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let is_written = self.write_buffer.is_empty() && self.piece.is_empty();
            let polled = match is_written {
                true => Pin::new(&mut *socket).poll_flush(cx),
                false => self.poll_write(cx, socket),
            };
            match ready!(polled) {
                Ok(()) if !is_written => {}
                Ok(()) if self.is_body_done => return Poll::Ready(Ok(UploadOutcome::Sent)),
                Ok(()) => return Poll::Pending,
                Err(error) => {
                    tracing::debug!(%error, "a server stopped reading a request");
                    return Poll::Ready(Ok(UploadOutcome::Stopped));
                }
            }
        }
    }

    /// True if a short piece was added to the `gathered` bytes, so that more of them may follow at once: a write for
    /// each would cost much more than reading it.
    fn may_gather_more(&self, gathered: usize) -> bool {
        let added = self.write_buffer.len() - gathered;
        (1..SHORT_PIECE).contains(&added)
            && !self.is_body_done
            && self.piece.is_empty()
            && self.write_buffer.len() < GATHER_MAX
    }

    /// Reads the available body until there is enough for a write.
    fn gather_body(&mut self, cx: &mut Context<'_>) -> Result<(), BodyFault> {
        while !self.is_body_done && self.piece.is_empty() && self.write_buffer.len() < GATHER_MAX {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(frame)) => {
                    // Trailers are not sent to HTTP/1 servers.
                    if let Ok(data) = frame?.into_data() {
                        self.append_data(data)?;
                    }
                    if self.body.is_end_stream() || self.framing == RequestFraming::Length(0) {
                        self.end_body()?;
                    }
                }
                Poll::Ready(None) => self.end_body()?,
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }

    fn append_data(&mut self, data: Bytes) -> Result<(), BodyFault> {
        if data.is_empty() {
            return Ok(());
        }
        let is_chunked = match &mut self.framing {
            RequestFraming::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(BodyFault::Malformed)?;
                false
            }
            RequestFraming::Chunked => true,
        };
        if is_chunked {
            // Writing to memory cannot fail.
            let _ = write!(self.write_buffer, "{:x}\r\n", data.len());
        }
        if data.len() > GATHER_MAX {
            self.piece = data;
            return Ok(());
        }
        self.write_buffer.extend_from_slice(&data);
        if is_chunked {
            self.write_buffer.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    /// Ends the body. A body shorter than its length is an error, or the server would take it for complete.
    fn end_body(&mut self) -> Result<(), BodyFault> {
        match self.framing {
            RequestFraming::Length(0) => {}
            RequestFraming::Length(_) => return Err(BodyFault::Malformed),
            RequestFraming::Chunked => {
                if !self.piece.is_empty() {
                    // The chunk must end first.
                    return Ok(());
                }
                self.write_buffer.extend_from_slice(b"0\r\n\r\n");
            }
        }
        self.is_body_done = true;
        self.body = RequestBody::Empty;
        Ok(())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, socket: &mut ServerSocket) -> Poll<io::Result<()>> {
        let (socket, buffer) = (Pin::new(socket), &self.write_buffer[self.written..]);
        let count = ready!(match (buffer.is_empty(), self.piece.is_empty()) {
            (false, false) => {
                socket.poll_write_vectored(cx, &[IoSlice::new(buffer), IoSlice::new(&self.piece)])
            }
            (true, false) => socket.poll_write(cx, &self.piece),
            (_, true) => socket.poll_write(cx, buffer),
        })?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.is_untouched = false;
        let of_buffer = count.min(buffer.len());
        self.written += of_buffer;
        if self.written == self.write_buffer.len() {
            self.write_buffer.clear();
            self.written = 0;
        }
        if count > of_buffer {
            self.piece.advance(count - of_buffer);
            if self.piece.is_empty() {
                // Even an empty part would keep the memory of the whole.
                self.piece = Bytes::new();
                if self.framing == RequestFraming::Chunked {
                    self.write_buffer.extend_from_slice(b"\r\n");
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
