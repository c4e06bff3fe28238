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

use super::fd_channel::{Line, SOCKETS_MAX};
use super::new_process::{ADMIN, ALL, COUNTERS, READY, SERVING, SYSTEMD, TCP, UNIX, VARIABLE};
use super::sections::Sections;
use crate::limit::snapshot;
use crate::process::bind::{Site, Sockets};
use crate::proxy::gateway::{Gateway, Handover};

/// How long the new process may take to read its file.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take to serve with our counters: nobody is accepted meanwhile.
const LAST_STEP: Duration = Duration::from_secs(5);

/// Between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// What is handed over.
pub struct Estate {
    pub sites: Vec<(Site, Sockets)>,
    pub admin: Option<(SocketAddr, TcpListener)>,
}

/// A new process that is ready to serve. Dropped before it does, it is killed.
pub struct Heir {
    pid: u32,
    cradle: Arc<Cradle>,
    line: Line,
}

/// Where a new process is until it serves: it must not outlive us unseen when we are told to end meanwhile.
#[derive(Default)]
pub struct Cradle(Mutex<Cradled>);

#[derive(Default)]
enum Cradled {
    #[default]
    Nobody,
    Begins(Child),
    Serves,
    /// We end, and nobody shall follow.
    Closed,
}

/// Starts the program anew, in `cradle`, and waits until it is ready. Blocks.
///
/// # Errors
/// Why it is not; then it has ended.
pub fn start(estate: &Estate, cradle: Arc<Cradle>) -> Result<Heir, String> {
    let failed = |error: io::Error| format!("the new process cannot be started: {error}");
    if rustix::process::getpid().is_init() {
        return Err("this is process 1, with which its container or system ends".to_owned());
    }
    let (line, theirs) = Line::pair().map_err(failed)?;
    line.set_patience(PATIENCE).map_err(failed)?;
    let child = spawn(theirs).map_err(failed)?;
    let mut heir = Heir { pid: child.id(), cradle, line };
    heir.cradle.lay(child)?;
    match estate.send(&heir.line).and_then(|()| heir.hears(READY)) {
        Ok(()) => Ok(heir),
        Err(error) => Err(heir.why(&error, PATIENCE)),
    }
}

/// By the words it was started with itself: its path leads to the new program, where the old one was replaced.
fn spawn(line: OwnedFd) -> io::Result<Child> {
    let mut words = std::env::args_os();
    let program = words.next().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(words).env(VARIABLE, "1").stdin(Stdio::from(line));
    // The watchdog of systemd will be the new process's to feed.
    command.env_remove("WATCHDOG_PID").spawn()
}

/// What `gateway` knows, in memory: its counters, and beside them its sections.
///
/// # Errors
/// When there is no room.
pub fn known(gateway: &Arc<Gateway>) -> io::Result<[File; 2]> {
    let file = File::from(memfd_create("counters", MemfdFlags::CLOEXEC)?);
    let handover = Handover::of(gateway);
    snapshot::fill(file.try_clone()?, gateway.keys.secret(), &handover, &mut Vec::new())?;
    Ok([file, Sections::of(gateway)?.write()?])
}

// === impl Estate ===

impl Estate {
    fn send(&self, line: &Line) -> io::Result<()> {
        for (site, sockets) in &self.sites {
            let text = match site {
                Site::Tcp(address) => [TCP, address.to_string().as_bytes()].concat(),
                Site::Unix(path) => [UNIX, path.as_os_str().as_bytes()].concat(),
                Site::Systemd(name) => [SYSTEMD, name.as_bytes()].concat(),
            };
            let handles: Vec<BorrowedFd<'_>> = match sockets {
                Sockets::Tcp(all) => all.iter().map(AsFd::as_fd).collect(),
                Sockets::Unix(one, _) => vec![one.as_fd()],
            };
            for some in handles.chunks(SOCKETS_MAX) {
                line.send(&text, some)?;
            }
        }
        if let Some((address, listener)) = &self.admin {
            line.send(&[ADMIN, address.to_string().as_bytes()].concat(), &[listener.as_fd()])?;
        }
        line.send(ALL, &[])
    }
}

// === impl Heir ===

impl Heir {
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
        let handed = self.line.set_patience(LAST_STEP).and_then(|()| self.line.send(COUNTERS, &files));
        match handed.and_then(|()| self.hears(SERVING)) {
            Ok(()) if self.cradle.leave() => Ok(()),
            Ok(()) => Err("it was ended".to_owned()),
            Err(error) => Err(self.why(&error, LAST_STEP)),
        }
    }

    fn hears(&mut self, word: &[u8]) -> io::Result<()> {
        match self.line.receive()?.text == word {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// What happened to the new process, which is over afterwards.
    fn why(&mut self, error: &io::Error, patience: Duration) -> String {
        let Some(mut child) = self.cradle.take() else { return error.to_string() };
        // One that closed its end ends by itself, and tells by its exit code why.
        let ends = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        );
        if !ends || !has_ended(&mut child) {
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

impl Drop for Heir {
    fn drop(&mut self) {
        if let Some(child) = self.cradle.take() {
            end(child);
        }
    }
}

/// Waits for the process to end, but not for long. Blocks.
fn has_ended(child: &mut Child) -> bool {
    for _ in 0..LAST_STEP.as_millis() / PAUSE.as_millis() {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        std::thread::sleep(PAUSE);
    }
    false
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

// === impl Cradle ===

impl Cradle {
    /// # Errors
    /// When it is closed; then the process has ended.
    fn lay(&self, child: Child) -> Result<(), String> {
        let mut cradled = self.0.lock();
        if let Cradled::Closed = *cradled {
            end(child);
            return Err("the gateway ends".to_owned());
        }
        *cradled = Cradled::Begins(child);
        Ok(())
    }

    /// The process, unless it serves, or somebody ended it.
    fn take(&self) -> Option<Child> {
        let mut cradled = self.0.lock();
        match std::mem::take(&mut *cradled) {
            Cradled::Begins(child) => Some(child),
            other => {
                *cradled = other;
                None
            }
        }
    }

    /// The process lives by itself from now on; false when somebody ended it.
    fn leave(&self) -> bool {
        let mut cradled = self.0.lock();
        let begins = matches!(*cradled, Cradled::Begins(_));
        if begins {
            *cradled = Cradled::Serves;
        }
        begins
    }

    /// Ends a process that does not serve yet, and lets no other begin; true when one serves in our place.
    pub fn close(&self) -> bool {
        let mut cradled = self.0.lock();
        match std::mem::replace(&mut *cradled, Cradled::Closed) {
            Cradled::Begins(child) => {
                end(child);
                false
            }
            Cradled::Serves => true,
            Cradled::Nobody | Cradled::Closed => false,
        }
    }
}
