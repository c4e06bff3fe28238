//! The byte stream under HTTP: the client's bytes, plain or decrypted, beginning with those read ahead and not yet
//! parsed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::WatchedSocket;

/// Bytes read at once to recognise the protocol; most heads fit, so one read suffices for them.
const AHEAD_MAX: usize = 2048;

/// A client's byte stream that can take back bytes, to be read again.
pub struct ClientStream {
    channel: StreamTransport,
    ahead: Bytes,
}

enum StreamTransport {
    Plain(WatchedSocket),
    // Boxed: a plain connection must not reserve the kilobytes of TLS state.
    Tls(Box<TlsStream<ClientStream>>),
}

impl ClientStream {
    /// The stream of a connection without TLS, or before its handshake.
    pub fn from_plain(socket: WatchedSocket) -> ClientStream {
        ClientStream { channel: StreamTransport::Plain(socket), ahead: Bytes::new() }
    }

    /// The stream after a completed handshake.
    pub fn from_tls(stream: TlsStream<ClientStream>) -> ClientStream {
        ClientStream { channel: StreamTransport::Tls(Box::new(stream)), ahead: Bytes::new() }
    }

    /// The bytes read ahead.
    pub fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Checks like [`super::Socket::has_unread`], also the socket under TLS.
    pub fn has_unread(&self) -> bool {
        match &self.channel {
            StreamTransport::Plain(socket) => socket.has_unread(),
            StreamTransport::Tls(stream) => stream.get_ref().0.has_unread(),
        }
    }

    /// Drops the first `bytes` that were read ahead, once they are parsed.
    pub fn discard_ahead(&mut self, bytes: usize) {
        self.ahead.advance(bytes.min(self.ahead.len()));
        if self.ahead.is_empty() {
            self.ahead = Bytes::new();
        }
    }

    /// Puts `bytes`, the last that were read from here, back in front.
    pub fn put_back(&mut self, bytes: Bytes) {
        // Even an empty slice would keep the buffer it was cut from alive.
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

    /// Reads some bytes ahead and returns their number; 0 = the client closed its side.
    ///
    /// # Errors
    /// The error of the connection.
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

    // Used by TLS, and by HTTP for large responses.
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
