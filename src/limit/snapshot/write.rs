//! Writing a snapshot: beside the old one, and in its place only when it is whole and on the disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{BLOCK_MARK, Checksum, END_MARK, FILE_MAX, MAGIC, SnapshotSource, TABLE_MARK, VERSION};
use crate::base::clock::Now;
use crate::base::wall_clock::unix_ns;
use crate::limit::table::persistent::SnapshotTable;

struct ChecksumWriter {
    file: BufWriter<File>,
    checksum: Checksum,
    written: u64,
}

/// Replaces the file at `path` by one that holds the counters of `holder` now. `buffer` is room to work in.
///
/// # Errors
/// When the file cannot be written; the old one is as it was.
pub fn write_snapshot(
    path: &Path,
    secret: [u8; 16],
    holder: &(impl SnapshotSource + ?Sized),
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let beside = temporary_path(path);
    let _ = fs::remove_file(&beside);
    // It holds the secret, and a file of this name that another made is not written to.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = write_tables(file, secret, holder, buffer).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written?;
    File::open(parent_folder(path))?.sync_all()
}

/// The folder that a path is in.
fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Writes a snapshot into `file`, as large as it gets.
///
/// # Errors
/// When it cannot be written.
pub fn write_tables(
    file: File,
    secret: [u8; 16],
    holder: &(impl SnapshotSource + ?Sized),
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let mut sink = ChecksumWriter { file: BufWriter::new(file), checksum: Checksum::new(), written: 0 };
    let now = Now::read_clock();
    sink.write_bytes(&MAGIC)?;
    sink.write_bytes(&VERSION.to_le_bytes())?;
    sink.write_bytes(&unix_ns().to_le_bytes())?;
    sink.write_bytes(&now.0.to_le_bytes())?;
    sink.write_bytes(&secret)?;
    for SnapshotTable { name, fingerprint, table } in holder.snapshot_tables() {
        sink.write_bytes(&[TABLE_MARK])?;
        sink.write_bytes(&fingerprint.to_le_bytes())?;
        sink.write_bytes(&(name.len() as u32).to_le_bytes())?;
        sink.write_bytes(name.as_bytes())?;
        for block in 0..table.block_count() {
            buffer.clear();
            table.encode_block(block, now, buffer);
            sink.write_bytes(&[BLOCK_MARK])?;
            sink.write_bytes(&(buffer.len() as u32).to_le_bytes())?;
            sink.write_bytes(buffer)?;
        }
    }
    sink.write_bytes(&[END_MARK])?;
    let checksum = sink.checksum.finish();
    sink.file.write_all(&checksum.to_le_bytes())?;
    sink.file.into_inner()?.sync_all()
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
