//! The thread that writes snapshots: every few seconds, and once more at the end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::SnapshotSource;
use super::write::write_snapshot;
use crate::base::clock::Now;

/// Between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after a snapshot is at least this many times what it took.
const PAUSE_FACTOR: u32 = 20;

/// Keeps the snapshot fresh until it is told to finish.
#[derive(Debug)]
pub struct SnapshotThread {
    stop: SyncSender<()>,
    finished: Receiver<bool>,
    last_fault: LastFault,
}

/// Why the last snapshot was not written; `None` = it was, or none was tried.
type LastFault = Arc<Mutex<Option<String>>>;

impl SnapshotThread {
    /// Starts the thread, which keeps the counters of whom `holder` answers at the time.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start<H: SnapshotSource>(
        path: PathBuf,
        secret: [u8; 16],
        holder: impl Fn() -> Arc<H> + Send + 'static,
    ) -> io::Result<SnapshotThread> {
        let (stop, stopped) = sync_channel(1);
        let (finish, finished) = sync_channel(1);
        let mut buffer = Vec::new();
        let failure = LastFault::default();
        let noted = failure.clone();
        let mut keep = move || {
            let written = write_snapshot(&path, secret, &*holder(), &mut buffer);
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
            let mut pause = SNAPSHOT_INTERVAL;
            let how = loop {
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    stop => break stop,
                }
                let start = Now::read_clock();
                keep();
                pause = SNAPSHOT_INTERVAL
                    .max(Duration::from_nanos(Now::read_clock().ns_since(start)) * PAUSE_FACTOR);
            };
            // Nobody listens when the patience of `finish` is over.
            let _ = finish.send(how.is_ok() || keep());
        })?;
        Ok(SnapshotThread { stop, finished, last_fault: failure })
    }

    /// Why the last snapshot was not written; `None` = it was, or none was tried.
    pub fn last_fault(&self) -> Option<String> {
        self.last_fault.lock().clone()
    }

    /// Stops without another snapshot: somebody else writes the file from now on.
    pub fn stop_unsaved(self) {
        // A thread that ended writes nothing either.
        let _ = self.stop.send(());
        let _ = self.finished.recv();
    }

    /// Writes the last snapshot and returns when it is written, at the latest after `timeout`; false = it is not.
    pub fn finish_writing(self, timeout: Duration) -> bool {
        drop(self.stop);
        self.finished.recv_timeout(timeout).unwrap_or(false)
    }
}
