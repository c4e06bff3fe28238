//! The new process of an upgrade: receives the sockets and counters of the old process.
//!
//! The old process sends its sockets, then `all`. The new one sends `ready` when nothing can fail any more; the old one
//! stops judging and sends its `counters`; the new one sends `serving`.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use super::fd_channel::FdChannel;
use super::sections::HandoverSections;
use sluicegate_limit::snapshot::{self, SnapshotReader};
use sluicegate_proxy::downstream::bind::{BindTarget, BoundSockets, OpenSockets};

/// Marks a process as the new one of an upgrade.
pub(crate) const UPGRADE_VARIABLE: &str = "SLUICEGATE_UPGRADE";
/// Time for each step of the old process, which closes its connections gracefully and writes its counters, which may be
/// many.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// The kinds of packets.
pub(crate) const TCP: &[u8] = b"tcp ";
pub(crate) const UNIX: &[u8] = b"unix ";
/// Sockets that systemd passed to the old process.
pub(crate) const SYSTEMD: &[u8] = b"systemd ";
pub(crate) const ADMIN: &[u8] = b"admin ";
pub(crate) const ALL: &[u8] = b"all";
pub(crate) const READY: &[u8] = b"ready";
pub(crate) const COUNTERS: &[u8] = b"counters";
pub(crate) const SERVING: &[u8] = b"serving";

/// The sockets of the old process, and the channel to it.
pub(crate) struct ReceivedHandover {
    channel: FdChannel,
    pub sockets: OpenSockets,
    /// Files of unix sockets, which belong to the old process until this one serves.
    pub socket_files: Vec<PathBuf>,
    /// The admin listener, by its address in the old file.
    admin: Option<(SocketAddr, TcpListener)>,
}

impl ReceivedHandover {
    /// Receives the sockets of the old process; `None` = this start is not an upgrade.
    ///
    /// # Errors
    /// The old process does not send everything.
    pub(crate) fn receive_handover() -> Result<Option<ReceivedHandover>, String> {
        if std::env::var_os(UPGRADE_VARIABLE).is_none() {
            return Ok(None);
        }
        let Some(channel) = FdChannel::from_stdin() else { return Ok(None) };
        let as_text = |error: io::Error| format!("cannot take over from the old process: {error}");
        channel.set_timeout(STEP_TIMEOUT).map_err(as_text)?;
        let (sockets, socket_files) = (OpenSockets::default(), Vec::new());
        let mut handover = ReceivedHandover { channel, sockets, socket_files, admin: None };
        while !handover.receive_part().map_err(as_text)? {}
        Ok(Some(handover))
    }

    /// Receives one packet; true when it was the last.
    fn receive_part(&mut self) -> io::Result<bool> {
        let (text, sockets) = self.channel.receive_message()?;
        if text == ALL {
            return Ok(true);
        }
        if let Some(address) = text.strip_prefix(TCP) {
            let target = BindTarget::Tcp(parse_address(address)?);
            self.sockets
                .add_sockets(target, BoundSockets::Tcp(sockets.into_iter().map(TcpListener::from).collect()));
        } else if let Some(path) = text.strip_prefix(UNIX) {
            let path = PathBuf::from(OsStr::from_bytes(path));
            for socket in sockets {
                self.sockets
                    .add_sockets(BindTarget::Unix(path.clone()), BoundSockets::Unix(socket.into(), None));
            }
            self.socket_files.push(path);
        } else if let Some(name) = text.strip_prefix(SYSTEMD) {
            let name = String::from_utf8_lossy(name).into_owned();
            for socket in sockets {
                self.sockets.add_sockets(BindTarget::Systemd(name.clone()), tcp_or_unix(socket));
            }
        } else if let Some(address) = text.strip_prefix(ADMIN) {
            let listener = sockets.into_iter().next().map(TcpListener::from);
            self.admin = parse_address(address).ok().zip(listener);
        }
        // Packets of other versions may be unknown here and are skipped.
        Ok(false)
    }

    /// The admin listener, if its address is unchanged.
    pub(crate) fn take_admin(&mut self, address: SocketAddr) -> Option<TcpListener> {
        self.admin.take_if(|(theirs, _)| *theirs == address).map(|(_, listener)| listener)
    }

    /// Sends `ready`, and receives the counters of the old process, which judges no request from then on, and its
    /// sections; older releases send the counters alone. Without an answer counters start fresh: this process has the
    /// sockets and must serve.
    pub(crate) fn receive_counters(&self) -> (Option<SnapshotReader>, HandoverSections) {
        let lost = |reason: &str| tracing::warn!(reason, "the counters of the old process are lost");
        let received = self.channel.send_message(READY, &[]).and_then(|()| self.channel.receive_message());
        let mut files = match received {
            Ok((_, files)) => files.into_iter().map(File::from),
            Err(error) => {
                lost(&error.to_string());
                return Default::default();
            }
        };
        let counters = files.next().map(snapshot::read_handed_over).transpose();
        let counters = counters.inspect_err(|reason| lost(reason)).unwrap_or_default();
        let sections = files.next().map(HandoverSections::read_memfd).transpose();
        let sections = sections.unwrap_or_else(|error| {
            tracing::warn!(%error, "the old process's state of servers and limits is lost");
            None
        });
        (counters, sections.unwrap_or_default())
    }

    /// Sends `serving`.
    pub(crate) fn notify_serving(&self) {
        if let Err(error) = self.channel.send_message(SERVING, &[]) {
            tracing::warn!(%error, "the old process cannot be notified");
        }
    }
}

fn parse_address(address: &[u8]) -> io::Result<SocketAddr> {
    let text = std::str::from_utf8(address).ok().and_then(|text| text.parse().ok());
    text.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn tcp_or_unix(socket: OwnedFd) -> BoundSockets {
    let local = rustix::net::getsockname(&socket);
    let is_unix = local.is_ok_and(|address| address.address_family() == rustix::net::AddressFamily::UNIX);
    match is_unix {
        true => BoundSockets::Unix(UnixListener::from(socket), None),
        false => BoundSockets::Tcp(vec![TcpListener::from(socket)]),
    }
}
