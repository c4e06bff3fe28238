//! Child processes that cannot outlive the benchmark.
//!
//! Every child is started through this program's own `launch` command: it pins itself to a core, asks the kernel for
//! SIGTERM when its parent dies, raises the limit of open files, and then *becomes* the wanted program. So its pid is
//! the program's own, no process stays behind even after a panic or a kill, and no `unsafe` is needed.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::CpuSet;

use crate::facts;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A running program, ended with all its children when dropped.
pub struct Child {
    inner: std::process::Child,
    log: PathBuf,
}

/// Starts `argv` on `core`; its output goes to the file `log`.
pub fn spawn(core: usize, argv: &[&str], log: &Path) -> Result<Child> {
    let out = File::create(log)?;
    let inner = launcher(core, argv)?.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).spawn()?;
    Ok(Child { inner, log: log.to_owned() })
}

/// Runs `argv` on `core` to its end and returns its output; an error when it takes longer than `limit`.
pub fn run(core: usize, argv: &[&str], limit: Duration) -> Result<Output> {
    let mut child =
        launcher(core, argv)?.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let end = facts::now() + u64::try_from(limit.as_nanos())?;
    while child.try_wait()?.is_none() {
        if facts::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(format!("{} did not end within {limit:?}", argv[0]).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child.wait_with_output()?)
}

fn launcher(core: usize, argv: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("launch").arg(core.to_string()).args(argv);
    Ok(command)
}

/// The `launch` command: turns this process into `argv`. Returns only if that failed.
pub fn launch(argv: &[String]) -> Result<()> {
    let [core, program, rest @ ..] = argv else { return Err("launch CORE PROGRAM …".into()) };
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    pin(core.parse()?)?;
    raise_open_files();
    Err(format!("{program}: {}", Command::new(program).args(rest).exec()).into())
}

/// Binds the calling thread (and what it starts later) to one core.
pub fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The cores this process may use.
pub fn cores() -> Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// The place of a benchmark: the measured program has a core for itself, load and backend share another.
pub struct Place {
    pub measured_core: usize,
    /// The core of this thread, too.
    pub load_core: usize,
    /// The folder for configurations and logs, empty at first.
    pub folder: PathBuf,
}

/// Chooses the cores, takes that of the load, and empties the folder `name`.
pub fn take_place(name: &str) -> Result<Place> {
    let cores = cores()?;
    let (Some(&measured_core), Some(&load_core)) = (cores.first(), cores.last()) else {
        return Err("no cores".into());
    };
    if measured_core == load_core {
        return Err("two cores are needed: one for the measured program, one for the load".into());
    }
    pin(load_core)?;
    raise_open_files();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(Place { measured_core, load_core, folder })
}

/// Lifts the soft limit of open files to the hard one and returns it.
pub fn raise_open_files() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let lifted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If that is denied, the soft limit applies.
    let _ = rustix::process::setrlimit(Resource::Nofile, lifted);
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// A loopback port that is free now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Child {
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// Waits until the program accepts connections on `port`; if it does not, the error includes its output.
    pub fn wait_port(&mut self, port: u16, limit: Duration) -> Result<()> {
        let end = facts::now() + u64::try_from(limit.as_nanos())?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        loop {
            if TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok() {
                return Ok(());
            }
            let ended = self.inner.try_wait()?;
            if ended.is_some() || facts::now() > end {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                let state = ended.map_or("does not listen".to_owned(), |status| format!("ended, {status}"));
                return Err(format!("{}: {state}\n{said}", self.log.display()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks the program to end and waits; `true` if it ended within `limit`.
    pub fn end(&mut self, signal: Signal, limit: Duration) -> bool {
        if let Ok(Some(_)) = self.inner.try_wait() {
            return true;
        }
        if let Some(pid) = i32::try_from(self.inner.id()).ok().and_then(Pid::from_raw) {
            // It may be gone already; the wait below detects that.
            let _ = rustix::process::kill_process(pid, signal);
        }
        for _ in 0..limit.as_millis() / 20 {
            if let Ok(Some(_)) = self.inner.try_wait() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let tree = facts::tree(self.inner.id());
        if self.end(Signal::TERM, Duration::from_secs(2)) {
            return;
        }
        for pid in tree.into_iter().filter_map(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw)) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = self.inner.wait();
    }
}
