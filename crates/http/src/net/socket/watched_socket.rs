//! A client's socket as a byte stream that notes every read and write in the connection's watch.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::{Socket, would_block};
use crate::net::deadline::ConnectionWatch;

/// The time that the gateway goes on reading after it closed its side.
const LINGER: Duration = Duration::from_secs(2);

/// A socket that notes every read and write in the connection's [`ConnectionWatch`].
pub struct WatchedSocket {
    socket: Rc<Socket>,
    watch: Rc<ConnectionWatch>,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl WatchedSocket {
    /// The stream over `socket`, which others may share; reads and writes are noted in `watch`.
    pub fn new(socket: Rc<Socket>, watch: Rc<ConnectionWatch>) -> WatchedSocket {
        WatchedSocket { socket, watch, lingering: None }
    }

    /// Asks the socket, see [`Socket::has_unread`].
    pub fn has_unread(&self) -> bool {
        self.socket.has_unread()
    }

    #[inline]
    fn poll_write_by(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&Socket) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            // Nearly every socket has room, so its readiness is looked up only after a failure.
            match write(&self.socket) {
                Err(error) if would_block(&error) => {}
                written => {
                    self.watch.clear_write_blocked();
                    return Poll::Ready(written);
                }
            }
            if self.socket.poll_write_ready(cx)?.is_pending() {
                self.watch.mark_write_blocked();
                return Poll::Pending;
            }
        }
    }

    /// Reads and discards until the client closes or [`LINGER`] has passed.
    ///
    /// Closing with unread bytes resets the connection, and the reset overtakes the response.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.lingering.as_mut() else { return Poll::Ready(()) };
        if deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut scratch = [0u8; 16 * 1024];
        for _ in 0..16 {
            if ready!(self.socket.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            match self.socket.try_read_buf(&mut ReadBuf::new(&mut scratch)) {
                Ok(0) => return Poll::Ready(()),
                Ok(_) => {}
                Err(error) if would_block(&error) => {}
                Err(_) => return Poll::Ready(()),
            }
        }
        // A client that never pauses must not occupy the worker.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl AsyncRead for WatchedSocket {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read_buf(buf) {
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(_) => {
                    self.watch.record_read();
                    return Poll::Ready(Ok(()));
                }
                Err(error) if would_block(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for WatchedSocket {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_by(cx, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match pieces {
            // The usual case; a plain write costs the kernel less.
            [piece] => self.poll_write(cx, piece),
            _ => self.poll_write_by(cx, |socket| socket.try_write_vectored(pieces)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            self.watch.mark_shut();
            let (is_busy, is_http1) = (self.watch.is_busy(), !self.watch.is_multiplexed());
            // Requests that follow the last one, unlike the bytes of a tunnel, which reads on.
            let owes_bytes = self.watch.owes_bytes() || is_http1 && !is_busy && self.has_unread();
            // Without a request the socket is closed next anyway.
            if owes_bytes || is_busy {
                self.socket.shut_write();
            }
            if !owes_bytes {
                return Poll::Ready(Ok(()));
            }
            self.lingering = Some(Box::pin(tokio::time::sleep(LINGER)));
        }
        self.poll_linger(cx).map(Ok)
    }
}
