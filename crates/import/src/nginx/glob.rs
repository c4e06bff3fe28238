//! The patterns of `include`: `*`, `?` and `[…]` in the parts of a path.

use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Component, Path, PathBuf};

use sluicegate_base::file::describe_failure;

/// More matches of one pattern are an error.
const MATCHES_MAX: usize = 2_000;
/// Names that are compared with one pattern.
const NAMES_MAX: usize = 100_000;

pub(super) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// All that matches, in the order of the bytes of the whole paths. Folders and broken links are left for the reader.
///
/// # Errors
/// A folder cannot be read, there are too many files to look at, or the pattern is of another kind.
pub(super) fn find_files(pattern: &Path) -> Result<Vec<PathBuf>, String> {
    let text = pattern.to_string_lossy();
    if ["\\", "[:", "[.", "[="].iter().any(|mark| text.contains(mark)) {
        return Err(format!(
            "in `{text}`, nginx takes `\\`, `[:`, `[.` and `[=` for marks; write it without them"
        ));
    }
    let (mut found, mut names_left) = (vec![PathBuf::new()], NAMES_MAX);
    for part in pattern.components() {
        let text = part.as_os_str().to_string_lossy();
        if !matches!(part, Component::Normal(_)) || !is_pattern(&text) {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let part_pattern: Vec<char> = text.chars().collect();
        let mut next = Vec::new();
        for folder in &found {
            let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { folder.as_path() };
            let fault = |error| format!("the folder `{}` {}", listed.display(), describe_failure(error));
            let entries = match std::fs::read_dir(listed) {
                Err(error) if matches!(error.kind(), NotFound | NotADirectory) => continue,
                entries => entries.map_err(fault)?,
            };
            for entry in entries {
                let entry = entry.map_err(fault)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let hidden = name.starts_with('.') && !text.starts_with('.');
                if !hidden && matches_glob(&part_pattern, &name.chars().collect::<Vec<_>>()) {
                    next.push(folder.join(entry.file_name()));
                }
                if names_left == 0 || next.len() > MATCHES_MAX {
                    return Err(format!("`{}` stands for too many files", pattern.display()));
                }
                names_left -= 1;
            }
        }
        found = next;
    }
    let is_missing = |error: std::io::Error| matches!(error.kind(), NotFound | NotADirectory);
    found.retain(|path| !path.symlink_metadata().is_err_and(is_missing));
    found.sort_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    Ok(found)
}

/// True if one part of a path matches. Takes time in proportion to the product of both lengths.
fn matches_glob(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(p + 1),
            Some('[') => match_class(pattern, p, name[n]),
            Some(c) if *c == name[n] => Some(p + 1),
            _ => None,
        };
        match (step, star) {
            (Some(next), _) => (p, n) = (next, n + 1),
            (None, Some((at, from))) => {
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p.min(pattern.len())..].iter().all(|c| *c == '*')
}

/// The place behind the class at `start`, if `c` is in it. A class that is not closed is a plain bracket.
fn match_class(pattern: &[char], start: usize, c: char) -> Option<usize> {
    let negated = matches!(pattern.get(start + 1), Some('!' | '^'));
    let first = start + 1 + usize::from(negated);
    let Some(length) = pattern.get(first + 1..).and_then(|rest| rest.iter().position(|c| *c == ']')) else {
        return (c == '[').then_some(start + 1);
    };
    let end = first + 1 + length;
    let (mut at, mut inside) = (first, false);
    while at < end {
        if at + 2 < end && pattern[at + 1] == '-' {
            inside |= (pattern[at]..=pattern[at + 2]).contains(&c);
            at += 3;
        } else {
            inside |= pattern[at] == c;
            at += 1;
        }
    }
    (inside != negated).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_path_match() {
        let matches = |pattern: &str, name: &str| {
            matches_glob(&pattern.chars().collect::<Vec<_>>(), &name.chars().collect::<Vec<_>>())
        };
        for (pattern, name) in
            [("*.conf", "a.conf"), ("a?c", "abc"), ("[a-c]x", "bx"), ("[!a]x", "bx"), ("*a*b*", "xaxbx")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.conf", "a.conf~"), ("a?c", "ac"), ("[a-c]x", "dx"), ("[!a]x", "ax"), ("", "x")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
