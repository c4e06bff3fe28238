//! The old process of an upgrade (USR2): it starts the program anew, hands over its sockets and counters, and drains.
//!
//! No connection is refused meanwhile: both processes have the same listening sockets, so that who stands in their
//! queues is accepted by the one or by the other. See [`super::new_process`] for what is said.

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
use crate::limit::snapshot;
use crate::process::bind::{BindTarget, BoundSockets};
use crate::proxy::gateway::{Gateway, HandoverCounters};

/// How long the new process may take to read its file.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to serve with our counters: nobody is accepted meanwhile.
const SERVING_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two looks whether it has ended.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What is handed over.
pub struct HandoverSockets {
    pub sockets: Vec<(BindTarget, BoundSockets)>,
    pub admin: Option<(SocketAddr, TcpListener)>,
}

/// A new process that is ready to serve. Dropped before it does, it is killed.
pub struct Successor {
    pid: u32,
    pending: Arc<PendingChild>,
    channel: FdChannel,
}

/// Where a new process is until it serves: it must not outlive us unseen when we are told to end meanwhile.
#[derive(Default)]
pub struct PendingChild(Mutex<ChildState>);

#[derive(Default)]
enum ChildState {
    #[default]
    Absent,
    Starting(Child),
    Serving,
    /// We end, and nobody shall follow.
    Closed,
}

/// Starts the program anew, in `cradle`, and waits until it is ready. Blocks.
///
/// # Errors
/// Why it is not; then it has ended.
pub fn start_successor(estate: &HandoverSockets, cradle: Arc<PendingChild>) -> Result<Successor, String> {
    let failed = |error: io::Error| format!("the new process cannot be started: {error}");
    if rustix::process::getpid().is_init() {
        return Err("this is process 1, with which its container or system ends".to_owned());
    }
    let (line, theirs) = FdChannel::socket_pair().map_err(failed)?;
    line.set_timeout(READY_TIMEOUT).map_err(failed)?;
    let child = spawn_program(theirs).map_err(failed)?;
    let mut heir = Successor { pid: child.id(), pending: cradle, channel: line };
    heir.pending.put_child(child)?;
    match estate.send_sockets(&heir.channel).and_then(|()| heir.expect_message(READY)) {
        Ok(()) => Ok(heir),
        Err(error) => Err(heir.end_with_reason(&error, READY_TIMEOUT)),
    }
}

/// By the words it was started with itself: its path leads to the new program, where the old one was replaced.
fn spawn_program(line: OwnedFd) -> io::Result<Child> {
    let mut words = std::env::args_os();
    let program = words.next().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(words).env(UPGRADE_VARIABLE, "1").stdin(Stdio::from(line));
    // The watchdog of systemd will be the new process's to feed.
    command.env_remove("WATCHDOG_PID").spawn()
}

/// What `gateway` knows, in memory: its counters, and beside them its sections.
///
/// # Errors
/// When there is no room.
pub fn write_state(gateway: &Arc<Gateway>) -> io::Result<[File; 2]> {
    let file = File::from(memfd_create("counters", MemfdFlags::CLOEXEC)?);
    let handover = HandoverCounters::for_gateway(gateway);
    snapshot::write_tables(file.try_clone()?, gateway.keys.secret(), &handover, &mut Vec::new())?;
    Ok([file, HandoverSections::from_gateway(gateway)?.write_memfd()?])
}

// === impl Estate ===

impl HandoverSockets {
    fn send_sockets(&self, line: &FdChannel) -> io::Result<()> {
        for (site, sockets) in &self.sockets {
            let text = match site {
                BindTarget::Tcp(address) => [TCP, address.to_string().as_bytes()].concat(),
                BindTarget::Unix(path) => [UNIX, path.as_os_str().as_bytes()].concat(),
                BindTarget::Systemd(name) => [SYSTEMD, name.as_bytes()].concat(),
            };
            let handles: Vec<BorrowedFd<'_>> = match sockets {
                BoundSockets::Tcp(all) => all.iter().map(AsFd::as_fd).collect(),
                BoundSockets::Unix(one, _) => vec![one.as_fd()],
            };
            for some in handles.chunks(SOCKETS_MAX) {
                line.send_message(&text, some)?;
            }
        }
        if let Some((address, listener)) = &self.admin {
            line.send_message(&[ADMIN, address.to_string().as_bytes()].concat(), &[listener.as_fd()])?;
        }
        line.send_message(ALL, &[])
    }
}

// === impl Heir ===

impl Successor {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Hands `files` over, those of [`known`], and waits until the new process serves, which lives on by itself then.
    /// Blocks.
    ///
    /// # Errors
    /// Why it does not; then it has ended.
    pub fn hand_over(mut self, files: &[File]) -> Result<(), String> {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let handed = self
            .channel
            .set_timeout(SERVING_TIMEOUT)
            .and_then(|()| self.channel.send_message(COUNTERS, &files));
        match handed.and_then(|()| self.expect_message(SERVING)) {
            Ok(()) if self.pending.mark_serving() => Ok(()),
            Ok(()) => Err("it was ended".to_owned()),
            Err(error) => Err(self.end_with_reason(&error, SERVING_TIMEOUT)),
        }
    }

    fn expect_message(&mut self, word: &[u8]) -> io::Result<()> {
        match self.channel.receive_message()?.text == word {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// What happened to the new process, which is over afterwards.
    fn end_with_reason(&mut self, error: &io::Error, patience: Duration) -> String {
        let Some(mut child) = self.pending.take_child() else { return error.to_string() };
        // One that closed its end ends by itself, and tells by its exit code why.
        let ends = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        );
        if !ends || !wait_for_exit(&mut child) {
            let _ = child.kill();
        }
        match (error.kind(), child.wait()) {
            (_, Ok(status)) if ends => format!("the new process ended: {status}"),
            (io::ErrorKind::WouldBlock, _) => {
                format!("the new process said nothing for {} seconds", patience.as_secs())
            }
            _ => format!("the new process cannot be talked to: {error}"),
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

/// Waits for the process to end, but not for long. Blocks.
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

// === impl Cradle ===

impl PendingChild {
    /// # Errors
    /// When it is closed; then the process has ended.
    fn put_child(&self, child: Child) -> Result<(), String> {
        let mut cradled = self.0.lock();
        if let ChildState::Closed = *cradled {
            kill_child(child);
            return Err("the gateway ends".to_owned());
        }
        *cradled = ChildState::Starting(child);
        Ok(())
    }

    /// The process, unless it serves, or somebody ended it.
    fn take_child(&self) -> Option<Child> {
        let mut cradled = self.0.lock();
        match std::mem::take(&mut *cradled) {
            ChildState::Starting(child) => Some(child),
            other => {
                *cradled = other;
                None
            }
        }
    }

    /// The process lives by itself from now on; false when somebody ended it.
    fn mark_serving(&self) -> bool {
        let mut cradled = self.0.lock();
        let begins = matches!(*cradled, ChildState::Starting(_));
        if begins {
            *cradled = ChildState::Serving;
        }
        begins
    }

    /// Ends a process that does not serve yet, and lets no other begin; true when one serves in our place.
    pub fn close_for_good(&self) -> bool {
        let mut cradled = self.0.lock();
        match std::mem::replace(&mut *cradled, ChildState::Closed) {
            ChildState::Starting(child) => {
                kill_child(child);
                false
            }
            ChildState::Serving => true,
            ChildState::Absent | ChildState::Closed => false,
        }
    }
}
