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

use crate::config::{Listen, ListenAddress};
use crate::downstream::listener_protocol::Door;

/// The kernel caps this at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// One address that is being listened on.
pub struct Bound {
    pub site: Site,
    /// As it stands in the banner: `http://127.0.0.1:8080` or `unix:/path`.
    pub shown: String,
    pub sockets: Sockets,
    /// What connections begin with. Whoever puts another in changes it for those to come.
    pub door: Arc<ArcSwap<Door>>,
}

pub enum Sockets {
    /// One for each worker, or fewer that somebody else opened.
    Tcp(Vec<TcpListener>),
    Unix(UnixListener, Option<Unlink>),
}

/// Removes a unix socket's file when nobody listens on it any more.
pub struct Unlink(PathBuf);

impl Unlink {
    pub fn new(path: PathBuf) -> Unlink {
        Unlink(path)
    }

    /// Leaves the file: another process listens on the socket.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unlink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What can be listened on, as it is written; a bare port is two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Site {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// Whatever systemd passed under this name.
    Systemd(String),
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Tcp(address) => address.fmt(f),
            Site::Unix(path) => write!(f, "unix:{}", path.display()),
            Site::Systemd(name) => write!(f, "systemd:{name}"),
        }
    }
}

/// Sockets that are open already, by what they listen on.
#[derive(Default)]
pub struct Opened(Vec<(Site, Sockets)>);

impl Opened {
    pub fn add(&mut self, site: Site, sockets: Sockets) {
        self.0.push((site, sockets));
    }

    /// More handles on the same sockets.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn again(&self) -> io::Result<Opened> {
        let again = |(site, sockets): &(Site, Sockets)| Ok((site.clone(), sockets.again()?));
        self.0.iter().map(again).collect::<io::Result<_>>().map(Opened)
    }

    /// All that listen on `site`.
    pub fn take(&mut self, site: &Site) -> Vec<Sockets> {
        self.0.extract_if(.., |(known, _)| known == site).map(|(_, sockets)| sockets).collect()
    }

    /// What nobody took, with its sites.
    pub fn drain(&mut self) -> impl Iterator<Item = (Site, Sockets)> {
        self.0.drain(..)
    }

    /// Closes what somebody took the trouble to open, except what systemd will not open again.
    pub fn keep_systemds(&mut self) {
        self.0.retain(|(site, _)| matches!(site, Site::Systemd(_)));
    }

    /// Sites that nobody took.
    pub fn left(&self) -> impl Iterator<Item = &Site> {
        self.0.iter().map(|(site, _)| site)
    }
}

/// Listens on all of `listen` for `workers` workers, with the sockets of `opened` where there are some.
///
/// # Errors
/// A sentence that names the address and the reason.
pub fn bind(listen: &[Listen], workers: usize, opened: &mut Opened) -> Result<Vec<Bound>, String> {
    let mut bound = Vec::new();
    for entry in listen {
        let door =
            Door::new(entry, None).map_err(|error| format!("cannot serve {}: {error}", entry.address))?;
        let secure = entry.tls.is_some();
        let mut add = |site: &Site, sockets: Sockets| -> Result<(), String> {
            let shown = sockets.shown(secure).map_err(|error| cannot(&entry.address, &error))?;
            // Of the sockets of a bare port, a reload may keep one and not the other.
            let door = Arc::new(ArcSwap::from_pointee(door.of_another_socket()));
            bound.push(Bound { site: site.clone(), shown, sockets, door });
            Ok(())
        };
        let sites = sites(&entry.address);
        match &entry.address {
            ListenAddress::Port(port) => {
                let v4 = tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port)), workers, opened)?;
                for sockets in tcp_v6(*port, &v4, workers, opened)? {
                    add(&sites[0], sockets)?;
                }
                v4.into_iter().try_for_each(|sockets| add(&sites[1], sockets))?;
            }
            ListenAddress::Address(address) => {
                let all = tcp(*address, workers, opened)?;
                all.into_iter().try_for_each(|sockets| add(&sites[0], sockets))?;
            }
            ListenAddress::Unix(path) => {
                let mut sockets = opened.take(&Site::Unix(path.clone()));
                if sockets.is_empty() {
                    sockets.push(unix(path, entry.mode)?);
                }
                sockets.into_iter().try_for_each(|sockets| add(&sites[0], sockets))?;
            }
            ListenAddress::Systemd(name) => {
                let all = passed(name, opened)?;
                all.into_iter().try_for_each(|sockets| add(&sites[0], sockets))?;
            }
        }
    }
    Ok(bound)
}

/// What an entry listens on; of a bare port IPv6 comes first, and may be missing on this machine.
pub fn sites(address: &ListenAddress) -> Vec<Site> {
    match address {
        ListenAddress::Port(port) => vec![
            Site::Tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port))),
            Site::Tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port))),
        ],
        ListenAddress::Address(address) => vec![Site::Tcp(*address)],
        ListenAddress::Unix(path) => vec![Site::Unix(path.clone())],
        ListenAddress::Systemd(name) => vec![Site::Systemd(name.clone())],
    }
}

fn cannot(address: impl fmt::Display, error: &io::Error) -> String {
    format!("cannot listen on {address}: {error}")
}

impl Sockets {
    /// More handles on the same sockets.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn again(&self) -> io::Result<Sockets> {
        Ok(match self {
            Sockets::Tcp(all) => {
                Sockets::Tcp(all.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?)
            }
            Sockets::Unix(one, _) => Sockets::Unix(one.try_clone()?, None),
        })
    }

    /// Where these really listen, for people.
    pub fn shown(&self, secure: bool) -> io::Result<String> {
        let scheme = if secure { "https" } else { "http" };
        match self {
            Sockets::Tcp(listeners) => {
                let first = listeners.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
                Ok(format!("{scheme}://{}", first.local_addr()?))
            }
            Sockets::Unix(listener, _) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().unwrap_or(Path::new("(unnamed)")).display();
                Ok(if secure { format!("unix:{path} with TLS") } else { format!("unix:{path}") })
            }
        }
    }

    fn port(&self) -> Option<u16> {
        match self {
            Sockets::Tcp(listeners) => Some(listeners.first()?.local_addr().ok()?.port()),
            Sockets::Unix(..) => None,
        }
    }
}

/// Another's sockets for this address, or our own.
fn tcp(address: SocketAddr, workers: usize, opened: &mut Opened) -> Result<Vec<Sockets>, String> {
    let sockets = opened.take(&Site::Tcp(address));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let own = tcp_sockets(address, workers).map_err(|error| cannot(address, &error))?;
    Ok(vec![Sockets::Tcp(own)])
}

/// The other half of a bare port. A machine without IPv6 is no reason not to serve; with it, both halves share one
/// port.
fn tcp_v6(port: u16, v4: &[Sockets], workers: usize, opened: &mut Opened) -> Result<Vec<Sockets>, String> {
    let sockets = opened.take(&Site::Tcp(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let port = v4.first().and_then(Sockets::port).unwrap_or(port);
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match tcp_sockets(address, workers) {
        Ok(own) => Ok(vec![Sockets::Tcp(own)]),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(cannot(address, &error)),
        Err(error) => {
            tracing::debug!(%error, "not listening on IPv6");
            Ok(Vec::new())
        }
    }
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

fn unix(path: &Path, mode: Option<u32>) -> Result<Sockets, String> {
    let fail = |error: &io::Error| cannot(Site::Unix(path.to_owned()), error);
    // A socket file that nobody answers on was left behind by a process that died. Any other file is not ours to
    // remove, though connecting to it is refused alike.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let left_behind = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(left_behind) {
        fs::remove_file(path).map_err(|error| fail(&error))?;
    }
    unix_socket(path, mode).map_err(|error| fail(&error))
}

/// The file has its mode before anybody can connect.
fn unix_socket(path: &Path, mode: Option<u32>) -> io::Result<Sockets> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let unlink = Unlink(path.to_owned());
    if let Some(mode) = mode {
        set_mode(path, mode)?;
    }
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(Sockets::Unix(socket.into(), Some(unlink)))
}

/// Sets who may connect to a unix socket.
///
/// # Errors
/// When it cannot be set, or the file is no socket any more.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::other("the file is no socket"));
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// What systemd passed under this name.
fn passed(name: &str, opened: &mut Opened) -> Result<Vec<Sockets>, String> {
    let sockets = opened.take(&Site::Systemd(name.to_owned()));
    if !sockets.is_empty() {
        return Ok(sockets);
    }
    let names = opened.left().filter_map(|site| match site {
        Site::Systemd(name) => Some(name.as_str()),
        Site::Tcp(_) | Site::Unix(_) => None,
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

    fn at(addresses: &[ListenAddress]) -> Vec<Listen> {
        addresses.iter().cloned().map(Listen::plain).collect()
    }

    #[test]
    fn sockets_that_are_open_already_are_used_in_place_of_new_ones() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = open.local_addr().unwrap();
        let mut opened = Opened::default();
        opened.add(Site::Tcp(address), Sockets::Tcp(vec![open]));
        let passed = TcpListener::bind("127.0.0.1:0").unwrap();
        let unused = TcpListener::bind("127.0.0.1:0").unwrap();
        opened.add(Site::Systemd("web".to_owned()), Sockets::Tcp(vec![passed]));
        opened.add(Site::Systemd("other".to_owned()), Sockets::Tcp(vec![unused]));
        let listen = at(&[ListenAddress::Address(address), ListenAddress::Systemd("web".to_owned())]);
        let bound = bind(&listen, 2, &mut opened).unwrap();
        assert_eq!(bound[0].shown, format!("http://{address}"));
        assert_eq!(bound.len(), 2);
        assert_eq!(opened.left().map(ToString::to_string).collect::<Vec<_>>(), ["systemd:other"]);
        // Nobody opened it for us a second time.
        let why = bind(&listen[..1], 2, &mut opened).err().unwrap();
        assert!(why.starts_with(&format!("cannot listen on {address}: ")), "{why}");
        let why = bind(&listen[1..], 2, &mut opened).err().unwrap();
        assert!(why.ends_with("these were passed: other"), "{why}");
    }

    #[test]
    fn each_worker_gets_a_socket_of_its_own_on_one_port() {
        let listen = at(&[ListenAddress::Address(SocketAddr::from(([127, 0, 0, 1], 0)))]);
        let bound = bind(&listen, 3, &mut Opened::default()).unwrap();
        let Sockets::Tcp(listeners) = &bound[0].sockets else { panic!("TCP") };
        let ports: Vec<u16> = listeners.iter().map(|one| one.local_addr().unwrap().port()).collect();
        assert!(ports.len() == 3 && ports.iter().all(|port| *port == ports[0] && *port != 0), "{ports:?}");
    }
}
