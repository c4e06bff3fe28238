//! A request on its way to a server: the head that is written down, then the body as the client sends it.

use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::Body;
use tokio::io::AsyncWrite;

use crate::request::body::{BodyFault, RequestBody};
use crate::upstream::server_socket::ServerSocket;

/// Bytes that are gathered for one write. Longer pieces are written from where they are.
const GATHER_MAX: usize = 16 * 1024;

/// How a server learns where a request body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestFraming {
    /// Bytes of it that are still to be sent.
    Length(u64),
    Chunked,
}

/// How sending ended.
pub(super) enum UploadOutcome {
    Sent,
    /// The server takes no more.
    Stopped,
}

/// What is still to be sent of a request.
pub(super) struct Upload {
    /// The head, and pieces of the body that are short enough to be copied.
    write_buffer: Vec<u8>,
    /// How much of the page went out.
    written: usize,
    /// What follows the page from where it is.
    piece: Bytes,
    body: RequestBody,
    framing: RequestFraming,
    /// Nothing more comes from the body.
    is_body_done: bool,
    /// The server took nothing of it, and it had no body: it may be sent again as if it never had been.
    is_untouched: bool,
}

impl Upload {
    /// `page` has the head.
    pub(super) fn new(page: Vec<u8>, framing: RequestFraming, body: RequestBody) -> Upload {
        let is_untouched = body.is_empty();
        let is_over = framing == RequestFraming::Length(0);
        let body = if is_over { RequestBody::Empty } else { body };
        Upload {
            write_buffer: page,
            written: 0,
            piece: Bytes::new(),
            body,
            framing,
            is_body_done: is_over,
            is_untouched,
        }
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.is_untouched
    }

    /// The page, for the next request.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.write_buffer
    }

    /// Sends as fast as the client does and the server takes it.
    ///
    /// A write that fails is left to the reading side to explain: a server that answers early and closes resets the
    /// connection under the request, and its answer has arrived by then.
    ///
    /// # Errors
    /// What is wrong with the client's body.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut ServerSocket,
    ) -> Poll<Result<UploadOutcome, BodyFault>> {
        loop {
            self.gather_body(cx)?;
            let is_written = self.write_buffer.is_empty() && self.piece.is_empty();
            let moved = match is_written {
                true => Pin::new(&mut *socket).poll_flush(cx),
                false => self.poll_write(cx, socket),
            };
            match ready!(moved) {
                Ok(()) if !is_written => {}
                Ok(()) if self.is_body_done => return Poll::Ready(Ok(UploadOutcome::Sent)),
                Ok(()) => return Poll::Pending,
                Err(error) => {
                    tracing::debug!(%error, "a server took no more of a request");
                    return Poll::Ready(Ok(UploadOutcome::Stopped));
                }
            }
        }
    }

    /// Takes from the body what it has, until there is enough for a write.
    fn gather_body(&mut self, cx: &mut Context<'_>) -> Result<(), BodyFault> {
        while !self.is_body_done && self.piece.is_empty() && self.write_buffer.len() < GATHER_MAX {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(frame)) => {
                    // HTTP/1 servers are sent no trailers.
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
            // Writing to memory does not fail.
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

    /// The body has no more. A server that was promised more bytes must not take it for whole.
    fn end_body(&mut self) -> Result<(), BodyFault> {
        match self.framing {
            RequestFraming::Length(0) => {}
            RequestFraming::Length(_) => return Err(BodyFault::Malformed),
            RequestFraming::Chunked => {
                if !self.piece.is_empty() {
                    // Its last line has to go out first.
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
        let (socket, page) = (Pin::new(socket), &self.write_buffer[self.written..]);
        let count = ready!(match (page.is_empty(), self.piece.is_empty()) {
            (false, false) => {
                socket.poll_write_vectored(cx, &[IoSlice::new(page), IoSlice::new(&self.piece)])
            }
            (true, false) => socket.poll_write(cx, &self.piece),
            (_, true) => socket.poll_write(cx, page),
        })?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.is_untouched = false;
        let of_page = count.min(page.len());
        self.written += of_page;
        if self.written == self.write_buffer.len() {
            self.write_buffer.clear();
            self.written = 0;
        }
        if count > of_page {
            self.piece.advance(count - of_page);
            if self.piece.is_empty() && self.framing == RequestFraming::Chunked {
                self.write_buffer.extend_from_slice(b"\r\n");
            }
        }
        Poll::Ready(Ok(()))
    }
}
