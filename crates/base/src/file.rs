//! Reads files up to a size limit, and notices their changes.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::glob::{self, GlobBounds};
use crate::value_hash::sha256;

/// A file that the configuration names, with its last valid content.
#[derive(Debug)]
pub struct NamedFile<T> {
    /// The path at which the file is read, and later checked for changes.
    pub path: PathBuf,
    parse: ParseFile<T>,
    content: ArcSwap<T>,
    last_read: Mutex<LastRead>,
}

/// The state of the file at the last check.
#[derive(Debug)]
struct LastRead {
    stamp: Option<FileStamp>,
    digest: FileDigest,
    /// Why it was not read again.
    fault: Option<String>,
}

/// The SHA-256 of a file's content.
type FileDigest = [u8; 32];

/// Parses a whole file; an error is a phrase that follows the file's name: "has no key".
pub type ParseFile<T> = fn(&[u8]) -> Result<T, String>;

/// The parsed content of a named file.
pub trait FileContent: Sized {
    /// The most bytes that the file may have; a larger one is an error.
    const BYTES_MAX: u64;

    /// The text to write instead of content that is wrong for `reason`; `None` if `reason` is not about it.
    fn suggest_content(reason: &str, name: &str) -> Option<String>;

    /// What is wrong with content that is good enough, a phrase that follows the file's name.
    fn warning(&self) -> Option<String> {
        None
    }
}

/// The metadata that shows a change without a read of the file: its inode, the time of its last change in seconds and
/// nanoseconds, and its length.
type FileStamp = (u64, i64, i64, u64);

impl<T: FileContent> NamedFile<T> {
    /// Reads the file at `path`, and parses it now and after each change; an error is a phrase that follows its name.
    pub fn load_file(path: PathBuf, parse: ParseFile<T>) -> Result<NamedFile<T>, String> {
        // Taken before the read, so that any later write is noticed.
        let stamp = read_stamp(&path);
        let bytes = read_capped(&path, T::BYTES_MAX)?;
        let content = ArcSwap::from_pointee(parse(&bytes)?);
        let last_read = Mutex::new(LastRead { stamp, digest: sha256(&bytes), fault: None });
        Ok(NamedFile { path, parse, content, last_read })
    }

    /// The last valid content; a later call may return a newer one.
    #[inline]
    pub fn content(&self) -> Guard<Arc<T>> {
        self.content.load()
    }

    /// Reads the file again if its metadata changed; returns true if its content did. After an error the old content
    /// stays, and the error is not repeated before the next change. Blocks on the disk.
    ///
    /// # Errors
    /// A phrase that follows the file's name.
    pub fn reload_if_changed(&self) -> Result<bool, String> {
        let mut seen = self.last_read.lock();
        let stamp = read_stamp(&self.path);
        if stamp == seen.stamp {
            return Ok(false);
        }
        seen.stamp = stamp;
        let read = self.read_again(&mut seen.digest);
        seen.fault = read.as_ref().err().cloned();
        read
    }

    fn read_again(&self, known: &mut FileDigest) -> Result<bool, String> {
        let bytes = read_capped(&self.path, T::BYTES_MAX)?;
        let digest = sha256(&bytes);
        if digest == *known {
            return Ok(false);
        }
        self.content.store(Arc::new((self.parse)(&bytes)?));
        *known = digest;
        Ok(true)
    }

    /// Why the file was not read again, or what is wrong with its content; a phrase that follows its name.
    pub fn trouble(&self) -> Option<String> {
        self.last_read.lock().fault.clone().or_else(|| self.content().warning())
    }
}

fn read_stamp(path: &Path) -> Option<FileStamp> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.ino(), data.mtime(), data.mtime_nsec(), data.len()))
}

/// A file that was read, with a digest of its content; or a folder that was searched, with one of what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFingerprint {
    /// The path of the file or the folder.
    pub path: PathBuf,
    /// The pattern that was searched for.
    pattern: Option<PathBuf>,
    bytes_max: u64,
    digest: FileDigest,
}

/// The bytes of a digest that people compare.
const SHORT_HASH_BYTES: usize = 6;

/// The first digits of the SHA-256 of `bytes`, as `sha256sum` writes it.
pub fn short_hash(bytes: &[u8]) -> String {
    sha256::<SHORT_HASH_BYTES>(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl FileFingerprint {
    fn new(path: &Path, bytes_max: u64, read: &Result<Vec<u8>, String>) -> FileFingerprint {
        let digest = match read {
            Ok(bytes) => sha256(bytes),
            // An unreadable file has a digest too, so that a repair shows as a change.
            Err(reason) => sha256(format!("unreadable: {reason}").as_bytes()),
        };
        FileFingerprint { path: path.to_owned(), pattern: None, bytes_max, digest }
    }

    /// The current state of the file or the folder. Blocks on the disk.
    pub fn read_again(&self) -> FileFingerprint {
        let read = match &self.pattern {
            None => read_bytes(&self.path, self.bytes_max),
            Some(pattern) => {
                Ok(list_found(&self.path, &find_included(&self.path, pattern, &mut { INCLUDE_BOUNDS })))
            }
        };
        let now = FileFingerprint::new(&self.path, self.bytes_max, &read);
        FileFingerprint { pattern: self.pattern.clone(), ..now }
    }
}

thread_local! {
    /// The files that this thread read since [`record_reads`] began, each once.
    static READ: RefCell<Option<(Vec<FileFingerprint>, HashSet<PathBuf>)>> = const { RefCell::new(None) };
}

/// Runs `read` and also returns each file that it read or failed to read, once. The files are recorded per thread,
/// because so many sections name files that passing a list on would touch every reader.
pub fn record_reads<T>(read: impl FnOnce() -> T) -> (T, Vec<FileFingerprint>) {
    READ.set(Some(Default::default()));
    let outcome = read();
    (outcome, READ.take().unwrap_or_default().0)
}

/// The bytes of `path`, or a phrase that follows its name: "does not exist", "is larger than 1 MiB".
pub fn read_capped(path: &Path, max: u64) -> Result<Vec<u8>, String> {
    let read = read_bytes(path, max);
    READ.with_borrow_mut(|known| {
        if let Some((known, paths)) = known
            && paths.insert(path.to_owned())
        {
            known.push(FileFingerprint::new(path, max, &read));
        }
    });
    read
}

/// The most files that the patterns of one file stand for, and names that are compared with them.
pub const INCLUDE_BOUNDS: GlobBounds = GlobBounds { matches_max: 10_000, names_left: 200_000 };

/// The paths below `folder` that fit `pattern`, by their bytes. What was found is recorded as a file that was read.
///
/// # Errors
/// A folder cannot be read, or there are too many files to look at.
pub fn find_included(folder: &Path, pattern: &Path, bounds: &mut GlobBounds) -> Result<Vec<PathBuf>, String> {
    let found = glob::find_files(folder, pattern, bounds, glob::compile_wildcards);
    READ.with_borrow_mut(|known| {
        if let Some((known, _)) = known {
            let listed = FileFingerprint::new(folder, 0, &Ok(list_found(folder, &found)));
            known.push(FileFingerprint { pattern: Some(pattern.to_owned()), ..listed });
        }
    });
    found
}

/// What was found, and where links lead.
fn list_found(folder: &Path, found: &Result<Vec<PathBuf>, String>) -> Vec<u8> {
    let resolve = |path: &PathBuf| (path.clone(), folder.join(path).canonicalize().ok());
    let found = found.as_ref().map(|paths| paths.iter().map(resolve).collect::<Vec<_>>());
    format!("{found:?}").into_bytes()
}

/// The place of a file that cannot be read, for the help of the message.
pub fn explain_path(folder: &Path, name: &Path) -> String {
    if name.is_absolute() {
        return "name a file that the user of the gateway may read".to_owned();
    }
    let tried = folder.join(name);
    let tried = std::path::absolute(&tried).unwrap_or(tried);
    format!("relative paths start at the folder of gateway.yaml: {} was tried", tried.display())
}

/// Opens a regular file without blocking: a pipe would wait for its writer, and a device may have no end.
pub fn open_regular(path: &Path) -> std::io::Result<File> {
    let regular = |data: Metadata| match data.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => Err(ErrorKind::IsADirectory.into()),
        _ => Err(ErrorKind::Unsupported.into()),
    };
    // Checked before the open too: opening a device may act on it, and opening a pipe releases its writer.
    std::fs::metadata(path).and_then(regular)?;
    let never_wait = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(never_wait).open(path)?;
    file.metadata().and_then(regular)?;
    Ok(file)
}

/// A phrase that follows the name of a file.
pub fn describe_failure(error: std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        ErrorKind::PermissionDenied => "may not be read by this user".to_owned(),
        ErrorKind::IsADirectory => "is a directory".to_owned(),
        ErrorKind::Unsupported => "is not a regular file".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

fn read_bytes(path: &Path, max: u64) -> Result<Vec<u8>, String> {
    read_at_most(open_regular(path).map_err(describe_failure)?, max)
}

/// The bytes of `source`, or a phrase that follows its name: "is larger than 1 MiB".
pub fn read_at_most(source: impl Read, max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    source.take(max + 1).read_to_end(&mut bytes).map_err(describe_failure)?;
    if bytes.len() as u64 > max {
        return Err(match max >> 20 {
            0 => format!("is larger than {} KiB", max >> 10),
            mib => format!("is larger than {mib} MiB"),
        });
    }
    Ok(bytes)
}
