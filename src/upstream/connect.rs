//! A new connection to a server: the socket, TLS on it, and the HTTP that both sides speak.

use std::fmt;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::dns::address_tag;
use super::fault::ServerFault;
use super::http1::Http1Connection;
use super::http2::Http2Connection;
use super::server::{Server, ServerProtocol};
use super::server_socket::ServerSocket;

/// How soon a unix socket whose queue is full is tried again.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// Why no connection to a server came about.
#[derive(Debug, Clone)]
pub enum ConnectFault {
    /// `max_connections` are busy, every HTTP/2 connection is full, or this machine has nothing left for another.
    Full,
    TimedOut,
    /// What it says of the server, and the system's own words.
    Failed(ServerFault, Arc<io::Error>),
}

impl ConnectFault {
    fn with_cause(trouble: ServerFault, error: io::Error) -> ConnectFault {
        ConnectFault::Failed(trouble, Arc::new(error))
    }

    /// No server is to blame for a lack of descriptors or memory.
    fn from_io(error: io::Error) -> ConnectFault {
        if is_local_shortage(&error) {
            return ConnectFault::Full;
        }
        ConnectFault::with_cause(ServerFault::from_connect(&error), error)
    }

    /// What it says of the server; `None` when it says nothing.
    pub fn server_fault(&self) -> Option<ServerFault> {
        match self {
            ConnectFault::Full => None,
            ConnectFault::TimedOut => Some(ServerFault::ConnectTimeout),
            ConnectFault::Failed(trouble, _) => Some(*trouble),
        }
    }
}

impl fmt::Display for ConnectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectFault::Full => f.write_str("all connections are busy"),
            ConnectFault::TimedOut => f.write_str("the connect timed out"),
            ConnectFault::Failed(trouble, error) => write!(f, "{trouble}: {error}"),
        }
    }
}

/// A socket to a server, its TLS handshake done.
pub(super) struct DialledSocket {
    pub socket: ServerSocket,
    /// HTTP/2 is spoken on it.
    pub is_http2: bool,
    /// The [`tag`] of where it leads.
    pub address: u32,
}

/// A connection that requests can be sent on.
pub(super) enum NewConnection {
    /// And the tag of the address.
    Http1(Rc<Http1Connection>, u32),
    Http2(Rc<Http2Connection>),
}

/// Connects to speak as `speech` says, within the server's connect timeout, which TLS and the settings of HTTP/2
/// are part of.
///
/// # Errors
/// When no address answers, or not as it should.
pub(super) async fn open_connection(
    server: &Arc<Server>,
    speech: ServerProtocol,
) -> Result<NewConnection, ConnectFault> {
    let end = Instant::now() + server.connect_timeout;
    let opening = async {
        let DialledSocket { socket, is_http2, address } = dial_server(server, speech, end).await?;
        if !is_http2 {
            return Ok(NewConnection::Http1(Http1Connection::new(socket), address));
        }
        let opened = Http2Connection::from_socket(TokioIo::new(socket), server, address).await;
        opened
            .map(NewConnection::Http2)
            .map_err(|error| ConnectFault::with_cause(ServerFault::NoHttp2, error))
    };
    timeout_at(end, opening).await.map_err(|_elapsed| ConnectFault::TimedOut)?
}

/// A socket to the first address that takes one. What is left of the time until `end` is shared evenly among those
/// that are left: a silent one does not use up that of the others.
///
/// # Errors
/// That of the last address.
pub(super) async fn dial_server(
    server: &Arc<Server>,
    speech: ServerProtocol,
    end: Instant,
) -> Result<DialledSocket, ConnectFault> {
    if let Some(path) = &server.unix_path {
        return dial_unix(path, speech, end).await;
    }
    let unresolved = |error| ConnectFault::with_cause(ServerFault::NameNotFound, error);
    let addresses = server.resolve_addresses().await.map_err(unresolved)?;
    let mut fault = unresolved(io::ErrorKind::AddrNotAvailable.into());
    let mut untried = addresses.len() as u32;
    for address in addresses {
        let dialled = async {
            let stream = TcpStream::connect(address).await.map_err(ConnectFault::from_io)?;
            stream.set_nodelay(true).map_err(ConnectFault::from_io)?;
            secure_stream(stream, server, speech).await
        };
        let share = end.saturating_duration_since(Instant::now()) / untried;
        match timeout(share, dialled).await {
            Ok(Ok((socket, is_http2))) => {
                return Ok(DialledSocket { socket, is_http2, address: address_tag(&address) });
            }
            Ok(Err(ConnectFault::Full)) => return Err(ConnectFault::Full),
            Ok(Err(other)) => fault = other,
            Err(_elapsed) => fault = ConnectFault::TimedOut,
        }
        untried -= 1;
    }
    Err(fault)
}

/// A socket to the server that listens at `path`. Where TCP waits for room in the server's queue, the kernel answers
/// at once that there is none: then it is asked again until `end`.
async fn dial_unix(path: &Path, speech: ServerProtocol, end: Instant) -> Result<DialledSocket, ConnectFault> {
    loop {
        match timeout_at(end, UnixStream::connect(path)).await {
            Ok(Ok(stream)) => {
                let socket = ServerSocket::Unix(stream);
                return Ok(DialledSocket { socket, is_http2: speech == ServerProtocol::Http2, address: 0 });
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                sleep_until(end.min(Instant::now() + QUEUE_PAUSE)).await;
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(ConnectFault::TimedOut);
            }
            Ok(Err(error)) => return Err(ConnectFault::from_io(error)),
            Err(_elapsed) => return Err(ConnectFault::TimedOut),
        }
    }
}

fn is_local_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.raw_os_error().is_some_and(|code| ours.iter().any(|errno| errno.raw_os_error() == code))
}

async fn secure_stream(
    stream: TcpStream,
    server: &Server,
    speech: ServerProtocol,
) -> Result<(ServerSocket, bool), ConnectFault> {
    let Some(tls) = &server.tls else {
        return Ok((ServerSocket::Plain(stream), speech == ServerProtocol::Http2));
    };
    let (stream, is_http2) =
        tls.connect_stream(stream, speech == ServerProtocol::Http1).await.map_err(ConnectFault::from_io)?;
    if speech == ServerProtocol::Http2 && !is_http2 {
        let error = io::Error::other("the server does not speak HTTP/2");
        return Err(ConnectFault::with_cause(ServerFault::NoHttp2, error));
    }
    Ok((ServerSocket::Tls(Box::new(stream)), is_http2))
}
