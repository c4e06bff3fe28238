//! The changes to a path before it is forwarded: `strip`, `rewrite` and `add_prefix`.

use std::borrow::Cow;

use percent_encoding::percent_encode;

use super::{ESCAPED, PathError};
use sluicegate_model::{LocationConfig, RewriteConfig};

/// The changes of one location, in the order in which they are made.
#[derive(Debug, Clone)]
pub struct PathEdits {
    /// The beginning that is removed; another path stays whole.
    pub strip: Option<String>,
    /// Another path in place of one that matches.
    pub rewrite: Option<RewriteConfig>,
    /// The beginning that the path gets.
    pub add_prefix: Option<String>,
}

impl PathEdits {
    /// `None` if the location forwards paths as they were sent.
    pub fn new(location: &LocationConfig) -> Option<PathEdits> {
        let LocationConfig { strip, rewrite, add_prefix, .. } = location;
        let changes = strip.is_some() || rewrite.is_some() || add_prefix.is_some();
        let (strip, rewrite, add_prefix) = (strip.clone(), rewrite.clone(), add_prefix.clone());
        changes.then_some(PathEdits { strip, rewrite, add_prefix })
    }

    /// The target to forward for a normalised path: the changed path, encoded again, with the query as sent.
    ///
    /// # Errors
    /// The path has a `.` or `..` segment after a change: `/api../x` without `/api` would be `/../x`.
    pub fn build_target(&self, path: &[u8], query: Option<&str>) -> Result<String, PathError> {
        let mut path = match &self.strip {
            Some(strip) => strip_prefix(path, strip),
            None => Cow::Borrowed(path),
        };
        if let Some(RewriteConfig { from, to }) = &self.rewrite {
            // Such a path does not become another one.
            refuse_dot_segments(&path)?;
            if let Some(groups) = from.find_groups(&path) {
                path = Cow::Owned(expand_groups(to, &groups));
            }
        }
        if let Some(prefix) = &self.add_prefix {
            path = Cow::Owned([prefix.as_bytes(), &path].concat());
        }
        if let Cow::Owned(bytes) = &mut path {
            bytes.dedup_by(|byte, before| (*byte, *before) == (b'/', b'/'));
        }
        refuse_dot_segments(&path)?;
        let query_bytes = query.map_or(0, |query| query.len() + 1);
        let mut target = String::with_capacity(path.len() + query_bytes);
        target.extend(percent_encode(&path, ESCAPED));
        if let Some(query) = query {
            target.push('?');
            target.push_str(query);
        }
        Ok(target)
    }
}

fn strip_prefix<'p>(path: &'p [u8], strip: &str) -> Cow<'p, [u8]> {
    match path.strip_prefix(strip.as_bytes()) {
        None => Cow::Borrowed(path),
        Some(b"") => Cow::Borrowed(b"/"),
        Some(rest) if rest.starts_with(b"/") => Cow::Borrowed(rest),
        Some(rest) => Cow::Owned([b"/", rest].concat()),
    }
}

/// Some servers leave out what follows a `;` in a segment, and read a backslash as a slash.
fn refuse_dot_segments(path: &[u8]) -> Result<(), PathError> {
    let segments = path.split(|byte| matches!(byte, b'/' | b'\\'));
    let mut names = segments.filter_map(|segment| segment.split(|&byte| byte == b';').next());
    if names.any(|name| matches!(name, b"." | b"..")) { Err(PathError::DotSegment) } else { Ok(()) }
}

/// [`RewriteConfig::to`] with its groups. What a group brings is not expanded again.
fn expand_groups(to: &str, groups: &[&[u8]; 10]) -> Vec<u8> {
    let mut path = Vec::with_capacity(to.len() + groups[0].len());
    let mut bytes = to.bytes();
    while let Some(byte) = bytes.next() {
        let behind = if byte == b'$' { bytes.next() } else { None };
        match behind {
            Some(digit @ b'1'..=b'9') => path.extend_from_slice(groups[usize::from(digit - b'0')]),
            _ => path.push(byte),
        }
    }
    path
}

#[cfg(test)]
mod tests;
