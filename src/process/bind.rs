//! Binding: every worker gets a socket of its own for each TCP address; a unix socket has one, and so has each that
//! somebody else opened for us.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::config::{ListenAddress, ListenConfig};
use crate::downstream::listener_protocol::ListenerProtocol;

/// The kernel caps this at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// One address that is being listened on.
pub struct BoundListener {
    pub target: BindTarget,
    /// As it stands in the banner: `http://127.0.0.1:8080` or `unix:/path`.
    pub display_address: String,
    pub sockets: BoundSockets,
    /// What connections begin with. Whoever puts another in changes it for those to come.
    pub protocol: Arc<ArcSwap<ListenerProtocol>>,
}

pub enum BoundSockets {
    /// One for each worker, or fewer that somebody else opened.
    Tcp(Vec<TcpListener>),
    Unix(UnixListener, Option<SocketFileGuard>),
}

/// Removes a unix socket's file when nobody listens on it any more.
pub struct SocketFileGuard(PathBuf);

impl SocketFileGuard {
    pub fn new(path: PathBuf) -> SocketFileGuard {
        SocketFileGuard(path)
    }

    /// Leaves the file: another process listens on the socket.
    pub fn keep_file(self) {
        std::mem::forget(self);
    }
}

impl Drop for SocketFileGuard {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What can be listened on, as it is written; a bare port is two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindTarget {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// Whatever systemd passed under this name.
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

/// Sockets that are open already, by what they listen on.
#[derive(Default)]
pub struct OpenSockets(Vec<(BindTarget, BoundSockets)>);

impl OpenSockets {
    pub fn add_sockets(&mut self, site: BindTarget, sockets: BoundSockets) {
        self.0.push((site, sockets));
    }

    /// More handles on the same sockets.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn clone_handles(&self) -> io::Result<OpenSockets> {
        let again =
            |(site, sockets): &(BindTarget, BoundSockets)| Ok((site.clone(), sockets.clone_handles()?));
        self.0.iter().map(again).collect::<io::Result<_>>().map(OpenSockets)
    }

    /// All that listen on `site`.
    pub fn take_sockets(&mut self, site: &BindTarget) -> Vec<BoundSockets> {
        self.0.extract_if(.., |(known, _)| known == site).map(|(_, sockets)| sockets).collect()
    }

    /// What nobody took, with its sites.
    pub fn drain_all(&mut self) -> impl Iterator<Item = (BindTarget, BoundSockets)> {
        self.0.drain(..)
    }

    /// Closes what somebody took the trouble to open, except what systemd will not open again.
    pub fn retain_systemd(&mut self) {
        self.0.retain(|(site, _)| matches!(site, BindTarget::Systemd(_)));
    }

    /// Sites that nobody took.
    pub fn unused_targets(&self) -> impl Iterator<Item = &BindTarget> {
        self.0.iter().map(|(site, _)| site)
    }
}

/// Listens on all of `listen` for `workers` workers, with the sockets of `opened` where there are some.
///
/// # Errors
/// A sentence that names the address and the reason.
pub fn bind_listeners(
    listen: &[ListenConfig],
    workers: usize,
    opened: &mut OpenSockets,
) -> Result<Vec<BoundListener>, String> {
    let mut bound = Vec::new();
    for entry in listen {
        let door = ListenerProtocol::new(entry, None)
            .map_err(|error| format!("cannot serve {}: {error}", entry.address))?;
        let secure = entry.tls.is_some();
        let mut add = |site: &BindTarget, sockets: BoundSockets| -> Result<(), String> {
            let shown =
                sockets.display_address(secure).map_err(|error| listen_error(&entry.address, &error))?;
            // Of the sockets of a bare port, a reload may keep one and not the other.
            let door = Arc::new(ArcSwap::from_pointee(door.for_another_socket()));
            bound.push(BoundListener {
                target: site.clone(),
                display_address: shown,
                sockets,
                protocol: door,
            });
            Ok(())
        };
        let sites = bind_targets(&entry.address);
        match &entry.address {
            ListenAddress::Port(port) => {
                let v4 = bind_tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port)), workers, opened)?;
                for sockets in bind_tcp_v6(*port, &v4, workers, opened)? {
                    add(&sites[0], sockets)?;
                }
                v4.into_iter().try_for_each(|sockets| add(&sites[1], sockets))?;
            }
            ListenAddress::Address(address) => {
                let all = bind_tcp(*address, workers, opened)?;
                all.into_iter().try_for_each(|sockets| add(&sites[0], sockets))?;
            }
            ListenAddress::Unix(path) => {
                let mut sockets = opened.take_sockets(&BindTarget::Unix(path.clone()));
                if sockets.is_empty() {
                    sockets.push(bind_unix(path, entry.mode)?);
                }
                sockets.into_iter().try_for_each(|sockets| add(&sites[0], sockets))?;
            }
            ListenAddress::Systemd(name) => {
                let all = take_systemd(name, opened)?;
                all.into_iter().try_for_each(|sockets| add(&sites[0], sockets))?;
            }
        }
    }
    Ok(bound)
}

/// What an entry listens on; of a bare port IPv6 comes first, and may be missing on this machine.
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

fn listen_error(address: impl fmt::Display, error: &io::Error) -> String {
    format!("cannot listen on {address}: {error}")
}

impl BoundSockets {
    /// More handles on the same sockets.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn clone_handles(&self) -> io::Result<BoundSockets> {
        Ok(match self {
            BoundSockets::Tcp(all) => {
                BoundSockets::Tcp(all.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?)
            }
            BoundSockets::Unix(one, _) => BoundSockets::Unix(one.try_clone()?, None),
        })
    }

    /// Where these really listen, for people.
    pub fn display_address(&self, secure: bool) -> io::Result<String> {
        let scheme = if secure { "https" } else { "http" };
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

/// Another's sockets for this address, or our own.
fn bind_tcp(
    address: SocketAddr,
    workers: usize,
    opened: &mut OpenSockets,
) -> Result<Vec<BoundSockets>, String> {
    let sockets = opened.take_sockets(&BindTarget::Tcp(address));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let own = open_tcp_sockets(address, workers).map_err(|error| listen_error(address, &error))?;
    Ok(vec![BoundSockets::Tcp(own)])
}

/// The other half of a bare port. A machine without IPv6 is no reason not to serve; with it, both halves share one
/// port.
fn bind_tcp_v6(
    port: u16,
    v4: &[BoundSockets],
    workers: usize,
    opened: &mut OpenSockets,
) -> Result<Vec<BoundSockets>, String> {
    let sockets = opened.take_sockets(&BindTarget::Tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let port = v4.first().and_then(BoundSockets::port).unwrap_or(port);
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match open_tcp_sockets(address, workers) {
        Ok(own) => Ok(vec![BoundSockets::Tcp(own)]),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(listen_error(address, &error)),
        Err(error) => {
            tracing::debug!(%error, "not listening on IPv6");
            Ok(Vec::new())
        }
    }
}

fn open_tcp_sockets(mut address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    // SO_REUSEPORT would let us join another gateway's port unnoticed, so a plain bind is tried first.
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
    // A socket file that nobody answers on was left behind by a process that died. Any other file is not ours to
    // remove, though connecting to it is refused alike.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let left_behind = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(left_behind) {
        fs::remove_file(path).map_err(|error| fail(&error))?;
    }
    open_unix_socket(path, mode).map_err(|error| fail(&error))
}

/// The file has its mode before anybody can connect.
fn open_unix_socket(path: &Path, mode: Option<u32>) -> io::Result<BoundSockets> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let unlink = SocketFileGuard(path.to_owned());
    if let Some(mode) = mode {
        set_socket_mode(path, mode)?;
    }
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(BoundSockets::Unix(socket.into(), Some(unlink)))
}

/// Sets who may connect to a unix socket.
///
/// # Errors
/// When it cannot be set, or the file is no socket any more.
pub fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::other("the file is no socket"));
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// What systemd passed under this name.
fn take_systemd(name: &str, opened: &mut OpenSockets) -> Result<Vec<BoundSockets>, String> {
    let sockets = opened.take_sockets(&BindTarget::Systemd(name.to_owned()));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let names = opened.unused_targets().filter_map(|site| match site {
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
    fn sockets_that_are_open_already_are_used_in_place_of_new_ones() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = open.local_addr().unwrap();
        let mut opened = OpenSockets::default();
        opened.add_sockets(BindTarget::Tcp(address), BoundSockets::Tcp(vec![open]));
        let passed = TcpListener::bind("127.0.0.1:0").unwrap();
        let unused = TcpListener::bind("127.0.0.1:0").unwrap();
        opened.add_sockets(BindTarget::Systemd("web".to_owned()), BoundSockets::Tcp(vec![passed]));
        opened.add_sockets(BindTarget::Systemd("other".to_owned()), BoundSockets::Tcp(vec![unused]));
        let listen =
            listen_entries(&[ListenAddress::Address(address), ListenAddress::Systemd("web".to_owned())]);
        let bound = bind_listeners(&listen, 2, &mut opened).unwrap();
        assert_eq!(bound[0].display_address, format!("http://{address}"));
        assert_eq!(bound.len(), 2);
        assert_eq!(opened.unused_targets().map(ToString::to_string).collect::<Vec<_>>(), ["systemd:other"]);
        // Nobody opened it for us a second time.
        let why = bind_listeners(&listen[..1], 2, &mut opened).err().unwrap();
        assert!(why.starts_with(&format!("cannot listen on {address}: ")), "{why}");
        let why = bind_listeners(&listen[1..], 2, &mut opened).err().unwrap();
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
