//! Finds the files that a pattern stands for, one part of the path after the other.

use std::io::ErrorKind::{NotADirectory, NotFound};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Tells whether the name of a file fits one part of a pattern.
pub type NameMatcher = Box<dyn Fn(&str) -> bool>;

/// Bounds of one search.
pub struct GlobBounds {
    /// More matches of one pattern are an error.
    pub matches_max: usize,
    /// Names that may still be compared.
    pub names_left: usize,
}

/// The paths below `folder` that fit `pattern`, in the order of their bytes. `compile` makes a matcher of each part;
/// `None` = the part is a plain name. Folders and broken links are left for the reader; a missing folder has no files.
///
/// # Errors
/// A folder cannot be read, there are too many files to look at, or `compile` refuses a part.
pub fn find_files(
    folder: &Path,
    pattern: &Path,
    bounds: &mut GlobBounds,
    compile: impl Fn(&str) -> Result<Option<NameMatcher>, String>,
) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        let text = part.as_os_str().to_string_lossy();
        let matcher = if matches!(part, Component::Normal(_)) { compile(&text)? } else { None };
        let Some(matches) = matcher else {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        };
        let mut next = Vec::new();
        for base in &found {
            let listed = folder.join(base);
            let listed = if listed.as_os_str().is_empty() { Path::new(".") } else { listed.as_path() };
            let fault = |error| format!("the folder `{}` cannot be read: {error}", listed.display());
            let entries = match std::fs::read_dir(listed) {
                Err(error) if matches!(error.kind(), NotFound | NotADirectory) => continue,
                entries => entries.map_err(fault)?,
            };
            for entry in entries {
                let entry = entry.map_err(fault)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let hidden = name.starts_with('.') && !text.starts_with('.');
                if !hidden && matches(&name) {
                    next.push(base.join(entry.file_name()));
                }
                if bounds.names_left == 0 || next.len() > bounds.matches_max {
                    return Err(format!("`{}` stands for too many files", pattern.display()));
                }
                bounds.names_left -= 1;
            }
        }
        found = next;
    }
    let is_missing = |error: std::io::Error| matches!(error.kind(), NotFound | NotADirectory);
    found.retain(|path| !folder.join(path).symlink_metadata().is_err_and(is_missing));
    found.sort_by(|one, other| one.as_os_str().as_bytes().cmp(other.as_os_str().as_bytes()));
    Ok(found)
}

/// True if `*` or `?` make `name` a pattern.
pub fn has_wildcard(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// The matcher of a part in which `*` is any text and `?` any character; `None` without either.
pub fn compile_wildcards(part: &str) -> Result<Option<NameMatcher>, String> {
    let pattern: Vec<char> = part.chars().collect();
    Ok(has_wildcard(part).then(|| Box::new(move |name: &str| fits_wildcards(&pattern, name)) as NameMatcher))
}

fn fits_wildcards(pattern: &[char], name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut read) = (0, 0);
    // The last `*`, and the first character that it does not stand for yet.
    let mut star: Option<(usize, usize)> = None;
    while read < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(c) if *c == '?' || *c == name[read] => (at, read) = (at + 1, read + 1),
            _ => {
                let Some((star_at, from)) = star else { return false };
                (at, read) = (star_at + 1, from + 1);
                star = Some((star_at, from + 1));
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each possible length of each `*`, tried in turn.
    fn fits_by_trial(pattern: &[char], name: &[char]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some(('*', rest)) => (0..=name.len()).any(|taken| fits_by_trial(rest, &name[taken..])),
            Some((c, rest)) => {
                let fits = |first: &char| *c == '?' || c == first;
                name.split_first().is_some_and(|(first, left)| fits(first) && fits_by_trial(rest, left))
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn wildcards_fit_as_a_search_of_all_lengths_says(pattern in "[ab*?ä]{0,8}", name in "[abä.]{0,8}") {
            let pattern: Vec<char> = pattern.chars().collect();
            let chars: Vec<char> = name.chars().collect();
            proptest::prop_assert_eq!(fits_wildcards(&pattern, &name), fits_by_trial(&pattern, &chars));
        }
    }

    #[test]
    fn a_search_is_bounded() {
        let find = |names_left, matches_max| {
            let mut bounds = GlobBounds { matches_max, names_left };
            find_files(Path::new("src"), Path::new("*.rs"), &mut bounds, compile_wildcards)
        };
        assert!(find(1_000, 1_000).unwrap().contains(&"glob.rs".into()));
        assert!(find(3, 1_000).unwrap_err().contains("too many files"));
        assert!(find(1_000, 3).unwrap_err().contains("too many files"));
    }
}
