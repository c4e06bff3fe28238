//! A new connection to a server: the socket, TLS on it, and the HTTP that both sides speak.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::multiplexed::Multiplexed;
use super::name::tag;
use super::server::{Server, Speech};
use super::socket::ServerSocket;
use crate::body::RequestBody;

/// Why no connection to a server came about.
#[derive(Debug, Clone)]
pub enum ConnectFault {
    /// `max_connections` are busy, or every HTTP/2 connection is full.
    Full,
    TimedOut,
    /// The name has no address.
    Unresolved(Arc<io::Error>),
    Failed(Arc<io::Error>),
}

impl fmt::Display for ConnectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectFault::Full => f.write_str("all connections are busy"),
            ConnectFault::TimedOut => f.write_str("the connect timed out"),
            ConnectFault::Unresolved(error) => write!(f, "the name could not be resolved: {error}"),
            ConnectFault::Failed(error) => write!(f, "the connect failed: {error}"),
        }
    }
}

/// A socket to a server, its TLS handshake done.
pub(super) struct Dialled {
    pub socket: Dialling,
    /// HTTP/2 is spoken on it.
    pub is_http2: bool,
    /// The [`tag`] of where it leads.
    pub address: u32,
}

/// With TLS where the server has it.
pub(super) enum Dialling {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that requests can be sent on.
pub(super) enum Opened {
    /// And the tag of the address.
    Http1(http1::SendRequest<RequestBody>, u32),
    Http2(Rc<Multiplexed>),
}

/// Bytes that are read from a server ahead of a client who takes them slowly, or not at all; the longest head of an
/// answer, too.
const BUFFER_MAX: usize = 128 * 1024;

/// Connects to speak as `speech` says, within the server's connect timeout, which TLS and the settings of HTTP/2
/// are part of.
///
/// # Errors
/// When no address answers, or not as it should.
pub(super) async fn open(server: &Arc<Server>, speech: Speech) -> Result<Opened, ConnectFault> {
    let opening = async {
        let Dialled { socket, is_http2, address } = dial(server, speech).await?;
        let spoken = match socket {
            Dialling::Plain(stream) => speak(stream, server, is_http2, address).await,
            Dialling::Tls(stream) => speak(*stream, server, is_http2, address).await,
        };
        spoken.map_err(|error| ConnectFault::Failed(Arc::new(error)))
    };
    tokio::time::timeout(server.connect_timeout, opening).await.map_err(|_elapsed| ConnectFault::TimedOut)?
}

/// A socket to the first address that takes one.
///
/// # Errors
/// That of the last address.
pub(super) async fn dial(server: &Arc<Server>, speech: Speech) -> Result<Dialled, ConnectFault> {
    let addresses = server.addresses().await.map_err(|error| ConnectFault::Unresolved(Arc::new(error)))?;
    let mut fault = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        let dialled = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            secure(stream, server, speech).await
        };
        match dialled.await {
            Ok((socket, is_http2)) => return Ok(Dialled { socket, is_http2, address: tag(&address) }),
            Err(error) => fault = error,
        }
    }
    Err(ConnectFault::Failed(Arc::new(fault)))
}

async fn secure(stream: TcpStream, server: &Server, speech: Speech) -> io::Result<(Dialling, bool)> {
    let Some(tls) = &server.tls else {
        return Ok((Dialling::Plain(stream), speech == Speech::Http2));
    };
    let (stream, is_http2) = tls.connect(stream, speech == Speech::Http1).await?;
    if speech == Speech::Http2 && !is_http2 {
        return Err(io::Error::other("the server does not speak HTTP/2"));
    }
    Ok((Dialling::Tls(Box::new(stream)), is_http2))
}

async fn speak<S>(stream: S, server: &Server, is_http2: bool, address: u32) -> io::Result<Opened>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let socket = TokioIo::new(ServerSocket::new(stream));
    if is_http2 {
        return Multiplexed::open(socket, server, address).await.map(Opened::Http2);
    }
    // One write of a copied head and body beats gathering for the small bodies that most requests have.
    let (sender, connection) = http1::Builder::new()
        .writev(false)
        .max_buf_size(BUFFER_MAX)
        .handshake(socket)
        .await
        .map_err(io::Error::other)?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "an upstream connection ended");
        }
    });
    Ok(Opened::Http1(sender, address))
}
