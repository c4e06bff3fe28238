//! The patterns of `include`: `*`, `?` and `[…]` in the parts of a path.

use std::path::{Path, PathBuf};

use sluicegate_base::glob::{self, GlobBounds, NameMatcher};
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
    let compile = |part: &str| -> Result<Option<NameMatcher>, String> {
        if !is_pattern(part) {
            return Ok(None);
        }
        let regex = PathRegex::compile(&translate_glob(part), false);
        let regex = regex.map_err(|reason| format!("in `{part}`: {reason}"))?;
        Ok(Some(Box::new(move |name| regex.is_match(name.as_bytes(), name))))
    };
    let mut bounds = GlobBounds { matches_max: MATCHES_MAX, names_left: NAMES_MAX };
    glob::find_files(Path::new(""), pattern, &mut bounds, compile)
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
