//! A connection to a server that may stop reading before it answers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The socket, or the TLS on it, as hyper sees it: a write that fails is left to the reading side to explain.
///
/// A server that answers an upload early and closes resets the connection under it. The answer has arrived by then,
/// but hyper would give the exchange up at the failed write.
pub(super) struct ServerSocket<S> {
    stream: S,
    /// A write failed.
    refused: bool,
    /// Reading came to its end: nothing is left to wait for.
    read_ended: bool,
}

impl<S> ServerSocket<S> {
    pub(super) fn new(stream: S) -> ServerSocket<S> {
        ServerSocket { stream, refused: false, read_ended: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ServerSocket<S> {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Poll::Ready(outcome) = &read {
            this.read_ended |= outcome.is_err() || buf.filled().len() == filled;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ServerSocket<S> {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.refused && !this.read_ended {
            return Poll::Pending;
        }
        match Pin::new(&mut this.stream).poll_write(cx, bytes) {
            Poll::Ready(Err(error)) if !this.read_ended && is_about_the_peer(&error) => {
                this.refused = true;
                // What can be read, an answer or the end, is read before the next write.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            written => written,
        }
    }

    /// Only TLS has something to flush.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.refused && !this.read_ended {
            return Poll::Ready(Ok(()));
        }
        match Pin::new(&mut this.stream).poll_flush(cx) {
            Poll::Ready(Err(error)) if !this.read_ended && is_about_the_peer(&error) => {
                this.refused = true;
                Poll::Ready(Ok(()))
            }
            flushed => flushed,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

fn is_about_the_peer(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
