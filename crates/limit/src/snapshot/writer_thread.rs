//! The thread that writes snapshots: every few seconds, and once more at the end.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::SnapshotSource;
use super::write::write_snapshot;
use sluicegate_base::clock::Now;

/// The pause between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after a snapshot is at least this many times the duration of writing it.
const PAUSE_FACTOR: u32 = 20;

/// The thread that keeps the snapshot fresh until it is stopped.
#[derive(Debug)]
pub struct SnapshotThread {
    stop: SyncSender<()>,
    finished: Receiver<bool>,
    last_fault: LastFault,
}

/// The reason why the last snapshot was not written; `None` = it was, or none was tried.
pub type LastFault = Arc<Mutex<Option<String>>>;

impl SnapshotThread {
    /// Starts the thread. Each snapshot holds the counters of the owner that `source` returns at that time, and its
    /// result is stored in `last_fault`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start<H: SnapshotSource>(
        path: PathBuf,
        secret: [u8; 16],
        source: impl Fn() -> Arc<H> + Send + 'static,
        last_fault: LastFault,
    ) -> io::Result<SnapshotThread> {
        let (stop, stopped) = sync_channel(1);
        let (finish, finished) = sync_channel(1);
        let mut buffer = Vec::new();
        *last_fault.lock() = None;
        let shared_fault = last_fault.clone();
        let mut write = move || {
            let written = write_snapshot(&path, secret, &*source(), &mut buffer);
            let is_written = written.is_ok();
            let fault = written.err().map(|error| error.to_string());
            match (std::mem::replace(&mut *shared_fault.lock(), fault.clone()), fault) {
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
            let stop = loop {
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    stop => break stop,
                }
                let start = Now::read_clock();
                write();
                pause = SNAPSHOT_INTERVAL
                    .max(Duration::from_nanos(Now::read_clock().ns_since(start)) * PAUSE_FACTOR);
            };
            // The receiver is gone if `finish_writing` has timed out.
            let _ = finish.send(stop.is_ok() || write());
        })?;
        Ok(SnapshotThread { stop, finished, last_fault })
    }

    /// The reason why the last snapshot was not written; `None` = it was, or none was tried.
    pub fn last_fault(&self) -> Option<String> {
        self.last_fault.lock().clone()
    }

    /// Stops without another snapshot: another process writes the file from now on.
    pub fn stop_unsaved(self) {
        // Fails only if the thread has ended, which is fine.
        let _ = self.stop.send(());
        let _ = self.finished.recv();
    }

    /// Writes the last snapshot and waits for it, at most `timeout`; returns whether it was written.
    pub fn finish_writing(self, timeout: Duration) -> bool {
        drop(self.stop);
        self.finished.recv_timeout(timeout).unwrap_or(false)
    }
}
