//! The socket of a server connection: TCP or unix, plain or TLS.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use rustix::net::{SendFlags, send};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

pub enum ServerSocket {
    Plain(TcpStream),
    Unix(UnixStream),
    // Boxed: TLS keeps kilobytes that a plain connection must not pay for.
    Tls(Box<TlsStream<TcpStream>>),
}

impl ServerSocket {
    /// Whether the server has neither closed the connection nor sent unrequested bytes, as far as is known without
    /// waiting.
    pub(super) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        match self {
            // Makes no system call as long as nothing has happened.
            ServerSocket::Plain(stream) => would_block(stream.try_read(&mut byte)),
            ServerSocket::Unix(stream) => would_block(stream.try_read(&mut byte)),
            // Reads the records that TLS exchanges between requests; they are no response.
            ServerSocket::Tls(stream) => {
                let mut byte = ReadBuf::new(&mut byte);
                poll_once(|cx| Pin::new(&mut *stream).poll_read(cx, &mut byte)).is_pending()
            }
        }
    }

    /// Ends both directions, which wakes the tasks that wait for the socket.
    pub(super) fn shut_down(&self) {
        let socket = match self {
            ServerSocket::Plain(stream) => SockRef::from(stream),
            ServerSocket::Unix(stream) => SockRef::from(stream),
            ServerSocket::Tls(stream) => SockRef::from(stream.get_ref().0),
        };
        // It may have ended already.
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}

/// Whether a non-blocking read found neither bytes nor an end.
fn would_block(read: io::Result<usize>) -> bool {
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Writes without asking for readiness before: nearly every socket has room. As [`crate::net::socket`], it bypasses the
/// C library.
#[inline]
fn poll_send(stream: &TcpStream, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        match stream.try_io(Interest::WRITABLE, || Ok(send(stream, bytes, SendFlags::NOSIGNAL)?)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(stream.poll_write_ready(cx))?,
            sent => return Poll::Ready(sent),
        }
    }
}

/// Polls once without waiting, even in a task that has used up its cooperative budget.
fn poll_once<T>(work: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    pin!(tokio::task::unconstrained(poll_fn(work))).poll(&mut Context::from_waker(Waker::noop()))
}

impl Drop for ServerSocket {
    /// Sends the close notification of TLS.
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
            ServerSocket::Plain(stream) => poll_send(stream, cx, bytes),
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
