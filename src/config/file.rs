//! Reading a file whole, but never more of it than allowed.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The bytes of `path`, or a phrase that follows its name: "does not exist", "is larger than 1 MiB".
pub(super) fn read_capped(path: &Path, max: u64) -> Result<Vec<u8>, String> {
    let reason = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        ErrorKind::PermissionDenied => "may not be read by this user".to_owned(),
        ErrorKind::IsADirectory => "is a directory".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let file = File::open(path).map_err(reason)?;
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
