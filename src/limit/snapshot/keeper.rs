//! The thread that writes snapshots: every few seconds, and once more at the end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::Holds;
use super::write::write;
use crate::base::clock::Now;

/// Between two snapshots.
const EVERY: Duration = Duration::from_secs(5);
/// The pause after a snapshot is at least this many times what it took.
const PAUSE_FACTOR: u32 = 20;

/// Keeps the snapshot fresh until it is told to finish.
#[derive(Debug)]
pub struct Keeper {
    stop: SyncSender<()>,
    finished: Receiver<bool>,
    failure: LastFailure,
}

/// Why the last snapshot was not written; `None` = it was, or none was tried.
type LastFailure = Arc<Mutex<Option<String>>>;

impl Keeper {
    /// Starts the thread, which keeps the counters of whom `holder` answers at the time.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start<H: Holds>(
        path: PathBuf,
        secret: [u8; 16],
        holder: impl Fn() -> Arc<H> + Send + 'static,
    ) -> io::Result<Keeper> {
        let (stop, stopped) = sync_channel(1);
        let (finish, finished) = sync_channel(1);
        let mut buffer = Vec::new();
        let failure = LastFailure::default();
        let noted = failure.clone();
        let mut keep = move || {
            let written = write(&path, secret, &*holder(), &mut buffer);
            let is_written = written.is_ok();
            let now = written.err().map(|error| error.to_string());
            match (std::mem::replace(&mut *noted.lock(), now.clone()), now) {
                (None, Some(error)) => {
                    tracing::warn!(file = %path.display(), error, "the snapshot cannot be written");
                }
                (Some(_), None) => tracing::info!("the snapshot is written again"),
                _ => {}
            }
            is_written
        };
        std::thread::Builder::new().name("snapshot".to_owned()).spawn(move || {
            let mut pause = EVERY;
            let how = loop {
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    stop => break stop,
                }
                let start = Now::read();
                keep();
                pause = EVERY.max(Duration::from_nanos(Now::read().since(start)) * PAUSE_FACTOR);
            };
            // Nobody listens when the patience of `finish` is over.
            let _ = finish.send(how.is_ok() || keep());
        })?;
        Ok(Keeper { stop, finished, failure })
    }

    /// Why the last snapshot was not written; `None` = it was, or none was tried.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Stops without another snapshot: somebody else writes the file from now on.
    pub fn leave(self) {
        // A thread that ended writes nothing either.
        let _ = self.stop.send(());
        let _ = self.finished.recv();
    }

    /// Writes the last snapshot and returns when it is written, at the latest after `timeout`; false = it is not.
    pub fn finish(self, timeout: Duration) -> bool {
        drop(self.stop);
        self.finished.recv_timeout(timeout).unwrap_or(false)
    }
}
