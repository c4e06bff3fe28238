//! Reading a snapshot: nothing of a file is believed before all of it is checked, and no file is fatal.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{BLOCK, CHECKSUM, Checksum, END, FILE_MAX, Holds, MAGIC, TABLE, VERSION};
use crate::base::clock::{Now, Shift};
use crate::base::wall_clock::unix_ns;
use crate::limit::table::saved::{Kept, KeptTable};

/// A snapshot that is whole, read up to its counters.
pub struct Found<F = File> {
    /// What its keys were hashed with.
    pub secret: [u8; 16],
    path: PathBuf,
    shift: Shift,
    now: Now,
    file: BufReader<F>,
}

/// Why a file is not taken over.
pub(super) type Unusable = String;

/// A table that a snapshot may know.
struct Waiting<'a> {
    table: KeptTable<'a>,
    found: bool,
}

/// The snapshot at `path`, if there is one. One that cannot be used is told to the log and left alone.
pub fn find(path: &Path) -> Option<Found> {
    match open(path, unix_ns(), Now::read()) {
        Ok(found) => found,
        Err(reason) => {
            tracing::warn!(file = %path.display(), reason, "the snapshot is ignored: counters start fresh");
            None
        }
    }
}

/// The snapshot that another process wrote into `file`.
///
/// # Errors
/// Why it cannot be used.
pub fn within(mut file: File) -> Result<Found, String> {
    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    examine(Path::new("(handed over)"), file, length, unix_ns(), Now::read())
}

/// Opens and checks the file; `None` = there is none. `wall_ns` and `now` are the same moment.
pub(super) fn open(path: &Path, wall_ns: u64, now: Now) -> Result<Option<Found>, Unusable> {
    // Looked at before it is opened: to open a device may do something to it.
    let about = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        about => about.map_err(unreadable)?,
    };
    if !about.is_file() {
        return Err("it is not a file".to_owned());
    }
    let never_wait = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(never_wait).open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if !about.is_file() {
        return Err("it is not a file".to_owned());
    }
    let length = about.len();
    if length > FILE_MAX {
        return Err(format!("it is larger than {FILE_MAX} bytes"));
    }
    examine(path, file, length, wall_ns, now).map(Some)
}

/// Checks a file of `length` bytes, whatever keeps it.
pub(super) fn examine<F: Read + Seek>(
    path: &Path,
    file: F,
    length: u64,
    wall_ns: u64,
    now: Now,
) -> Result<Found<F>, Unusable> {
    let mut file = BufReader::new(file);
    let foreign = |_| "it is no snapshot of counters".to_owned();
    if read::<8>(&mut file).map_err(foreign)? != MAGIC {
        return Err(foreign(ErrorKind::InvalidData.into()));
    }
    let version = u32::from_le_bytes(read(&mut file).map_err(damaged)?);
    if version != VERSION {
        return Err(format!("it is of version {version}, and this program reads version {VERSION}"));
    }
    check(&mut file, length)?;
    let wall_then = u64::from_le_bytes(read(&mut file).map_err(damaged)?);
    let then = Now(u64::from_le_bytes(read(&mut file).map_err(damaged)?));
    let secret = read(&mut file).map_err(damaged)?;
    let shift = Shift::new(then, wall_ns.saturating_sub(wall_then), now);
    Ok(Found { secret, path: path.to_owned(), shift, now, file })
}

/// Compares the checksum of the whole file, and goes back to where it was.
fn check(file: &mut (impl Read + Seek), length: u64) -> Result<(), Unusable> {
    let back = file.stream_position().map_err(unreadable)?;
    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    let covered =
        length.checked_sub(CHECKSUM as u64).ok_or_else(|| damaged(ErrorKind::UnexpectedEof.into()))?;
    let mut checksum = Checksum::new();
    let (mut piece, mut left) = (vec![0; 1 << 16], covered);
    while left > 0 {
        let piece = &mut piece[..left.min(1 << 16) as usize];
        file.read_exact(piece).map_err(damaged)?;
        checksum.write(piece);
        left -= piece.len() as u64;
    }
    if checksum.finish() != u64::from_le_bytes(read(file).map_err(damaged)?) {
        return Err("it is damaged: its checksum is wrong".to_owned());
    }
    file.seek(SeekFrom::Start(back)).map_err(unreadable).map(drop)
}

impl<F: Read> Found<F> {
    /// Puts the counters into `holder`, which nobody may use yet. What is counted otherwise now starts fresh.
    pub fn restore(mut self, holder: &(impl Holds + ?Sized)) {
        let waiting = |table| Waiting { table, found: false };
        let mut tables: Vec<Waiting<'_>> = holder.kept().into_iter().map(waiting).collect();
        let mut changed = Vec::new();
        match self.pieces(&mut tables, &mut changed) {
            Ok(0) => {}
            Ok(left_out) => tracing::warn!(left_out, "keys of the snapshot found no room under max_keys"),
            Err(reason) => {
                let file = self.path.display();
                tracing::warn!(%file, reason, "the snapshot was taken over in part");
            }
        }
        changed.retain(|name| tables.iter().any(|waiting| waiting.table.name == name && !waiting.found));
        changed.sort_unstable();
        changed.dedup();
        for limit in changed {
            tracing::warn!(limit, "the limit is not what the snapshot knows: what changed starts fresh");
        }
    }

    /// Reads to the end. Answers how many keys found no room; `changed` are names of tables that nobody knows.
    fn pieces(&mut self, tables: &mut [Waiting<'_>], changed: &mut Vec<String>) -> Result<usize, Unusable> {
        let mut left_out = 0;
        let mut table: Option<&dyn Kept> = None;
        loop {
            match read(&mut self.file).map_err(damaged)? {
                [END] => return Ok(left_out),
                [TABLE] => {
                    let fingerprint = u64::from_le_bytes(read(&mut self.file).map_err(damaged)?);
                    let name =
                        String::from_utf8(self.text()?).map_err(|_| "a name in it is no text".to_owned())?;
                    let known = tables.iter_mut().find(|Waiting { table, found }| {
                        !found && table.name == name && table.fingerprint == fingerprint
                    });
                    table = match known {
                        Some(waiting) => {
                            waiting.found = true;
                            Some(waiting.table.table)
                        }
                        None => {
                            changed.push(name);
                            None
                        }
                    };
                }
                [BLOCK] => {
                    let block = self.text()?;
                    if let Some(table) = table {
                        let restored = table.restore(&block, self.shift, self.now);
                        left_out += restored.ok_or("it does not hold what it should")?;
                    }
                }
                _ => return Err("it does not hold what it should".to_owned()),
            }
        }
    }

    /// Bytes behind their length; no more is allocated than the file really has.
    fn text(&mut self) -> Result<Vec<u8>, Unusable> {
        let length = u32::from_le_bytes(read(&mut self.file).map_err(damaged)?);
        let mut bytes = Vec::new();
        let got = (&mut self.file).take(length.into()).read_to_end(&mut bytes).map_err(unreadable)?;
        if got == length as usize { Ok(bytes) } else { Err(damaged(ErrorKind::UnexpectedEof.into())) }
    }
}

fn read<const N: usize>(file: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(error: io::Error) -> Unusable {
    format!("it cannot be read: {error}")
}

fn damaged(error: io::Error) -> Unusable {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it is cut off".to_owned(),
        _ => unreadable(error),
    }
}
