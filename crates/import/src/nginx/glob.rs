//! The patterns of `include`: `*`, `?` and `[…]` in the parts of a path.

use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Component, Path, PathBuf};

use sluicegate_base::file::describe_failure;
use sluicegate_model::value::path_regex::PathRegex;

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
        let regex = PathRegex::compile(&translate_glob(&text), false);
        let regex = regex.map_err(|reason| format!("in `{text}`: {reason}"))?;
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
                if !hidden && regex.is_match(name.as_bytes(), &name) {
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

/// The expression for one part of a path. A class that is not closed is a plain bracket.
fn translate_glob(pattern: &str) -> String {
    let escape = |text: &str| -> String {
        // A dash means the same in a class of both.
        let escaped = |c: char| if c == '-' { c.to_string() } else { format!(r"\x{{{:x}}}", u32::from(c)) };
        text.chars().map(escaped).collect()
    };
    let (mut regex, mut rest) = ("(?s)^".to_owned(), pattern);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let class = rest.strip_prefix(['!', '^']).unwrap_or(rest);
        let end = class.char_indices().skip(1).find(|(_, c)| *c == ']');
        match (c, end) {
            ('*', _) => regex.push_str(".*"),
            ('?', _) => regex.push('.'),
            ('[', Some((end, _))) => {
                let sign = if class.len() < rest.len() { "^" } else { "" };
                regex.push_str(&format!("[{sign}{}]", escape(&class[..end])));
                rest = &class[end + 1..];
            }
            _ => regex.push_str(&escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    regex + "$"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_path_match() {
        let matches = |pattern: &str, name: &str| {
            PathRegex::compile(&translate_glob(pattern), false).unwrap().is_match(name.as_bytes(), name)
        };
        for (pattern, name) in [
            ("*.conf", "a.conf"),
            ("a?c", "abc"),
            ("[a-c]x", "bx"),
            ("[!a]x", "bx"),
            ("*a*b*", "xaxbx"),
            ("[]-]", "]"),
            ("[-a]", "-"),
            ("[a", "[a"),
            ("[^]^]", "x"),
            ("ä*.?", "äö.\n"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*.conf", "a.conf~"),
            ("a?c", "ac"),
            ("[a-c]x", "dx"),
            ("[!a]x", "ax"),
            ("", "x"),
            ("a.c", "abc"),
            ("[^]^]", "^"),
            ("[a&&b]", "c"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
