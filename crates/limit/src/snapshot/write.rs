//! Writes a snapshot beside the old one, and replaces that only once the new one is complete and on disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{BLOCK_MARK, Checksum, END_MARK, FILE_MAX, MAGIC, SnapshotSource, TABLE_MARK, VERSION};
use crate::table::persistent::SnapshotTable;
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock::unix_ns;

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
    File::open(parent_folder(path))?.sync_all()
}

/// The folder of `path`; `.` if it names none.
fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
    writer.write_bytes(&MAGIC)?;
    writer.write_bytes(&VERSION.to_le_bytes())?;
    writer.write_bytes(&unix_ns().to_le_bytes())?;
    writer.write_bytes(&now.0.to_le_bytes())?;
    writer.write_bytes(&secret)?;
    for SnapshotTable { name, fingerprint, table } in source.snapshot_tables() {
        writer.write_bytes(&[TABLE_MARK])?;
        writer.write_bytes(&fingerprint.to_le_bytes())?;
        writer.write_bytes(&(name.len() as u32).to_le_bytes())?;
        writer.write_bytes(name.as_bytes())?;
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
