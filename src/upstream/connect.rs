//! A new connection to a server: the socket, TLS on it, and the HTTP that both sides speak.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::http1::Http1;
use super::multiplexed::Multiplexed;
use super::name::tag;
use super::server::{Server, Speech};
use super::socket::ServerSocket;

/// Why no connection to a server came about.
#[derive(Debug, Clone)]
pub enum ConnectFault {
    /// `max_connections` are busy, every HTTP/2 connection is full, or this machine has nothing left for another.
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
    pub socket: ServerSocket,
    /// HTTP/2 is spoken on it.
    pub is_http2: bool,
    /// The [`tag`] of where it leads.
    pub address: u32,
}

/// A connection that requests can be sent on.
pub(super) enum Opened {
    /// And the tag of the address.
    Http1(Rc<Http1>, u32),
    Http2(Rc<Multiplexed>),
}

/// Connects to speak as `speech` says, within the server's connect timeout, which TLS and the settings of HTTP/2
/// are part of.
///
/// # Errors
/// When no address answers, or not as it should.
pub(super) async fn open(server: &Arc<Server>, speech: Speech) -> Result<Opened, ConnectFault> {
    let end = Instant::now() + server.connect_timeout;
    let opening = async {
        let Dialled { socket, is_http2, address } = dial(server, speech, end).await?;
        if !is_http2 {
            return Ok(Opened::Http1(Http1::new(socket), address));
        }
        let opened = Multiplexed::open(TokioIo::new(socket), server, address).await;
        opened.map(Opened::Http2).map_err(|error| ConnectFault::Failed(Arc::new(error)))
    };
    timeout_at(end, opening).await.map_err(|_elapsed| ConnectFault::TimedOut)?
}

/// A socket to the first address that takes one. What is left of the time until `end` is shared evenly among those
/// that are left: a silent one does not use up that of the others.
///
/// # Errors
/// That of the last address.
pub(super) async fn dial(
    server: &Arc<Server>,
    speech: Speech,
    end: Instant,
) -> Result<Dialled, ConnectFault> {
    let addresses = server.addresses().await.map_err(|error| ConnectFault::Unresolved(Arc::new(error)))?;
    let mut fault = ConnectFault::Failed(Arc::new(io::ErrorKind::AddrNotAvailable.into()));
    let mut untried = addresses.len() as u32;
    for address in addresses {
        let dialled = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            secure(stream, server, speech).await
        };
        let share = end.saturating_duration_since(Instant::now()) / untried;
        match timeout(share, dialled).await {
            Ok(Ok((socket, is_http2))) => return Ok(Dialled { socket, is_http2, address: tag(&address) }),
            Ok(Err(error)) if is_our_own(&error) => return Err(ConnectFault::Full),
            Ok(Err(error)) => fault = ConnectFault::Failed(Arc::new(error)),
            Err(_elapsed) => fault = ConnectFault::TimedOut,
        }
        untried -= 1;
    }
    Err(fault)
}

/// No server is to blame for a lack of descriptors or memory.
fn is_our_own(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.raw_os_error().is_some_and(|code| ours.iter().any(|errno| errno.raw_os_error() == code))
}

async fn secure(stream: TcpStream, server: &Server, speech: Speech) -> io::Result<(ServerSocket, bool)> {
    let Some(tls) = &server.tls else {
        return Ok((ServerSocket::Plain(stream), speech == Speech::Http2));
    };
    let (stream, is_http2) = tls.connect(stream, speech == Speech::Http1).await?;
    if speech == Speech::Http2 && !is_http2 {
        return Err(io::Error::other("the server does not speak HTTP/2"));
    }
    Ok((ServerSocket::Tls(Box::new(stream)), is_http2))
}
