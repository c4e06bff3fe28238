//! Binds listeners: one socket per worker for each TCP address, and one in all for a unix socket. Sockets passed by
//! systemd or by the previous process are used as they are.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use arc_swap::ArcSwap;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::downstream::listener_protocol::ListenerProtocol;
use sluicegate_http::net::bind_fault::describe_bind_error;
use sluicegate_model::{ListenAddress, ListenConfig, ListenerPurpose};

/// The kernel caps this at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listener on one address.
pub struct BoundListener {
    /// The address, path or systemd name that it was bound for.
    pub target: BindTarget,
    /// The address in the banner: `http://127.0.0.1:8080` or `unix:/path`.
    pub display_address: String,
    /// The open sockets, which are not yet given to workers.
    pub sockets: BoundSockets,
    /// The protocol of new connections; a swap changes it for connections accepted later.
    pub protocol: Arc<ArcSwap<ListenerProtocol>>,
}

/// The open sockets of one target.
pub enum BoundSockets {
    /// One per worker, or those that were passed to this process.
    Tcp(Vec<TcpListener>),
    /// One socket for all workers; without a guard, its file is not removed here.
    Unix(UnixListener, Option<SocketFileGuard>),
}

/// Removes the file of a unix socket when it is dropped.
pub struct SocketFileGuard(pub PathBuf);

impl SocketFileGuard {
    /// Keeps the file: another process listens on the socket.
    pub fn keep_file(self) {
        std::mem::forget(self);
    }
}

impl Drop for SocketFileGuard {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// One target to listen on, as configured; a bare port is two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindTarget {
    /// A TCP address with its port.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
    /// The sockets that systemd passed under this name.
    Systemd(String),
}

impl fmt::Display for BindTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindTarget::Tcp(address) => address.fmt(f),
            BindTarget::Unix(path) => write!(f, "unix:{}", path.display()),
            BindTarget::Systemd(name) => write!(f, "systemd:{name}"),
        }
    }
}

/// Sockets that are open already, by their target.
#[derive(Default)]
pub struct OpenSockets(Vec<(BindTarget, BoundSockets)>);

impl OpenSockets {
    /// Adds open sockets of a target, which may have others already.
    pub fn add_sockets(&mut self, target: BindTarget, sockets: BoundSockets) {
        self.0.push((target, sockets));
    }

    /// Further handles on the same sockets.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn clone_handles(&self) -> io::Result<OpenSockets> {
        let clone_entry =
            |(target, sockets): &(BindTarget, BoundSockets)| Ok((target.clone(), sockets.clone_handles()?));
        self.0.iter().map(clone_entry).collect::<io::Result<_>>().map(OpenSockets)
    }

    /// Takes all sockets that listen on `target`.
    pub fn take_sockets(&mut self, target: &BindTarget) -> Vec<BoundSockets> {
        self.0.extract_if(.., |(known, _)| known == target).map(|(_, sockets)| sockets).collect()
    }

    /// Drains the sockets that were not taken, with their targets.
    pub fn drain_all(&mut self) -> impl Iterator<Item = (BindTarget, BoundSockets)> {
        self.0.drain(..)
    }

    /// Closes all sockets except those of systemd, which it will not open again.
    pub fn retain_systemd(&mut self) {
        self.0.retain(|(target, _)| matches!(target, BindTarget::Systemd(_)));
    }

    /// Targets with sockets that were not taken.
    pub fn unused_targets(&self) -> impl Iterator<Item = &BindTarget> {
        self.0.iter().map(|(target, _)| target)
    }
}

/// Listens on all of `listen` for `workers` workers, and prefers the sockets in `open_sockets`.
///
/// # Errors
/// A sentence that names the address and the reason.
pub fn bind_listeners(
    listen: &[ListenConfig],
    workers: usize,
    open_sockets: &mut OpenSockets,
) -> Result<Vec<BoundListener>, String> {
    let mut bound = Vec::new();
    for entry in listen {
        let protocol = ListenerProtocol::new(entry, None)
            .map_err(|error| format!("cannot serve {}: {error}", entry.address))?;
        let found = match &entry.address {
            ListenAddress::Port(port) => {
                let v4 = bind_tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port)), workers, open_sockets)?;
                vec![bind_tcp_v6(*port, &v4, workers, open_sockets)?, v4]
            }
            ListenAddress::Address(address) => vec![bind_tcp(*address, workers, open_sockets)?],
            ListenAddress::Unix(path) => {
                let mut sockets = open_sockets.take_sockets(&BindTarget::Unix(path.clone()));
                if sockets.is_empty() {
                    sockets.push(bind_unix(path, entry.mode)?);
                }
                vec![sockets]
            }
            ListenAddress::Systemd(name) => vec![take_systemd(name, open_sockets)?],
        };
        for (target, all) in bind_targets(&entry.address).into_iter().zip(found) {
            for sockets in all {
                let display_address = sockets
                    .display_address(&protocol)
                    .map_err(|error| listen_error(&entry.address, &error))?;
                // A reload may keep only one of the two sockets of a bare port.
                let protocol = Arc::new(ArcSwap::from_pointee(protocol.for_another_socket()));
                bound.push(BoundListener { target: target.clone(), display_address, sockets, protocol });
            }
        }
    }
    Ok(bound)
}

/// The targets of an entry; for a bare port IPv6 comes first, which this machine may lack.
pub fn bind_targets(address: &ListenAddress) -> Vec<BindTarget> {
    match address {
        ListenAddress::Port(port) => vec![
            BindTarget::Tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port))),
            BindTarget::Tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port))),
        ],
        ListenAddress::Address(address) => vec![BindTarget::Tcp(*address)],
        ListenAddress::Unix(path) => vec![BindTarget::Unix(path.clone())],
        ListenAddress::Systemd(name) => vec![BindTarget::Systemd(name.clone())],
    }
}

fn listen_error(address: impl fmt::Display, why: impl fmt::Display) -> String {
    format!("cannot listen on {address}: {why}")
}

impl BoundSockets {
    /// Further handles on the same sockets.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn clone_handles(&self) -> io::Result<BoundSockets> {
        Ok(match self {
            BoundSockets::Tcp(all) => {
                BoundSockets::Tcp(all.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?)
            }
            BoundSockets::Unix(one, _) => BoundSockets::Unix(one.try_clone()?, None),
        })
    }

    /// The real address, for people.
    pub fn display_address(&self, protocol: &ListenerProtocol) -> io::Result<String> {
        let secure = protocol.tls.is_some();
        let scheme = match (protocol.terms.purpose(), secure) {
            (ListenerPurpose::Resp, true) => "rediss",
            (ListenerPurpose::Resp, false) => "redis",
            (_, true) => "https",
            (_, false) => "http",
        };
        match self {
            BoundSockets::Tcp(listeners) => {
                let first = listeners.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
                Ok(format!("{scheme}://{}", first.local_addr()?))
            }
            BoundSockets::Unix(listener, _) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().unwrap_or(Path::new("(unnamed)")).display();
                Ok(if secure { format!("unix:{path} with TLS") } else { format!("unix:{path}") })
            }
        }
    }

    fn port(&self) -> Option<u16> {
        match self {
            BoundSockets::Tcp(listeners) => Some(listeners.first()?.local_addr().ok()?.port()),
            BoundSockets::Unix(..) => None,
        }
    }
}

/// The sockets passed for this address, or new ones.
fn bind_tcp(
    address: SocketAddr,
    workers: usize,
    open_sockets: &mut OpenSockets,
) -> Result<Vec<BoundSockets>, String> {
    let sockets = open_sockets.take_sockets(&BindTarget::Tcp(address));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let sockets = open_tcp_sockets(address, workers)
        .map_err(|error| listen_error(address, describe_bind_error(address, &error)))?;
    Ok(vec![BoundSockets::Tcp(sockets)])
}

/// The IPv6 half of a bare port, on the same port as the IPv4 half. A machine without IPv6 serves without it.
fn bind_tcp_v6(
    port: u16,
    v4: &[BoundSockets],
    workers: usize,
    open_sockets: &mut OpenSockets,
) -> Result<Vec<BoundSockets>, String> {
    let sockets =
        open_sockets.take_sockets(&BindTarget::Tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let port = v4.first().and_then(BoundSockets::port).unwrap_or(port);
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match open_tcp_sockets(address, workers) {
        Ok(sockets) => Ok(vec![BoundSockets::Tcp(sockets)]),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(listen_error(address, describe_bind_error(address, &error)))
        }
        Err(error) => {
            tracing::debug!(%error, "not listening on IPv6");
            Ok(Vec::new())
        }
    }
}

fn open_tcp_sockets(mut address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    // SO_REUSEPORT would silently join the port of another gateway, so a plain bind is tried first.
    drop(open_tcp_socket(address, false)?);
    let mut sockets = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = open_tcp_socket(address, true)?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        // Port 0 is chosen once; the other workers join it.
        address = listener.local_addr()?;
        sockets.push(listener);
    }
    Ok(sockets)
}

fn open_tcp_socket(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
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

fn bind_unix(path: &Path, mode: Option<u32>) -> Result<BoundSockets, String> {
    let fail = |error: &io::Error| listen_error(BindTarget::Unix(path.to_owned()), error);
    // A socket file that refuses connections was left behind by a process that died. A file of any other type refuses
    // them as well, but is not ours to remove.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let left_behind = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(left_behind) {
        fs::remove_file(path).map_err(|error| fail(&error))?;
    }
    open_unix_socket(path, mode).map_err(|error| fail(&error))
}

/// Sets the mode of the file before a client can connect.
fn open_unix_socket(path: &Path, mode: Option<u32>) -> io::Result<BoundSockets> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file_guard = SocketFileGuard(path.to_owned());
    if let Some(mode) = mode {
        set_socket_mode(path, mode)?;
    }
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(BoundSockets::Unix(socket.into(), Some(file_guard)))
}

/// Sets the mode of a unix socket's file, and so its possible clients.
///
/// # Errors
/// The mode cannot be set, or the file is not a socket any more.
pub fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::other("the file is not a socket"));
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// The sockets that systemd passed under `name`.
fn take_systemd(name: &str, open_sockets: &mut OpenSockets) -> Result<Vec<BoundSockets>, String> {
    let sockets = open_sockets.take_sockets(&BindTarget::Systemd(name.to_owned()));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let names = open_sockets.unused_targets().filter_map(|target| match target {
        BindTarget::Systemd(name) => Some(name.as_str()),
        BindTarget::Tcp(_) | BindTarget::Unix(_) => None,
    });
    let names: Vec<&str> = names.collect();
    let others = match names.as_slice() {
        [] => "no other socket was passed to this process".to_owned(),
        names => format!("these were passed: {}", names.join(", ")),
    };
    Err(format!("cannot listen on systemd:{name}: systemd passed no socket of this name; {others}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen_entries(addresses: &[ListenAddress]) -> Vec<ListenConfig> {
        addresses.iter().cloned().map(ListenConfig::with_address).collect()
    }

    #[test]
    fn passed_sockets_are_used_in_place_of_new_ones() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = open.local_addr().unwrap();
        let mut open_sockets = OpenSockets::default();
        open_sockets.add_sockets(BindTarget::Tcp(address), BoundSockets::Tcp(vec![open]));
        let passed = TcpListener::bind("127.0.0.1:0").unwrap();
        let unused = TcpListener::bind("127.0.0.1:0").unwrap();
        open_sockets.add_sockets(BindTarget::Systemd("web".to_owned()), BoundSockets::Tcp(vec![passed]));
        open_sockets.add_sockets(BindTarget::Systemd("other".to_owned()), BoundSockets::Tcp(vec![unused]));
        let listen =
            listen_entries(&[ListenAddress::Address(address), ListenAddress::Systemd("web".to_owned())]);
        let bound = bind_listeners(&listen, 2, &mut open_sockets).unwrap();
        assert_eq!(bound[0].display_address, format!("http://{address}"));
        assert_eq!(bound.len(), 2);
        assert_eq!(
            open_sockets.unused_targets().map(ToString::to_string).collect::<Vec<_>>(),
            ["systemd:other"]
        );
        // Its socket was taken already.
        let why = bind_listeners(&listen[..1], 2, &mut open_sockets).err().unwrap();
        assert!(why.starts_with(&format!("cannot listen on {address}: ")), "{why}");
        let why = bind_listeners(&listen[1..], 2, &mut open_sockets).err().unwrap();
        assert!(why.ends_with("these were passed: other"), "{why}");
    }

    #[test]
    fn each_worker_gets_a_socket_of_its_own_on_one_port() {
        let listen = listen_entries(&[ListenAddress::Address(SocketAddr::from(([127, 0, 0, 1], 0)))]);
        let bound = bind_listeners(&listen, 3, &mut OpenSockets::default()).unwrap();
        let BoundSockets::Tcp(listeners) = &bound[0].sockets else { panic!("TCP") };
        let ports: Vec<u16> = listeners.iter().map(|one| one.local_addr().unwrap().port()).collect();
        assert!(ports.len() == 3 && ports.iter().all(|port| *port == ports[0] && *port != 0), "{ports:?}");
    }
}
