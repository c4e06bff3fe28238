//! What systemd is to us: it may open our sockets before we start, and it wants to know how we are.
//!
//! Sources: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).

use std::io;
use std::os::fd::AsFd;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;
use sd_notify::NotifyState;

use super::bind::{Opened, Site, Sockets};

/// The name of a socket that was given none.
const UNNAMED: &str = "unknown";

/// The sockets that were passed to this process, by their names. Only the first call finds them, and it must come
/// while nobody else reads or writes the environment.
///
/// # Errors
/// When one is no listening stream socket.
pub fn passed() -> Result<Opened, String> {
    let mut fds = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut opened = Opened::default();
    for place in 0..fds.len() {
        let name = names.next().filter(|name| !name.is_empty()).unwrap_or(UNNAMED);
        let sockets = take(&mut fds, place)
            .map_err(|error| format!("cannot listen on systemd:{name}, which systemd passed: {error}"))?;
        if let Some(sockets) = sockets {
            opened.add(Site::Systemd(name.to_owned()), sockets);
        }
    }
    Ok(opened)
}

fn take(fds: &mut ListenFd, place: usize) -> io::Result<Option<Sockets>> {
    if let Ok(Some(listener)) = fds.take_tcp_listener(place) {
        check_listens(&listener)?;
        listener.set_nonblocking(true)?;
        return Ok(Some(Sockets::Tcp(vec![listener])));
    }
    let Some(listener) = fds.take_unix_listener(place)? else { return Ok(None) };
    check_listens(&listener)?;
    listener.set_nonblocking(true)?;
    Ok(Some(Sockets::Unix(listener, None)))
}

/// A socket may be bound and not listen, or be a connection, as with `Accept=yes`; nothing can be accepted there.
fn check_listens(socket: &impl AsFd) -> io::Result<()> {
    if socket_acceptconn(socket)? {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a listening socket"))
}

/// Says that we serve, and from now on that we are alive, as often as it was asked for.
pub fn ready() {
    tell(&[NotifyState::Ready]);
    if let Some(patience) = sd_notify::watchdog_enabled() {
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(patience / 2);
            loop {
                interval.tick().await;
                tell(&[NotifyState::Watchdog]);
            }
        });
    }
}

/// Says that another configuration is being taken over.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot tell systemd the time"),
    }
}

/// Says that this is over, whatever came of it.
pub fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// Says that another process goes on with our work.
pub fn main_is(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

/// Says that we finish what we have and end.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    // Without systemd this does nothing.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot tell systemd how we are");
    }
}
