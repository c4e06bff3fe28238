//! A connection to a server as bytes: in clear, or out of TLS.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

pub enum ServerSocket {
    Plain(TcpStream),
    Unix(UnixStream),
    // TLS keeps kilobytes, which a plain connection shall not have to make room for.
    Tls(Box<TlsStream<TcpStream>>),
}

impl ServerSocket {
    /// Whether nothing came that nobody asked for, and the server has not closed; told without waiting, from what is
    /// known here.
    pub(super) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        match self {
            // Without a call of the kernel, as long as nothing has happened.
            ServerSocket::Plain(stream) => would_block(stream.try_read(&mut byte)),
            ServerSocket::Unix(stream) => would_block(stream.try_read(&mut byte)),
            // What TLS says to itself between requests is read, and is no answer.
            ServerSocket::Tls(stream) => {
                let mut byte = ReadBuf::new(&mut byte);
                poll_once(|cx| Pin::new(&mut *stream).poll_read(cx, &mut byte)).is_pending()
            }
        }
    }

    /// Ends both directions, so that whoever waits for the socket learns of it.
    pub(super) fn shut_down(&self) {
        let socket = match self {
            ServerSocket::Plain(stream) => SockRef::from(stream),
            ServerSocket::Unix(stream) => SockRef::from(stream),
            ServerSocket::Tls(stream) => SockRef::from(stream.get_ref().0),
        };
        // It may have ended by itself.
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}

/// Whether a read that does not wait found neither bytes nor an end.
fn would_block(read: io::Result<usize>) -> bool {
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Does what can be done without waiting, also for a task that has done much in its turn and should pause.
fn poll_once<T>(work: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    pin!(tokio::task::unconstrained(poll_fn(work))).poll(&mut Context::from_waker(Waker::noop()))
}

impl Drop for ServerSocket {
    /// Says goodbye where that is more than closing.
    fn drop(&mut self) {
        if let ServerSocket::Tls(stream) = self {
            let _ = poll_once(|cx| Pin::new(&mut *stream).poll_shutdown(cx));
        }
    }
}

impl AsyncRead for ServerSocket {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerSocket::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            ServerSocket::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            ServerSocket::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ServerSocket {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerSocket::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            ServerSocket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            ServerSocket::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerSocket::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            ServerSocket::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            ServerSocket::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerSocket::Plain(_) | ServerSocket::Unix(_) => Poll::Ready(Ok(())),
            ServerSocket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerSocket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            ServerSocket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            ServerSocket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
