//! A client's socket, shared by hyper, which reads and writes it, and a waiting request, which only watches it.

mod client_stream;
mod watched_socket;

use std::io::{self, IoSlice};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::SockRef;
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

pub use client_stream::ClientStream;
pub use watched_socket::WatchedSocket;

/// A connection on its way from one runtime to another, with the address of a TCP peer; it stays non-blocking.
pub type StdSocket = (socket2::Socket, Option<IpAddr>);

/// A client connection over TCP or a unix socket. The address of a TCP peer is kept from the accept: the kernel
/// forgets it once the peer resets, while received bytes can still be read, and a peer without an address is trusted.
pub enum Socket {
    /// A TCP connection, and the address of its peer.
    Tcp(TcpStream, IpAddr),
    /// A connection over a unix socket; its peer has no address.
    Unix(UnixStream),
}

impl Socket {
    /// True if the kernel holds unread bytes: after a stall, tokio does not know of them yet.
    pub fn has_unread(&self) -> bool {
        let (flags, mut byte) = (RecvFlags::PEEK | RecvFlags::DONTWAIT, [0; 1]);
        let peeked = match self {
            Socket::Tcp(stream, _) => recv(stream, &mut byte, flags),
            Socket::Unix(stream) => recv(stream, &mut byte, flags),
        };
        peeked.is_ok_and(|(bytes, _)| bytes > 0)
    }

    /// The peer's address; a unix peer has none.
    pub fn peer(&self) -> Option<IpAddr> {
        match self {
            Socket::Tcp(_, peer) => Some(*peer),
            Socket::Unix(_) => None,
        }
    }

    /// The addresses of both ends, the peer's first, as far as the kernel tells them; a unix socket has none.
    pub fn addresses(&self) -> [Option<SocketAddr>; 2] {
        match self {
            Socket::Tcp(stream, _) => [stream.peer_addr().ok(), stream.local_addr().ok()],
            Socket::Unix(_) => [None, None],
        }
    }

    /// Resolves when the client closed its side or the connection broke, even if bytes are still unread.
    ///
    /// hyper sees a hang-up only once it has read everything before it, so a waiting request watches the socket
    /// itself: readiness for priority data reports the close, and unread data does not wake it.
    pub async fn wait_for_hangup(&self) {
        loop {
            let ready = match self {
                Socket::Tcp(stream, _) => stream.ready(Interest::PRIORITY).await,
                Socket::Unix(stream) => stream.ready(Interest::PRIORITY).await,
            };
            match ready {
                Ok(ready) if ready.is_read_closed() || ready.is_write_closed() || ready.is_error() => return,
                // Nothing reads urgent data, so it would wake this loop without end.
                Ok(_) => tokio::time::sleep(crate::net::deadline::TICK).await,
                Err(_) => return,
            }
        }
    }

    /// Deregisters the connection from this thread's runtime.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn into_std(self) -> io::Result<StdSocket> {
        Ok(match self {
            Socket::Tcp(stream, peer) => (stream.into_std()?.into(), Some(peer)),
            Socket::Unix(stream) => (stream.into_std()?.into(), None),
        })
    }

    /// Registers the connection with this thread's runtime.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn from_std((socket, peer): StdSocket) -> io::Result<Socket> {
        Ok(match peer {
            Some(peer) => Socket::Tcp(TcpStream::from_std(socket.into())?, peer),
            None => Socket::Unix(UnixStream::from_std(socket.into())?),
        })
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Tcp(stream, _) => stream.poll_read_ready(cx),
            Socket::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Reads the available bytes. A read that leaves room in `buf` took them all, so the socket counts as not ready
    /// afterwards, which saves a read that would only report `WouldBlock`.
    fn try_read_buf(&self, buf: &mut ReadBuf<'_>) -> io::Result<usize> {
        let room = buf.remaining();
        let mut read = 0;
        let mut read_some = |count: io::Result<usize>| {
            read = count?;
            if 0 < read && read < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        };
        // `try_io` clears the readiness when its closure reports `WouldBlock`.
        let outcome = match self {
            Socket::Tcp(stream, _) => {
                stream.try_io(Interest::READABLE, || read_some(stream.try_read_buf(buf)))
            }
            Socket::Unix(stream) => stream.try_io(Interest::READABLE, || read_some(stream.try_read_buf(buf))),
        };
        match outcome {
            Err(error) if read == 0 => Err(error),
            _ => Ok(read),
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Tcp(stream, _) => stream.poll_write_ready(cx),
            Socket::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Writes with a bare system call: the C library's is a point of cancellation, which costs more than the rest.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let (flags, writable) = (SendFlags::NOSIGNAL, Interest::WRITABLE);
        match self {
            Socket::Tcp(stream, _) => stream.try_io(writable, || Ok(send(stream, bytes, flags)?)),
            Socket::Unix(stream) => stream.try_io(writable, || Ok(send(stream, bytes, flags)?)),
        }
    }

    /// Writes several pieces at once: TLS makes one for each of its records.
    fn try_write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream, _) => stream.try_write_vectored(pieces),
            Socket::Unix(stream) => stream.try_write_vectored(pieces),
        }
    }

    /// Makes closing a reset, which tells the reader that the response is incomplete.
    pub fn reset_on_close(&self) {
        if let Socket::Tcp(stream, _) = self {
            // Fails only if the peer is already gone.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }

    fn shut_write(&self) {
        // Fails only if the peer is already gone.
        let _ = match self {
            Socket::Tcp(stream, _) => SockRef::from(stream).shutdown(Shutdown::Write),
            Socket::Unix(stream) => SockRef::from(stream).shutdown(Shutdown::Write),
        };
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
