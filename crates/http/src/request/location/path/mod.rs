//! Normalises the path of a request as nginx does before it searches a location.
//!
//! A normalised path is bytes, not text: `%FF` decodes to one byte that is invalid UTF-8, and a replacement for it
//! would give two different paths one key.

mod edits;

use std::borrow::Cow;

use percent_encoding::{AsciiSet, percent_encode};

pub use edits::PathEdits;
use sluicegate_base::escape::RESERVED;

/// The reason why a path cannot be served; each is a 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// The path does not begin with a slash.
    NotAbsolute,
    /// The path contains a control character as such, not escaped.
    ControlCharacter,
    /// A percent sign is not followed by two hexadecimal digits.
    BadEscape,
    /// The path contains `%00`.
    EncodedNul,
    /// The path climbs above the root by `..`.
    AboveRoot,
    /// The path to forward has a `.` or `..` segment, by which it could leave its location.
    DotSegment,
}

const PLAIN: u8 = 0;
const SLASH: u8 = 1;
const DOT: u8 = 2;
/// A percent sign or a control character: the scan ends and [`rewrite_path`] takes over.
const SPECIAL: u8 = 3;

const CLASS: [u8; 256] = {
    let mut class = [PLAIN; 256];
    let mut control = 0;
    while control < 0x20 {
        class[control] = SPECIAL;
        control += 1;
    }
    class[0x7F] = SPECIAL;
    class[b'%' as usize] = SPECIAL;
    class[b'/' as usize] = SLASH;
    class[b'.' as usize] = DOT;
    class
};

/// Percent-decodes a path once, resolves dot segments and merges slashes. Borrowed if nothing changed.
///
/// Decoded slashes and dots count as slashes and dots; a path that climbs above the root is rejected, not clamped.
#[inline]
pub fn normalise_path(path: &str) -> Result<Cow<'_, [u8]>, PathError> {
    let bytes = path.as_bytes();
    if is_normal(bytes) { Ok(Cow::Borrowed(bytes)) } else { rewrite_path(bytes).map(Cow::Owned) }
}

fn is_normal(bytes: &[u8]) -> bool {
    let [b'/', rest @ ..] = bytes else { return false };
    let mut after_slash = true;
    for (at, &byte) in rest.iter().enumerate() {
        match CLASS[usize::from(byte)] {
            PLAIN => after_slash = false,
            SLASH if !after_slash => after_slash = true,
            DOT if !(after_slash && is_dot_segment(&rest[at..])) => after_slash = false,
            _ => return false,
        }
    }
    true
}

/// True if `rest`, the start of a segment, begins with a whole `.` or `..` segment.
fn is_dot_segment(rest: &[u8]) -> bool {
    let dots = rest.iter().take_while(|&&byte| byte == b'.').count();
    dots <= 2 && matches!(rest.get(dots), None | Some(b'/'))
}

#[cold]
fn rewrite_path(bytes: &[u8]) -> Result<Vec<u8>, PathError> {
    let [b'/', rest @ ..] = bytes else { return Err(PathError::NotAbsolute) };
    let mut path = Vec::with_capacity(bytes.len());
    path.push(b'/');
    let mut segment = 1;
    let mut rest = rest.iter();
    while let Some(&raw) = rest.next() {
        let byte = match raw {
            b'%' => decode_escape(rest.next(), rest.next())?,
            0x00..=0x1F | 0x7F => return Err(PathError::ControlCharacter),
            _ => raw,
        };
        if byte == b'/' {
            segment = close_segment(&mut path, segment)?;
        } else {
            path.push(byte);
        }
    }
    if matches!(&path[segment..], b"." | b"..") {
        close_segment(&mut path, segment)?;
    }
    Ok(path)
}

fn decode_escape(high: Option<&u8>, low: Option<&u8>) -> Result<u8, PathError> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let (Some(high), Some(low)) = (digit(high), digit(low)) else { return Err(PathError::BadEscape) };
    match high << 4 | low {
        0 => Err(PathError::EncodedNul),
        byte => Ok(byte as u8),
    }
}

/// Ends the segment that starts at `start` and returns where the next one starts.
fn close_segment(path: &mut Vec<u8>, start: usize) -> Result<usize, PathError> {
    match &path[start..] {
        b"" => Ok(start),
        b"." => {
            path.truncate(start);
            Ok(start)
        }
        b".." if start == 1 => Err(PathError::AboveRoot),
        b".." => {
            let parent =
                path[..start - 1].iter().rposition(|&byte| byte == b'/').map_or(1, |slash| slash + 1);
            path.truncate(parent);
            Ok(parent)
        }
        _ => {
            path.push(b'/');
            Ok(path.len())
        }
    }
}

/// The bytes of a path that a request target must escape.
const ESCAPED: &AsciiSet = &RESERVED
    .remove(b'/')
    .remove(b':')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=');

/// Encodes a normalised path for a request target; [`normalise_path`] returns the same path again.
pub fn encode_path(path: &[u8]) -> String {
    percent_encode(path, ESCAPED).to_string()
}

#[cfg(test)]
mod tests;
