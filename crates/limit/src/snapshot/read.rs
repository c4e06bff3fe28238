//! Reads a snapshot: the whole file is checked before any of it is used, and no file is fatal.

use std::fs::{File, Metadata, OpenOptions};
use std::hash::Hasher;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{
    BLOCK_MARK, CHECKSUM_LEN, Checksum, END_MARK, FILE_MAX, MAGIC, SnapshotSource, TABLE_MARK, VERSION,
};
use crate::table::persistent::{PersistentTable, SnapshotTable};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_base::wall_clock::unix_ns;

/// A snapshot with a valid checksum, read up to its counters.
pub struct SnapshotReader<F = File> {
    /// The secret its keys were hashed with.
    pub secret: [u8; 16],
    path: PathBuf,
    shift: ClockShift,
    now: Now,
    file: BufReader<F>,
}

/// The reason why a file is not restored.
pub(super) type SnapshotFault = String;

/// A table that a snapshot may hold, and whether it was found.
type ExpectedTable<'a> = (SnapshotTable<'a>, bool);

/// The snapshot at `path`, if there is one. One that cannot be used is logged and left unchanged.
pub fn find_snapshot(path: &Path) -> Option<SnapshotReader> {
    match open_snapshot(path, unix_ns(), Now::read_clock()) {
        Ok(snapshot) => snapshot,
        Err(reason) => {
            tracing::warn!(file = %path.display(), reason, "the snapshot is ignored: counters start fresh");
            None
        }
    }
}

/// The snapshot that another process wrote into `file`.
///
/// # Errors
/// The reason why it cannot be used.
pub fn read_handed_over(mut file: File) -> Result<SnapshotReader, String> {
    file.seek(SeekFrom::Start(0)).map_err(io_fault)?;
    let length = file.metadata().map_err(io_fault)?.len();
    read_header(Path::new("(handed over)"), file, length, unix_ns(), Now::read_clock())
}

/// Opens and checks the file; `None` = there is none. `wall_ns` and `now` name the same moment.
pub(super) fn open_snapshot(
    path: &Path,
    wall_ns: u64,
    now: Now,
) -> Result<Option<SnapshotReader>, SnapshotFault> {
    // Checked before it is opened, because opening a device can have side effects.
    let about = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        about => about.map_err(io_fault)?,
    };
    let length_of = |about: Metadata| about.is_file().then_some(about.len()).ok_or("it is not a file");
    length_of(about)?;
    let never_wait = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(never_wait).open(path).map_err(io_fault)?;
    let length = length_of(file.metadata().map_err(io_fault)?)?;
    if length > FILE_MAX {
        return Err(format!("it is larger than {FILE_MAX} bytes"));
    }
    read_header(path, file, length, wall_ns, now).map(Some)
}

/// Checks a file of `length` bytes.
pub(super) fn read_header<F: Read + Seek>(
    path: &Path,
    file: F,
    length: u64,
    wall_ns: u64,
    now: Now,
) -> Result<SnapshotReader<F>, SnapshotFault> {
    let mut file = BufReader::new(file);
    if read_array(&mut file) != Ok(MAGIC) {
        return Err("it is not a snapshot of counters".to_owned());
    }
    let version = u32::from_le_bytes(read_array(&mut file)?);
    if version != VERSION {
        return Err(format!("it is of version {version}, and this program reads version {VERSION}"));
    }
    verify_checksum(&mut file, length)?;
    let wall_then = u64::from_le_bytes(read_array(&mut file)?);
    let then = Now(u64::from_le_bytes(read_array(&mut file)?));
    let secret = read_array(&mut file)?;
    let shift = ClockShift::new(then, wall_ns.saturating_sub(wall_then), now);
    Ok(SnapshotReader { secret, path: path.to_owned(), shift, now, file })
}

/// Verifies the checksum of the whole file and restores the position.
fn verify_checksum(file: &mut (impl Read + Seek), length: u64) -> Result<(), SnapshotFault> {
    let back = file.stream_position().map_err(io_fault)?;
    file.seek(SeekFrom::Start(0)).map_err(io_fault)?;
    let covered = length
        .checked_sub(CHECKSUM_LEN as u64)
        .ok_or_else(|| damage_fault(ErrorKind::UnexpectedEof.into()))?;
    let mut checksum = Checksum::new();
    let (mut piece, mut left) = (vec![0; 1 << 16], covered);
    while left > 0 {
        let piece = &mut piece[..left.min(1 << 16) as usize];
        file.read_exact(piece).map_err(damage_fault)?;
        checksum.write(piece);
        left -= piece.len() as u64;
    }
    if checksum.finish() != u64::from_le_bytes(read_array(file)?) {
        return Err("it is damaged: its checksum is wrong".to_owned());
    }
    file.seek(SeekFrom::Start(back)).map_err(io_fault).map(drop)
}

impl<F: Read + Seek> SnapshotReader<F> {
    /// The first block of the first table, if it has this name and fingerprint; the position stays.
    pub fn peek_first_table(&mut self, name: &str, fingerprint: u64) -> Option<Vec<u8>> {
        let back = self.file.stream_position().ok()?;
        let block = self.read_first_table(name, fingerprint);
        self.file.seek(SeekFrom::Start(back)).ok()?;
        block
    }

    fn read_first_table(&mut self, name: &str, fingerprint: u64) -> Option<Vec<u8>> {
        let mark = |file: &mut BufReader<F>| read_array::<1>(file).ok();
        mark(&mut self.file).filter(|found| *found == [TABLE_MARK])?;
        let found = u64::from_le_bytes(read_array(&mut self.file).ok()?);
        let is_named = self.read_prefixed().ok()? == name.as_bytes() && found == fingerprint;
        mark(&mut self.file).filter(|found| is_named && *found == [BLOCK_MARK])?;
        self.read_prefixed().ok()
    }
}

impl<F: Read> SnapshotReader<F> {
    /// Restores the counters into `target`, which must not be in use yet. Changed limits start fresh.
    pub fn restore_into(mut self, target: &(impl SnapshotSource + ?Sized)) {
        let expected = target.snapshot_tables().into_iter().map(|table| (table, false));
        let mut tables: Vec<ExpectedTable<'_>> = expected.collect();
        let mut changed = Vec::new();
        match self.restore_tables(&mut tables, &mut changed) {
            Ok(0) => {}
            Ok(left_out) => tracing::warn!(left_out, "keys of the snapshot have no room under max_keys"),
            Err(reason) => {
                let file = self.path.display();
                tracing::warn!(%file, reason, "the snapshot was restored only in part");
            }
        }
        changed.retain(|name| tables.iter().any(|(table, found)| table.name == name && !found));
        changed.sort_unstable();
        changed.dedup();
        for limit in changed {
            tracing::warn!(limit, "the limit differs from the snapshot: its changed parts start fresh");
        }
    }

    /// Reads to the end. Returns the number of keys without room; adds the names of unknown tables to `changed`.
    fn restore_tables(
        &mut self,
        tables: &mut [ExpectedTable<'_>],
        changed: &mut Vec<String>,
    ) -> Result<usize, SnapshotFault> {
        let mut left_out = 0;
        let mut table: Option<&dyn PersistentTable> = None;
        loop {
            match read_array(&mut self.file)? {
                [END_MARK] => return Ok(left_out),
                [TABLE_MARK] => {
                    let fingerprint = u64::from_le_bytes(read_array(&mut self.file)?);
                    let name = String::from_utf8(self.read_prefixed()?)
                        .map_err(|_| "a name in it is not text".to_owned())?;
                    let expected = tables.iter_mut().find(|(table, found)| {
                        !found && table.name == name && table.fingerprint == fingerprint
                    });
                    table = expected.map(|(expected, found)| {
                        *found = true;
                        expected.table
                    });
                    changed.extend(table.is_none().then_some(name));
                }
                [BLOCK_MARK] => {
                    let block = self.read_prefixed()?;
                    if let Some(table) = table {
                        let restored = table.restore_block(&block, self.shift, self.now);
                        left_out += restored.ok_or("its content is invalid")?;
                    }
                }
                _ => return Err("its content is invalid".to_owned()),
            }
        }
    }

    /// Reads bytes preceded by their length, allocating no more than the file holds.
    fn read_prefixed(&mut self) -> Result<Vec<u8>, SnapshotFault> {
        let length = u32::from_le_bytes(read_array(&mut self.file)?);
        let mut bytes = Vec::new();
        let count = (&mut self.file).take(length.into()).read_to_end(&mut bytes).map_err(io_fault)?;
        if count == length as usize { Ok(bytes) } else { Err(damage_fault(ErrorKind::UnexpectedEof.into())) }
    }
}

fn read_array<const N: usize>(file: &mut impl Read) -> Result<[u8; N], SnapshotFault> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes).map(|()| bytes).map_err(damage_fault)
}

fn io_fault(error: io::Error) -> SnapshotFault {
    format!("it cannot be read: {error}")
}

fn damage_fault(error: io::Error) -> SnapshotFault {
    match error.kind() {
        ErrorKind::UnexpectedEof => "it is cut off".to_owned(),
        _ => io_fault(error),
    }
}
