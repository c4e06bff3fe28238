//! Binding: every worker gets a socket of its own for each TCP address; a unix socket has one.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Listen;

/// The kernel caps this at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// One address that is being listened on.
pub struct Bound {
    /// As it stands in the banner: `http://127.0.0.1:8080` or `unix:/path`.
    pub shown: String,
    pub sockets: Sockets,
}

pub enum Sockets {
    /// One for each worker.
    Tcp(Vec<TcpListener>),
    Unix(UnixListener, Unlink),
}

/// Removes a unix socket's file when the gateway ends.
pub struct Unlink(PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Binds all of `listen` for `workers` workers.
///
/// # Errors
/// A sentence that names the address and the reason.
pub fn bind(listen: &[Listen], workers: usize) -> Result<Vec<Bound>, String> {
    let mut bound = Vec::new();
    for entry in listen {
        match entry {
            Listen::Port(port) => {
                let v4 = tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port)), workers)?;
                // A machine without IPv6 is no reason not to serve; with it, both halves share one port.
                let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, v4.port()));
                match tcp_sockets(v6, workers) {
                    Ok(sockets) => bound.push(Bound::tcp(v6, sockets)),
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(cannot(v6, &error)),
                    Err(error) => tracing::debug!(%error, "not listening on IPv6"),
                }
                bound.push(v4.bound);
            }
            Listen::Address(address) => bound.push(tcp(*address, workers)?.bound),
            Listen::Unix(path) => bound.push(unix(path)?),
        }
    }
    Ok(bound)
}

fn cannot(address: impl std::fmt::Display, error: &io::Error) -> String {
    format!("cannot listen on {address}: {error}")
}

struct BoundTcp {
    bound: Bound,
    address: SocketAddr,
}

impl BoundTcp {
    fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Bound {
    fn tcp(address: SocketAddr, sockets: Vec<TcpListener>) -> Bound {
        Bound { shown: format!("http://{address}"), sockets: Sockets::Tcp(sockets) }
    }
}

fn tcp(address: SocketAddr, workers: usize) -> Result<BoundTcp, String> {
    let sockets = tcp_sockets(address, workers).map_err(|error| cannot(address, &error))?;
    let address = match sockets.first() {
        Some(first) => first.local_addr().map_err(|error| cannot(address, &error))?,
        None => address,
    };
    Ok(BoundTcp { bound: Bound::tcp(address, sockets), address })
}

fn tcp_sockets(mut address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    // SO_REUSEPORT would let us join another gateway's port unnoticed, so a plain bind is tried first.
    drop(tcp_socket(address, false)?);
    let mut sockets = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = tcp_socket(address, true)?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        // Port 0 is chosen once; the other workers join it.
        address = listener.local_addr()?;
        sockets.push(listener);
    }
    Ok(sockets)
}

fn tcp_socket(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn unix(path: &Path) -> Result<Bound, String> {
    let shown = format!("unix:{}", path.display());
    let fail = |error: &io::Error| cannot(&shown, error);
    // A socket file that nobody answers on was left behind by a process that died. Any other file is not ours to
    // remove, though connecting to it is refused alike.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let left_behind = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(left_behind) {
        fs::remove_file(path).map_err(|error| fail(&error))?;
    }
    let listener = UnixListener::bind(path).map_err(|error| fail(&error))?;
    listener.set_nonblocking(true).map_err(|error| fail(&error))?;
    Ok(Bound { shown, sockets: Sockets::Unix(listener, Unlink(path.to_owned())) })
}
