//! What systemd is to us: it may open our sockets before we start, and it wants to know how we are.
//!
//! Sources: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).

use std::io;
use std::os::fd::AsFd;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;
use sd_notify::NotifyState;

use super::bind::{BindTarget, BoundSockets, OpenSockets};

/// The name of a socket that was given none.
const UNNAMED: &str = "unknown";

/// The sockets that were passed to this process, by their names. Only the first call finds them, and it must come
/// while nobody else reads or writes the environment.
///
/// # Errors
/// When one is no listening stream socket.
pub fn take_passed_sockets() -> Result<OpenSockets, String> {
    let mut fds = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut opened = OpenSockets::default();
    for place in 0..fds.len() {
        let name = names.next().filter(|name| !name.is_empty()).unwrap_or(UNNAMED);
        let sockets = take_socket(&mut fds, place)
            .map_err(|error| format!("cannot listen on systemd:{name}, which systemd passed: {error}"))?;
        if let Some(sockets) = sockets {
            opened.add_sockets(BindTarget::Systemd(name.to_owned()), sockets);
        }
    }
    Ok(opened)
}

fn take_socket(fds: &mut ListenFd, place: usize) -> io::Result<Option<BoundSockets>> {
    if let Ok(Some(listener)) = fds.take_tcp_listener(place) {
        check_listening(&listener)?;
        listener.set_nonblocking(true)?;
        return Ok(Some(BoundSockets::Tcp(vec![listener])));
    }
    let Some(listener) = fds.take_unix_listener(place)? else { return Ok(None) };
    check_listening(&listener)?;
    listener.set_nonblocking(true)?;
    Ok(Some(BoundSockets::Unix(listener, None)))
}

/// A socket may be bound and not listen, or be a connection, as with `Accept=yes`; nothing can be accepted there.
fn check_listening(socket: &impl AsFd) -> io::Result<()> {
    if socket_acceptconn(socket)? {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a listening socket"))
}

/// Says that we serve, and from now on that we are alive, as often as it was asked for.
pub fn notify_ready() {
    send_states(&[NotifyState::Ready]);
    if let Some(patience) = sd_notify::watchdog_enabled() {
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(patience / 2);
            loop {
                interval.tick().await;
                send_states(&[NotifyState::Watchdog]);
            }
        });
    }
}

/// Says that another configuration is being taken over.
pub fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send_states(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot tell systemd the time"),
    }
}

/// Says that this is over, whatever came of it.
pub fn notify_reloaded() {
    send_states(&[NotifyState::Ready]);
}

/// Says that another process goes on with our work.
pub fn notify_main_pid(pid: u32) {
    send_states(&[NotifyState::MainPid(pid)]);
}

/// Says that we finish what we have and end.
pub fn notify_stopping() {
    send_states(&[NotifyState::Stopping]);
}

fn send_states(states: &[NotifyState<'_>]) {
    // Without systemd this does nothing.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot tell systemd how we are");
    }
}
