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
const GATHERED: usize = 16 * 1024;

/// How a server learns where a request body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// Bytes of it that are still to be sent.
    Length(u64),
    Chunked,
}

/// How sending ended.
pub(super) enum Went {
    Out,
    /// The server takes no more.
    Refused,
}

/// What is still to be sent of a request.
pub(super) struct Upload {
    /// The head, and pieces of the body that are short enough to be copied.
    page: Vec<u8>,
    /// How much of the page went out.
    written: usize,
    /// What follows the page from where it is.
    piece: Bytes,
    body: RequestBody,
    framing: BodyFraming,
    /// Nothing more comes from the body.
    is_over: bool,
    /// The server took nothing of it, and it had no body: it may be sent again as if it never had been.
    is_untouched: bool,
}

impl Upload {
    /// `page` has the head.
    pub(super) fn new(page: Vec<u8>, framing: BodyFraming, body: RequestBody) -> Upload {
        let is_untouched = body.is_empty();
        let is_over = framing == BodyFraming::Length(0);
        let body = if is_over { RequestBody::Empty } else { body };
        Upload { page, written: 0, piece: Bytes::new(), body, framing, is_over, is_untouched }
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.is_untouched
    }

    /// The page, for the next request.
    pub(super) fn into_page(self) -> Vec<u8> {
        self.page
    }

    /// Sends as fast as the client does and the server takes it.
    ///
    /// A write that fails is left to the reading side to explain: a server that answers early and closes resets the
    /// connection under the request, and its answer has arrived by then.
    ///
    /// # Errors
    /// What is wrong with the client's body.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut ServerSocket,
    ) -> Poll<Result<Went, BodyFault>> {
        loop {
            self.gather(cx)?;
            let is_written = self.page.is_empty() && self.piece.is_empty();
            let moved = match is_written {
                true => Pin::new(&mut *socket).poll_flush(cx),
                false => self.poll_write(cx, socket),
            };
            match ready!(moved) {
                Ok(()) if !is_written => {}
                Ok(()) if self.is_over => return Poll::Ready(Ok(Went::Out)),
                Ok(()) => return Poll::Pending,
                Err(error) => {
                    tracing::debug!(%error, "a server took no more of a request");
                    return Poll::Ready(Ok(Went::Refused));
                }
            }
        }
    }

    /// Takes from the body what it has, until there is enough for a write.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<(), BodyFault> {
        while !self.is_over && self.piece.is_empty() && self.page.len() < GATHERED {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(frame)) => {
                    // HTTP/1 servers are sent no trailers.
                    if let Ok(data) = frame?.into_data() {
                        self.put(data)?;
                    }
                    if self.body.is_end_stream() || self.framing == BodyFraming::Length(0) {
                        self.end()?;
                    }
                }
                Poll::Ready(None) => self.end()?,
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }

    fn put(&mut self, data: Bytes) -> Result<(), BodyFault> {
        if data.is_empty() {
            return Ok(());
        }
        let is_chunked = match &mut self.framing {
            BodyFraming::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(BodyFault::Malformed)?;
                false
            }
            BodyFraming::Chunked => true,
        };
        if is_chunked {
            // Writing to memory does not fail.
            let _ = write!(self.page, "{:x}\r\n", data.len());
        }
        if data.len() > GATHERED {
            self.piece = data;
            return Ok(());
        }
        self.page.extend_from_slice(&data);
        if is_chunked {
            self.page.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    /// The body has no more. A server that was promised more bytes must not take it for whole.
    fn end(&mut self) -> Result<(), BodyFault> {
        match self.framing {
            BodyFraming::Length(0) => {}
            BodyFraming::Length(_) => return Err(BodyFault::Malformed),
            BodyFraming::Chunked => {
                if !self.piece.is_empty() {
                    // Its last line has to go out first.
                    return Ok(());
                }
                self.page.extend_from_slice(b"0\r\n\r\n");
            }
        }
        self.is_over = true;
        self.body = RequestBody::Empty;
        Ok(())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, socket: &mut ServerSocket) -> Poll<io::Result<()>> {
        let (socket, page) = (Pin::new(socket), &self.page[self.written..]);
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
        if self.written == self.page.len() {
            self.page.clear();
            self.written = 0;
        }
        if count > of_page {
            self.piece.advance(count - of_page);
            if self.piece.is_empty() && self.framing == BodyFraming::Chunked {
                self.page.extend_from_slice(b"\r\n");
            }
        }
        Poll::Ready(Ok(()))
    }
}
