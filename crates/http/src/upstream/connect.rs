//! Opens connections to servers: the socket, TLS, and the HTTP version.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::address_tag;
use super::fault::ServerFault;
use super::http1::Http1Connection;
use super::http2::Http2Connection;
use super::server::{Server, ServerProtocol};
use super::server_socket::ServerSocket;

/// The pause before a unix socket with a full queue is tried again.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// The reason why no connection to a server was made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectFault {
    /// `max_connections` are busy, every HTTP/2 connection is full, or this machine is out of descriptors or memory.
    #[error("all connections are busy")]
    Full,
    /// The connect, TLS included, took longer than its deadline.
    #[error("the connect timed out")]
    TimedOut,
    /// The fault of the server, and the error of the system.
    #[error("{0}: {1}")]
    Failed(ServerFault, Arc<io::Error>),
}

impl ConnectFault {
    fn with_cause(fault: ServerFault, error: io::Error) -> ConnectFault {
        ConnectFault::Failed(fault, Arc::new(error))
    }

    /// A lack of descriptors or memory here is not the server's fault.
    fn from_io(error: io::Error) -> ConnectFault {
        if is_local_shortage(&error) {
            return ConnectFault::Full;
        }
        ConnectFault::with_cause(ServerFault::from_connect(&error), error)
    }

    /// The fault of the server; `None` if it is not to blame.
    pub fn server_fault(&self) -> Option<ServerFault> {
        match self {
            ConnectFault::Full => None,
            ConnectFault::TimedOut => Some(ServerFault::ConnectTimeout),
            ConnectFault::Failed(fault, _) => Some(*fault),
        }
    }
}

/// A socket to a server after its TLS handshake.
pub(super) struct DialledSocket {
    pub socket: ServerSocket,
    pub is_http2: bool,
    /// The [`address_tag`] of the peer.
    pub address: u32,
}

/// A connection that is ready for requests.
pub(super) enum NewConnection {
    Http1(Rc<Http1Connection>),
    Http2(Rc<Http2Connection>),
}

/// Connects with `protocol` within the server's connect timeout, which includes TLS and the HTTP/2 settings. The
/// `header` of the PROXY protocol comes first; it is empty for most servers.
///
/// # Errors
/// No address accepted the connection, or TLS or HTTP/2 failed on it.
pub(super) async fn open_connection(
    server: &Arc<Server>,
    protocol: ServerProtocol,
    header: &[u8],
) -> Result<NewConnection, ConnectFault> {
    let end = Instant::now() + server.connect_timeout;
    let opening = async {
        let DialledSocket { socket, is_http2, address } = dial_server(server, protocol, end, header).await?;
        if !is_http2 {
            return Ok(NewConnection::Http1(Http1Connection::new(socket, address)));
        }
        Http2Connection::from_socket(TokioIo::new(socket), server, address)
            .await
            .map(NewConnection::Http2)
            .map_err(|error| ConnectFault::with_cause(ServerFault::NoHttp2, error))
    };
    timeout_at(end, opening).await.map_err(|_elapsed| ConnectFault::TimedOut)?
}

/// Connects to the first address that accepts. The time left until `end` is shared evenly among the addresses left, so
/// that a silent one does not use up the time of the others. `header` is sent before TLS.
///
/// # Errors
/// The error of the last address.
pub(super) async fn dial_server(
    server: &Arc<Server>,
    protocol: ServerProtocol,
    end: Instant,
    header: &[u8],
) -> Result<DialledSocket, ConnectFault> {
    if let Some(path) = &server.unix_path {
        return dial_unix(path, protocol, end, header).await;
    }
    let unresolved = |error| ConnectFault::with_cause(ServerFault::NameNotFound, error);
    let addresses = server.resolve_addresses().await.map_err(unresolved)?;
    let mut fault = unresolved(io::ErrorKind::AddrNotAvailable.into());
    let mut untried = addresses.len() as u32;
    for address in addresses {
        let dialled = async {
            let mut stream = TcpStream::connect(address).await.map_err(ConnectFault::from_io)?;
            stream.set_nodelay(true).map_err(ConnectFault::from_io)?;
            stream.write_all(header).await.map_err(ConnectFault::from_io)?;
            let Some(tls) = &server.tls else {
                return Ok((ServerSocket::Plain(stream), protocol == ServerProtocol::Http2));
            };
            let connected = tls.connect_stream(stream, protocol == ServerProtocol::Http1).await;
            let (stream, is_http2) = connected.map_err(ConnectFault::from_io)?;
            if protocol == ServerProtocol::Http2 && !is_http2 {
                let error = io::Error::other("the server does not speak HTTP/2");
                return Err(ConnectFault::with_cause(ServerFault::NoHttp2, error));
            }
            Ok((ServerSocket::Tls(Box::new(stream)), is_http2))
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

/// Connects to the unix socket at `path`. TCP waits while the server's queue is full; a unix socket fails at once, so
/// it is tried again until `end`.
async fn dial_unix(
    path: &Path,
    protocol: ServerProtocol,
    end: Instant,
    header: &[u8],
) -> Result<DialledSocket, ConnectFault> {
    loop {
        match timeout_at(end, UnixStream::connect(path)).await {
            Ok(Ok(mut stream)) => {
                // A new socket has room for it.
                stream.write_all(header).await.map_err(ConnectFault::from_io)?;
                let socket = ServerSocket::Unix(stream);
                return Ok(DialledSocket { socket, is_http2: protocol == ServerProtocol::Http2, address: 0 });
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
