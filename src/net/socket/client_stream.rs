//! What HTTP is spoken over: the client's bytes, in clear or out of TLS, from the first that nobody has understood
//! yet.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::WatchedSocket;

/// Bytes looked at before it is known what is spoken; most heads fit, and are read by the one call.
const AHEAD_MAX: usize = 2048;

/// A client's bytes, with those in front that were read and have to be read again.
pub struct ClientStream {
    channel: StreamTransport,
    ahead: Bytes,
}

enum StreamTransport {
    Plain(WatchedSocket),
    // TLS keeps kilobytes, which a plain connection shall not have to make room for.
    Tls(Box<TlsStream<ClientStream>>),
}

impl ClientStream {
    pub fn from_plain(socket: WatchedSocket) -> ClientStream {
        ClientStream { channel: StreamTransport::Plain(socket), ahead: Bytes::new() }
    }

    /// What comes out of a handshake that is complete.
    pub fn from_tls(stream: TlsStream<ClientStream>) -> ClientStream {
        ClientStream { channel: StreamTransport::Tls(Box::new(stream)), ahead: Bytes::new() }
    }

    /// What was read ahead.
    pub fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// As [`super::Socket::has_unread`], of what comes through TLS as well.
    pub fn has_unread(&self) -> bool {
        match &self.channel {
            StreamTransport::Plain(socket) => socket.has_unread(),
            StreamTransport::Tls(stream) => stream.get_ref().0.has_unread(),
        }
    }

    /// Takes away the first bytes of what was read ahead; they are understood.
    pub fn discard_ahead(&mut self, bytes: usize) {
        self.ahead.advance(bytes.min(self.ahead.len()));
        if self.ahead.is_empty() {
            self.ahead = Bytes::new();
        }
    }

    /// Has `bytes`, the last that were taken from here, read once more.
    pub fn put_back(&mut self, bytes: Bytes) {
        // Without a byte in it, it would still keep the buffer that it was cut from.
        if bytes.is_empty() {
            return;
        }
        if self.ahead.is_empty() {
            self.ahead = bytes;
        } else {
            let mut all = BytesMut::with_capacity(bytes.len() + self.ahead.len());
            all.extend_from_slice(&bytes);
            all.extend_from_slice(&self.ahead);
            self.ahead = all.freeze();
        }
    }

    /// Reads some bytes ahead; 0 = the client has ended.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [std::mem::MaybeUninit::uninit(); AHEAD_MAX];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.channel).poll_read(cx, &mut read))?;
        let count = read.filled().len();
        let before = std::mem::replace(&mut self.ahead, Bytes::copy_from_slice(read.filled()));
        self.put_back(before);
        Poll::Ready(Ok(count))
    }
}

impl AsyncRead for StreamTransport {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            StreamTransport::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            StreamTransport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncRead for ClientStream {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.channel).poll_read(cx, buf);
        }
        let count = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..count]);
        self.discard_ahead(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.channel {
            StreamTransport::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            StreamTransport::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    // Asked for by TLS, and by HTTP where answers are large.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.channel {
            StreamTransport::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, pieces),
            StreamTransport::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.channel {
            StreamTransport::Plain(socket) => Pin::new(socket).poll_flush(cx),
            StreamTransport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.channel {
            StreamTransport::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            StreamTransport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
