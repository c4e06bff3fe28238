//! Reading a file whole, but never more of it than allowed.

use std::cell::RefCell;
use std::fs::{File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rustix::fs::OFlags;

/// A file that the configuration names: always as it was understood last.
#[derive(Debug)]
pub struct NamedFile<T> {
    pub path: PathBuf,
    content: ArcSwap<T>,
    last_read: Mutex<LastRead>,
}

/// What was found when the file was looked at last.
#[derive(Debug, Clone, Copy)]
struct LastRead {
    stamp: Option<FileStamp>,
    digest: u64,
}

/// What a named file holds.
pub trait FileContent: Sized {
    const BYTES_MAX: u64;

    /// Understands the whole file, or says why not in a phrase that follows its name: "has no key".
    ///
    /// # Errors
    /// The phrase.
    fn parse(bytes: &[u8]) -> Result<Self, String>;
}

/// By what a changed file is noticed without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

impl<T: FileContent> NamedFile<T> {
    pub(crate) fn load_file(path: PathBuf) -> Result<NamedFile<T>, String> {
        // Looked at first: what is written from now on will be noticed.
        let stamp = read_stamp(&path);
        let bytes = read_capped(&path, T::BYTES_MAX)?;
        let content = ArcSwap::from_pointee(T::parse(&bytes)?);
        Ok(NamedFile { path, content, last_read: Mutex::new(LastRead { stamp, digest: hash_bytes(&bytes) }) })
    }

    /// What it held when it was understood last; a later look may see something newer.
    #[inline]
    pub fn content(&self) -> Guard<Arc<T>> {
        self.content.load()
    }

    /// Reads the file again if it seems to have changed; true when its content has. Whatever goes wrong, the
    /// content stays, and nothing is said again before the next change. Blocks on the disk.
    ///
    /// # Errors
    /// A phrase that follows the name of the file.
    pub fn reload_if_changed(&self) -> Result<bool, String> {
        let mut seen = self.last_read.lock();
        let stamp = read_stamp(&self.path);
        if stamp == seen.stamp {
            return Ok(false);
        }
        seen.stamp = stamp;
        let bytes = read_capped(&self.path, T::BYTES_MAX)?;
        let digest = hash_bytes(&bytes);
        if digest == seen.digest {
            return Ok(false);
        }
        self.content.store(Arc::new(T::parse(&bytes)?));
        seen.digest = digest;
        Ok(true)
    }
}

fn read_stamp(path: &Path) -> Option<FileStamp> {
    let of = |data: Metadata| FileStamp {
        inode: data.ino(),
        modified: (data.mtime(), data.mtime_nsec()),
        bytes: data.len(),
    };
    std::fs::metadata(path).ok().map(of)
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A file that was read, and what tells one content of it from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFingerprint {
    pub path: PathBuf,
    bytes_max: u64,
    digest: u64,
}

impl FileFingerprint {
    fn new(path: &Path, bytes_max: u64, read: &Result<Vec<u8>, String>) -> FileFingerprint {
        let digest = match read {
            Ok(bytes) => hash_bytes(bytes),
            // Not to be readable is a content too.
            Err(reason) => hash_bytes(reason.as_bytes()) ^ 1,
        };
        FileFingerprint { path: path.to_owned(), bytes_max, digest }
    }

    /// The file as it is now. Blocks on the disk.
    pub fn read_again(&self) -> FileFingerprint {
        FileFingerprint::new(&self.path, self.bytes_max, &read_bytes(&self.path, self.bytes_max))
    }
}

thread_local! {
    /// What this thread read since [`recorded`] began.
    static READ: RefCell<Option<Vec<FileFingerprint>>> = const { RefCell::new(None) };
}

/// Answers also which files `read` read, or could not read, each once: they are named in so many sections that handing
/// on a list would touch every reader.
pub(crate) fn record_reads<T>(read: impl FnOnce() -> T) -> (T, Vec<FileFingerprint>) {
    READ.set(Some(Vec::new()));
    let outcome = read();
    (outcome, READ.take().unwrap_or_default())
}

/// The bytes of `path`, or a phrase that follows its name: "does not exist", "is larger than 1 MiB".
pub(crate) fn read_capped(path: &Path, max: u64) -> Result<Vec<u8>, String> {
    let read = read_bytes(path, max);
    READ.with_borrow_mut(|known| {
        if let Some(known) = known
            && !known.iter().any(|known| known.path == path)
        {
            known.push(FileFingerprint::new(path, max, &read));
        }
    });
    read
}

/// Opens a regular file, and never waits: to open or to read a pipe waits for its writer, a device has no end.
fn open_regular(path: &Path) -> std::io::Result<File> {
    let regular = |data: Metadata| match data.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => Err(ErrorKind::IsADirectory.into()),
        _ => Err(ErrorKind::Unsupported.into()),
    };
    // Asked before as well: to open a device may do something to it, and to open a pipe releases its writer.
    std::fs::metadata(path).and_then(regular)?;
    let never_wait = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(never_wait).open(path)?;
    file.metadata().and_then(regular)?;
    Ok(file)
}

fn read_bytes(path: &Path, max: u64) -> Result<Vec<u8>, String> {
    let reason = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        ErrorKind::PermissionDenied => "may not be read by this user".to_owned(),
        ErrorKind::IsADirectory => "is a directory".to_owned(),
        ErrorKind::Unsupported => "is not a regular file".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let file = open_regular(path).map_err(reason)?;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(reason)?;
    if bytes.len() as u64 > max {
        return Err(match max >> 20 {
            0 => format!("is larger than {} KiB", max >> 10),
            mib => format!("is larger than {mib} MiB"),
        });
    }
    Ok(bytes)
}
