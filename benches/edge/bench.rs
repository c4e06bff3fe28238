//! What all proxies share: cores, backends and the folder of a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::child::{self, Child, Result};
use crate::{backend, large};

/// The resources shared by all proxies.
pub struct Bench {
    pub gateway: PathBuf,
    /// The folder for configurations and logs.
    pub folder: PathBuf,
    /// The backends: they answer with 128 bytes, a kibibyte and a mebibyte.
    pub backend_port: u16,
    pub small_port: u16,
    pub large_port: u16,
    pub proxy_core: usize,
    pub load_core: usize,
    /// The files that a process may have open.
    pub open_files: u64,
    _backends: [Child; 3],
}

const KIBIBYTE: usize = 1024;

impl Bench {
    /// Chooses the cores, empties the folder `name` and starts the backends.
    pub fn start(name: &str, gateway: PathBuf) -> Result<Bench> {
        let child::Place { measured_core: proxy_core, load_core, folder } = child::take_place(name)?;
        let (backend, backend_port) = start_backend("backend", load_core, &folder)?;
        let (small, small_port) = start_backend("small", load_core, &folder)?;
        let (large, large_port) = start_backend("large", load_core, &folder)?;
        let _backends = [backend, small, large];
        Ok(Bench {
            gateway,
            folder,
            backend_port,
            small_port,
            large_port,
            proxy_core,
            load_core,
            open_files: child::raise_open_files(),
            _backends,
        })
    }

    /// Removes the folder; the logs of a failed run, which are worth reading, stay.
    pub fn finish(self) -> Result<()> {
        Ok(std::fs::remove_dir_all(&self.folder)?)
    }
}

/// The commands that turn this program into a child process; `None` if `arguments` are options.
pub fn become_child(arguments: &[String]) -> Option<Result<()>> {
    let port = || -> Result<u16> { Ok(arguments.get(1).ok_or("a port?")?.parse()?) };
    match arguments.first().map(String::as_str) {
        Some("launch") => Some(child::launch(&arguments[1..])),
        Some("backend") => Some(port().and_then(|port| backend::serve(port, backend::BODY))),
        Some("small") => Some(port().and_then(|port| backend::serve(port, KIBIBYTE))),
        Some("large") => Some(port().and_then(large::serve)),
        _ => None,
    }
}

fn start_backend(kind: &str, core: usize, folder: &Path) -> Result<(Child, u16)> {
    let port = child::free_port()?;
    let itself = std::env::current_exe()?.display().to_string();
    let log = folder.join(format!("{kind}.log"));
    let mut child = child::spawn(core, &[&itself, kind, &port.to_string()], &log)?;
    child.wait_port(port, Duration::from_secs(5))?;
    Ok((child, port))
}
