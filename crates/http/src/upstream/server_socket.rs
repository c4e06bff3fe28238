//! The socket of a server connection: TCP or unix, plain or TLS.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

/// The socket of a connection to a server.
pub enum ServerSocket {
    /// TCP without TLS.
    Plain(TcpStream),
    /// A unix socket, which has no TLS.
    Unix(UnixStream),
    // Boxed: TLS keeps kilobytes that a plain connection must not pay for.
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

/// The state of a connection between two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdleState {
    Usable,
    Unusable,
    /// The server has sent data without a request.
    Stray,
}

impl ServerSocket {
    /// Asks the kernel, because the runtime learns of data only between batches of tasks. Data that arrives after this
    /// check looks like the response to the next request, to every proxy.
    pub(super) fn check_idle(&mut self) -> IdleState {
        let mut byte = [0];
        if let ServerSocket::Tls(stream) = self {
            // Reads the records that TLS exchanges between requests; they are no response.
            let mut read = ReadBuf::new(&mut byte);
            match poll_once(|cx| Pin::new(&mut *stream).poll_read(cx, &mut read)) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) if !read.filled().is_empty() => return IdleState::Stray,
                Poll::Ready(_) => return IdleState::Unusable,
            }
        }
        match recv(&*self.as_socket(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => IdleState::Usable,
            // Encrypted data that the runtime does not know of yet may be no response.
            Ok((1.., _)) if !matches!(self, ServerSocket::Tls(_)) => IdleState::Stray,
            _ => IdleState::Unusable,
        }
    }

    /// Ends both directions, which wakes the tasks that wait for the socket.
    pub(super) fn shut_down(&self) {
        // It may have ended already.
        let _ = self.as_socket().shutdown(std::net::Shutdown::Both);
    }

    fn as_socket(&self) -> SockRef<'_> {
        match self {
            ServerSocket::Plain(stream) => SockRef::from(stream),
            ServerSocket::Unix(stream) => SockRef::from(stream),
            ServerSocket::Tls(stream) => SockRef::from(stream.get_ref().0),
        }
    }
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
