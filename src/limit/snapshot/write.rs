//! Writing a snapshot: beside the old one, and in its place only when it is whole and on the disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{BLOCK, Checksum, END, FILE_MAX, Holds, MAGIC, TABLE, VERSION};
use crate::base::clock::Now;
use crate::base::wall_clock::unix_ns;
use crate::limit::table::saved::KeptTable;

struct Sink {
    file: BufWriter<File>,
    checksum: Checksum,
    written: u64,
}

/// Replaces the file at `path` by one that holds the counters of `holder` now. `buffer` is room to work in.
///
/// # Errors
/// When the file cannot be written; the old one is as it was.
pub fn write(
    path: &Path,
    secret: [u8; 16],
    holder: &(impl Holds + ?Sized),
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let beside = beside(path);
    let _ = fs::remove_file(&beside);
    // It holds the secret, and a file of this name that another made is not written to.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = fill(file, secret, holder, buffer).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written?;
    File::open(folder(path))?.sync_all()
}

/// The folder that a path is in.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Writes a snapshot into `file`, as large as it gets.
///
/// # Errors
/// When it cannot be written.
pub fn fill(
    file: File,
    secret: [u8; 16],
    holder: &(impl Holds + ?Sized),
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let mut sink = Sink { file: BufWriter::new(file), checksum: Checksum::new(), written: 0 };
    let now = Now::read();
    sink.put(&MAGIC)?;
    sink.put(&VERSION.to_le_bytes())?;
    sink.put(&unix_ns().to_le_bytes())?;
    sink.put(&now.0.to_le_bytes())?;
    sink.put(&secret)?;
    for KeptTable { name, fingerprint, table } in holder.kept() {
        sink.put(&[TABLE])?;
        sink.put(&fingerprint.to_le_bytes())?;
        sink.put(&(name.len() as u32).to_le_bytes())?;
        sink.put(name.as_bytes())?;
        for block in 0..table.blocks() {
            buffer.clear();
            table.save(block, now, buffer);
            sink.put(&[BLOCK])?;
            sink.put(&(buffer.len() as u32).to_le_bytes())?;
            sink.put(buffer)?;
        }
    }
    sink.put(&[END])?;
    let checksum = sink.checksum.finish();
    sink.file.write_all(&checksum.to_le_bytes())?;
    sink.file.into_inner()?.sync_all()
}

impl Sink {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
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
