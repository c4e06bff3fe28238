//! The interface to systemd: takes the sockets that it passes, and notifies it of the process's state.
//!
//! Sources: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).

use std::io;
use std::os::fd::AsFd;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;
use sd_notify::NotifyState;

use sluicegate_proxy::downstream::bind::{BindTarget, BoundSockets, OpenSockets};

/// The name of a socket without a name.
const UNNAMED: &str = "unknown";

/// Takes the sockets that were passed to this process, by name. Only the first call finds them; no other thread may
/// read or write the environment meanwhile.
///
/// # Errors
/// One is not a listening stream socket.
pub(super) fn take_passed_sockets() -> Result<OpenSockets, String> {
    let mut fds = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut open_sockets = OpenSockets::default();
    for index in 0..fds.len() {
        let name = names.next().filter(|name| !name.is_empty()).unwrap_or(UNNAMED);
        let sockets = take_socket(&mut fds, index)
            .map_err(|error| format!("cannot listen on systemd:{name}, which systemd passed: {error}"))?;
        if let Some(sockets) = sockets {
            open_sockets.add_sockets(BindTarget::Systemd(name.to_owned()), sockets);
        }
    }
    Ok(open_sockets)
}

fn take_socket(fds: &mut ListenFd, index: usize) -> io::Result<Option<BoundSockets>> {
    if let Ok(Some(listener)) = fds.take_tcp_listener(index) {
        check_listening(&listener)?;
        listener.set_nonblocking(true)?;
        return Ok(Some(BoundSockets::Tcp(vec![listener])));
    }
    let Some(listener) = fds.take_unix_listener(index)? else { return Ok(None) };
    check_listening(&listener)?;
    listener.set_nonblocking(true)?;
    Ok(Some(BoundSockets::Unix(listener, None)))
}

/// Rejects a socket that is only bound, or is a connection as with `Accept=yes`: nothing can be accepted there.
fn check_listening(socket: &impl AsFd) -> io::Result<()> {
    if socket_acceptconn(socket)? {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a listening socket"))
}

/// Notifies that the process serves, and from now on feeds the watchdog at half its timeout.
pub(super) fn notify_ready() {
    send_states(&[NotifyState::Ready]);
    if let Some(timeout) = sd_notify::watchdog_enabled() {
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(timeout / 2);
            loop {
                interval.tick().await;
                send_states(&[NotifyState::Watchdog]);
            }
        });
    }
}

pub(super) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send_states(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot read the clock for systemd"),
    }
}

/// Notifies of these states.
pub(super) fn send_states(states: &[NotifyState<'_>]) {
    // Without systemd this does nothing.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}
