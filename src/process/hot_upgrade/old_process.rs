//! The old process of an upgrade: starts the new one, hands over its sockets and counters, and drains.
//!
//! No connection is refused meanwhile: both processes have the same listening sockets, so one of them accepts the
//! connections in the queues. [`super::new_process`] describes the protocol.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};

use super::fd_channel::{FdChannel, SOCKETS_MAX};
use super::new_process::{ADMIN, ALL, COUNTERS, READY, SERVING, SYSTEMD, TCP, UNIX, UPGRADE_VARIABLE};
use super::sections::HandoverSections;
use sluicegate_limit::snapshot;
use sluicegate_proxy::downstream::bind::{BindTarget, BoundSockets};
use sluicegate_proxy::gateway::{Gateway, HandoverCounters};

/// Time for the new process to read its file.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for it to serve with our counters; no connection is accepted meanwhile.
const SERVING_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between checks for its end.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The sockets to hand over: those of listeners, and that of the admin listener.
pub(crate) type HandoverSockets = (Vec<(BindTarget, BoundSockets)>, Option<(SocketAddr, TcpListener)>);

/// A new process that is ready to serve; dropping this before it serves kills it.
pub(crate) struct Successor {
    pub pid: u32,
    pending: Arc<PendingChild>,
    channel: FdChannel,
}

/// The new process until it serves. It must not outlive this process unseen if this one ends meanwhile.
#[derive(Default)]
pub(crate) struct PendingChild(Mutex<ChildState>);

#[derive(Default)]
enum ChildState {
    #[default]
    Absent,
    Starting(Child),
    Serving,
    /// This process ends; no new process may start.
    Closed,
}

/// Starts the new process, keeps it in `pending`, and waits until it is ready. Blocks.
///
/// # Errors
/// The reason why it is not ready; then it has ended.
pub(crate) fn start_successor(
    handover: &HandoverSockets,
    pending: Arc<PendingChild>,
) -> Result<Successor, String> {
    let failed = |error: io::Error| format!("the new process cannot be started: {error}");
    if rustix::process::getpid().is_init() {
        return Err("this is process 1, and its container or system ends with it".to_owned());
    }
    let (channel, theirs) = FdChannel::socket_pair().map_err(failed)?;
    channel.set_timeout(READY_TIMEOUT).map_err(failed)?;
    let child = spawn_program(theirs).map_err(failed)?;
    let mut successor = Successor { pid: child.id(), pending, channel };
    successor.pending.put_child(child)?;
    match send_sockets(handover, &successor.channel).and_then(|()| successor.expect_message(READY)) {
        Ok(()) => Ok(successor),
        Err(error) => Err(successor.end_with_reason(&error, READY_TIMEOUT)),
    }
}

/// Repeats the command channel of this process: its path leads to the new program if the old one was replaced.
fn spawn_program(channel: OwnedFd) -> io::Result<Child> {
    let mut args = std::env::args_os();
    let program = args.next().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(args).env(UPGRADE_VARIABLE, "1").stdin(Stdio::from(channel));
    // The new process will feed the watchdog of systemd.
    command.env_remove("WATCHDOG_PID").spawn()
}

/// Writes the state of `gateway` into memory: its counters and its sections, with the `history` as JSON.
///
/// # Errors
/// There is no memory.
pub(crate) fn write_state(gateway: &Arc<Gateway>, history: Vec<u8>) -> io::Result<[File; 2]> {
    let file = File::from(memfd_create("counters", MemfdFlags::CLOEXEC)?);
    let handover = HandoverCounters::for_gateway(gateway);
    snapshot::write_tables(file.try_clone()?, gateway.keys.secret(), &handover, &mut Vec::new())?;
    Ok([file, HandoverSections::from_gateway(gateway, history)?.write_memfd()?])
}

fn send_sockets((listeners, admin): &HandoverSockets, channel: &FdChannel) -> io::Result<()> {
    for (target, sockets) in listeners {
        let text = match target {
            BindTarget::Tcp(address) => [TCP, address.to_string().as_bytes()].concat(),
            BindTarget::Unix(path) => [UNIX, path.as_os_str().as_bytes()].concat(),
            BindTarget::Systemd(name) => [SYSTEMD, name.as_bytes()].concat(),
        };
        let handles: Vec<BorrowedFd<'_>> = match sockets {
            BoundSockets::Tcp(all) => all.iter().map(AsFd::as_fd).collect(),
            BoundSockets::Unix(one, _) => vec![one.as_fd()],
        };
        for some in handles.chunks(SOCKETS_MAX) {
            channel.send_message(&text, some)?;
        }
    }
    if let Some((address, listener)) = admin {
        channel.send_message(&[ADMIN, address.to_string().as_bytes()].concat(), &[listener.as_fd()])?;
    }
    channel.send_message(ALL, &[])
}

impl Successor {
    /// Hands over `files`, those of [`write_state`], and waits until the new process serves; from then on it runs
    /// independently. Blocks.
    ///
    /// # Errors
    /// The reason why it does not serve; then it has ended.
    pub(crate) fn hand_over(mut self, files: &[File]) -> Result<(), String> {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let handed = self
            .channel
            .set_timeout(SERVING_TIMEOUT)
            .and_then(|()| self.channel.send_message(COUNTERS, &files));
        match handed.and_then(|()| self.expect_message(SERVING)) {
            Ok(()) if self.pending.mark_serving() => Ok(()),
            Ok(()) => Err("it was terminated".to_owned()),
            Err(error) => Err(self.end_with_reason(&error, SERVING_TIMEOUT)),
        }
    }

    fn expect_message(&mut self, word: &[u8]) -> io::Result<()> {
        match self.channel.receive_message()?.0 == word {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Ends the new process, and returns the reason of the failure.
    fn end_with_reason(&mut self, error: &io::Error, timeout: Duration) -> String {
        let Some(mut child) = self.pending.take_child() else { return error.to_string() };
        // A process that closed its end exits by itself, and its exit code has the reason.
        let has_exited = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        );
        if !has_exited || !wait_for_exit(&mut child) {
            let _ = child.kill();
        }
        match (error.kind(), child.wait()) {
            (_, Ok(status)) if has_exited => format!("the new process ended: {status}"),
            (io::ErrorKind::WouldBlock, _) => {
                format!("the new process said nothing for {} seconds", timeout.as_secs())
            }
            _ => format!("cannot communicate with the new process: {error}"),
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(child) = self.pending.take_child() {
            kill_child(child);
        }
    }
}

/// Waits for the process to end, at most [`SERVING_TIMEOUT`]. Blocks.
fn wait_for_exit(child: &mut Child) -> bool {
    for _ in 0..SERVING_TIMEOUT.as_millis() / EXIT_POLL_INTERVAL.as_millis() {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        std::thread::sleep(EXIT_POLL_INTERVAL);
    }
    false
}

fn kill_child(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl PendingChild {
    /// Keeps `child` until it serves.
    ///
    /// # Errors
    /// This process is ending; then the child has ended.
    fn put_child(&self, child: Child) -> Result<(), String> {
        let mut state = self.0.lock();
        if let ChildState::Closed = *state {
            kill_child(child);
            return Err("the gateway is shutting down".to_owned());
        }
        *state = ChildState::Starting(child);
        Ok(())
    }

    /// Takes the process, unless it serves or has been ended.
    fn take_child(&self) -> Option<Child> {
        let mut state = self.0.lock();
        match std::mem::take(&mut *state) {
            ChildState::Starting(child) => Some(child),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Marks the process as independent; false when it has been ended.
    fn mark_serving(&self) -> bool {
        let mut state = self.0.lock();
        let begins = matches!(*state, ChildState::Starting(_));
        if begins {
            *state = ChildState::Serving;
        }
        begins
    }

    /// Ends a process that does not serve yet, and prevents any other; true when one serves in place of this one.
    pub(crate) fn close_for_good(&self) -> bool {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, ChildState::Closed) {
            ChildState::Starting(child) => {
                kill_child(child);
                false
            }
            ChildState::Serving => true,
            ChildState::Absent | ChildState::Closed => false,
        }
    }
}
