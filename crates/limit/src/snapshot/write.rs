//! Writes a snapshot beside the old one, and replaces that only once the new one is complete and on disk. A thread
//! does so every few seconds, and once more at the end.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::{BLOCK_MARK, Checksum, END_MARK, FILE_MAX, MAGIC, SnapshotSource, TABLE_MARK, VERSION};
use crate::table::persistent::SnapshotTable;
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock::unix_ns;

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

struct ChecksumWriter {
    file: BufWriter<File>,
    checksum: Checksum,
    written: u64,
}

/// Replaces the file at `path` by one with the current counters of `source`. `buffer` is scratch space.
///
/// # Errors
/// The file cannot be written; the old one is unchanged then.
pub fn write_snapshot(
    path: &Path,
    secret: [u8; 16],
    source: &(impl SnapshotSource + ?Sized),
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let temporary = temporary_path(path);
    let _ = fs::remove_file(&temporary);
    // The file holds the secret, so a file of this name made by another process must not be written to.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = write_tables(file, secret, source, buffer).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Writes a snapshot into `file`.
///
/// # Errors
/// The file cannot be written, or the snapshot exceeds [`FILE_MAX`].
pub fn write_tables(
    file: File,
    secret: [u8; 16],
    source: &(impl SnapshotSource + ?Sized),
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let mut writer = ChecksumWriter { file: BufWriter::new(file), checksum: Checksum::new(), written: 0 };
    let now = Now::read_clock();
    let moments = [unix_ns(), now.0].map(u64::to_le_bytes).concat();
    writer.write_bytes(&[&MAGIC[..], &VERSION.to_le_bytes(), &moments, &secret].concat())?;
    for SnapshotTable { name, fingerprint, table } in source.snapshot_tables() {
        let length = (name.len() as u32).to_le_bytes();
        let head = [&[TABLE_MARK][..], &fingerprint.to_le_bytes(), &length, name.as_bytes()];
        writer.write_bytes(&head.concat())?;
        for block in 0..table.block_count() {
            buffer.clear();
            table.encode_block(block, now, buffer);
            writer.write_bytes(&[BLOCK_MARK])?;
            writer.write_bytes(&(buffer.len() as u32).to_le_bytes())?;
            writer.write_bytes(buffer)?;
        }
    }
    writer.write_bytes(&[END_MARK])?;
    let checksum = writer.checksum.finish();
    writer.file.write_all(&checksum.to_le_bytes())?;
    writer.file.into_inner()?.sync_all()
}

impl ChecksumWriter {
    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        if self.written > FILE_MAX || bytes.len() > u32::MAX as usize {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "there are too many counters for a snapshot",
            ));
        }
        self.checksum.write(bytes);
        self.file.write_all(bytes)
    }
}

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
