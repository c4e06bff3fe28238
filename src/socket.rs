//! A client's socket, shared between hyper, which reads and writes it, and a waiting request, which only watches it.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Shutdown};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;

use crate::deadline::Watch;

/// How long we go on reading what a client still sends, after we said our last word.
const LINGER: Duration = Duration::from_secs(2);

/// A connection between two runtimes; it stays non-blocking.
pub enum Arrival {
    Tcp(std::net::TcpStream, IpAddr),
    Unix(std::os::unix::net::UnixStream),
}

/// Either kind of client connection. The peer of a TCP connection is kept from its accept: the kernel forgets it
/// once the peer resets, while what it sent can still be read, and a peer without an address would be trusted.
pub enum Socket {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

impl Socket {
    /// The peer's address; a unix peer has none.
    pub fn peer(&self) -> Option<IpAddr> {
        match self {
            Socket::Tcp(_, peer) => Some(*peer),
            Socket::Unix(_) => None,
        }
    }

    /// Resolves when the client closed its side or the connection broke, whatever still lies unread in it.
    ///
    /// hyper sees a hang-up only once it has read everything before it, so a waiting request watches for itself:
    /// readiness of priority data carries the closed mark, and unread data does not wake it.
    pub async fn hung_up(&self) {
        loop {
            let ready = match self {
                Socket::Tcp(stream, _) => stream.ready(Interest::PRIORITY).await,
                Socket::Unix(stream) => stream.ready(Interest::PRIORITY).await,
            };
            match ready {
                Ok(ready) if ready.is_read_closed() || ready.is_write_closed() || ready.is_error() => return,
                // Urgent data would wake us for ever: nothing reads it.
                Ok(_) => tokio::time::sleep(crate::deadline::TICK).await,
                Err(_) => return,
            }
        }
    }

    /// Small answers must not wait for an acknowledgement of the one before.
    pub fn send_at_once(&self) {
        if let Socket::Tcp(stream, _) = self
            && let Err(error) = stream.set_nodelay(true)
        {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
    }

    /// Takes the connection off this thread's runtime.
    ///
    /// # Errors
    /// The kernel's.
    pub fn into_std(self) -> io::Result<Arrival> {
        match self {
            Socket::Tcp(stream, peer) => stream.into_std().map(|stream| Arrival::Tcp(stream, peer)),
            Socket::Unix(stream) => stream.into_std().map(Arrival::Unix),
        }
    }

    /// Puts the connection on this thread's runtime.
    ///
    /// # Errors
    /// The kernel's.
    pub fn from_std(arrival: Arrival) -> io::Result<Socket> {
        match arrival {
            Arrival::Tcp(stream, peer) => TcpStream::from_std(stream).map(|stream| Socket::Tcp(stream, peer)),
            Arrival::Unix(stream) => UnixStream::from_std(stream).map(Socket::Unix),
        }
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Tcp(stream, _) => stream.poll_read_ready(cx),
            Socket::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Reads what is there. A read that leaves room in `buf` took everything, so the socket counts as not ready
    /// from then on, which saves asking the kernel once more just to be told so.
    fn try_read_buf(&self, buf: &mut ReadBuf<'_>) -> io::Result<usize> {
        let room = buf.remaining();
        let mut read = 0;
        let mut read_some = |count: io::Result<usize>| {
            read = count?;
            if 0 < read && read < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        };
        // Telling the runtime that the read would block is how readiness is given up.
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

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream, _) => stream.try_write(bytes),
            Socket::Unix(stream) => stream.try_write(bytes),
        }
    }

    fn shut_write(&self) {
        // A peer that is already gone needs no goodbye.
        let _ = match self {
            Socket::Tcp(stream, _) => SockRef::from(stream).shutdown(Shutdown::Write),
            Socket::Unix(stream) => SockRef::from(stream).shutdown(Shutdown::Write),
        };
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// What hyper reads and writes: the socket, with every movement noted in the connection's [`Watch`].
pub struct WatchedSocket {
    socket: Rc<Socket>,
    watch: Rc<Watch>,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl WatchedSocket {
    pub fn new(socket: Rc<Socket>, watch: Rc<Watch>) -> WatchedSocket {
        WatchedSocket { socket, watch, lingering: None }
    }

    /// Reads and forgets until the client closes, or its time is up.
    ///
    /// Closing over unread bytes resets the connection, and the reset overtakes the answer.
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
        // A client that never pauses must not keep the worker.
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
                    self.watch.bytes_read();
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
        loop {
            let ready = self.socket.poll_write_ready(cx)?;
            if ready.is_pending() {
                self.watch.write_blocked();
                return Poll::Pending;
            }
            match self.socket.try_write(bytes) {
                Err(error) if would_block(&error) => {}
                written => {
                    self.watch.write_moved();
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            self.socket.shut_write();
            if !self.watch.owes_bytes() {
                return Poll::Ready(Ok(()));
            }
            self.lingering = Some(Box::pin(tokio::time::sleep(LINGER)));
        }
        self.poll_linger(cx).map(Ok)
    }
}
