//! Compiles the regular expressions of all locations on every core, and keeps them for the next reading of the file.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;

use sluicegate_model::{Parsed, PathRegex, ValueError, codes};

/// Bytes of all compiled expressions of a file together, except those that are being compiled when it is reached.
const ALL_MAX_BYTES: usize = 256 << 20;
/// Fewer are compiled faster than a thread starts.
const PER_THREAD_MIN: usize = 32;

/// Expressions that were compiled for the last file, by their text as written.
static LAST_COMPILED: Mutex<Option<HashMap<String, PathRegex>>> = Mutex::new(None);

/// The compiled expressions of one file, by their text as written, e.g. `~* \.gif$`.
pub(super) struct PathPatterns {
    compiled: HashMap<String, Parsed<PathRegex>>,
}

/// True if a path of the file is a regular expression.
pub(super) fn is_regex(path: &str) -> bool {
    path.starts_with('~')
}

impl PathPatterns {
    /// Compiles those of `paths` that are regular expressions.
    ///
    /// # Errors
    /// All together take too much memory.
    pub(super) fn compile_all<'a>(paths: impl Iterator<Item = &'a str>) -> Parsed<PathPatterns> {
        PathPatterns::compile_within(paths, ALL_MAX_BYTES)
    }

    fn compile_within<'a>(paths: impl Iterator<Item = &'a str>, bytes_max: usize) -> Parsed<PathPatterns> {
        let known = LAST_COMPILED.lock().take().unwrap_or_default();
        let mut compiled: HashMap<String, Parsed<PathRegex>> = HashMap::new();
        let mut missing: Vec<&str> = Vec::new();
        for path in paths.filter(|path| is_regex(path)) {
            if let Some(regex) = known.get(path) {
                compiled.insert(path.to_owned(), Ok(regex.clone()));
            } else {
                missing.push(path);
            }
        }
        drop(known);
        missing.sort_unstable();
        missing.dedup();
        let used = AtomicUsize::new(compiled.values().flatten().map(PathRegex::memory_bytes).sum());
        compiled.extend(compile_missing(&missing, &used, bytes_max));
        if used.into_inner() > bytes_max {
            let message = format!("the regular expressions take more than {} MiB", bytes_max >> 20);
            return Err(ValueError::new(codes::REGEX, message).with_help("write fewer or shorter ones"));
        }
        let valid = compiled.iter().filter_map(|(path, regex)| Some((path.clone(), regex.clone().ok()?)));
        *LAST_COMPILED.lock() = Some(valid.collect());
        Ok(PathPatterns { compiled })
    }

    /// The compiled expression of a path that [`PathPatterns::compile_all`] was given.
    pub(super) fn find_compiled(&self, path: &str) -> Parsed<PathRegex> {
        self.compiled.get(path).cloned().unwrap_or_else(|| compile_path(path))
    }
}

/// Compiles `paths` on as many threads as there are cores, until `used` exceeds `bytes_max`.
fn compile_missing(paths: &[&str], used: &AtomicUsize, bytes_max: usize) -> Vec<(String, Parsed<PathRegex>)> {
    let next = AtomicUsize::new(0);
    let compile_some = || {
        let mut done = Vec::new();
        while used.load(Ordering::Relaxed) <= bytes_max {
            let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let compiled = compile_path(path);
            let bytes = compiled.as_ref().map_or(0, PathRegex::memory_bytes);
            used.fetch_add(bytes, Ordering::Relaxed);
            done.push(((*path).to_owned(), compiled));
        }
        done
    };
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let helpers = cores.min(paths.len().div_ceil(PER_THREAD_MIN)).saturating_sub(1);
    thread::scope(|scope| {
        let helper = |_| thread::Builder::new().spawn_scoped(scope, compile_some).ok();
        // A thread that cannot start is not needed: this one goes on until all are compiled.
        let started: Vec<_> = (0..helpers).filter_map(helper).collect();
        let mut done = compile_some();
        started.into_iter().filter_map(|helper| helper.join().ok()).for_each(|some| done.extend(some));
        done
    })
}

fn compile_path(path: &str) -> Parsed<PathRegex> {
    let (pattern, case_insensitive) = match path.strip_prefix("~*") {
        Some(pattern) => (pattern, true),
        None => (path.strip_prefix('~').unwrap_or(path), false),
    };
    let pattern = pattern.trim_start();
    explain_errors(path, pattern, PathRegex::compile_or_locate(pattern, case_insensitive))
}

/// An expression whose groups are taken over, without a `~` before it.
pub(super) fn compile_with_groups(pattern: &str) -> Parsed<PathRegex> {
    explain_errors(pattern, pattern, PathRegex::compile_with_groups(pattern))
}

/// The result for a `pattern` at the end of the text that is `written`.
fn explain_errors(
    written: &str,
    pattern: &str,
    compiled: Result<PathRegex, (String, Option<Range<usize>>)>,
) -> Parsed<PathRegex> {
    if pattern.is_empty() {
        let help = if written.is_empty() { "write e.g. ^/old/(.*)$" } else { "write e.g. ~ \\.php$" };
        return Err(ValueError::new(codes::REGEX, "the regular expression is empty").with_help(help));
    }
    compiled.map_err(|(reason, place)| {
        let message = format!("the regular expression does not work: {reason}");
        let before = written.len() - pattern.len();
        let part = place.and_then(|place| {
            let start = written.get(..before + place.start)?.chars().count();
            Some((start, pattern.get(place)?.chars().count()))
        });
        let error = ValueError { part, ..ValueError::new(codes::REGEX, message) };
        error.with_optional_help(suggest_repair(&reason).map(str::to_owned))
    })
}

/// The repair to suggest, by the reason of the parser.
fn suggest_repair(reason: &str) -> Option<&'static str> {
    const REPAIRS: [(&str, &str); 7] = [
        ("look-around", "look-around is left out so that no request can make matching slow"),
        ("backreferences", "references to groups are left out so that no request can make matching slow"),
        ("unclosed group", "close it with ), or write \\( for the character itself"),
        ("unopened group", "open it with (, or write \\) for the character itself"),
        ("unclosed character class", "close it with ], or write \\[ for the character itself"),
        (
            "repetition operator missing",
            "write what is repeated before it, e.g. .*, or \\* for the character itself",
        ),
        ("unrecognized escape", "remove the backslash, or write \\\\ for a backslash"),
    ];
    REPAIRS.iter().find(|(part, _)| reason.contains(part)).map(|(_, repair)| *repair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_compiled_and_the_wrong_ones_keep_their_reason() {
        let paths: Vec<String> = (0..500)
            .map(|n| if n % 100 == 7 { format!("~ ^/all-{n}/(") } else { format!("~* ^/all-{n}/[a-z]+$") })
            .collect();
        let patterns = PathPatterns::compile_all(paths.iter().map(String::as_str)).unwrap();
        for (n, path) in paths.iter().enumerate() {
            match patterns.find_compiled(path) {
                Ok(regex) => {
                    let path = format!("/ALL-{n}/Q");
                    assert!(regex.is_match(path.as_bytes(), &path), "{regex:?}");
                }
                Err(error) => assert!(n % 100 == 7 && error.message.contains("unclosed group"), "{path}"),
            }
        }
    }

    #[test]
    fn together_they_are_bounded() {
        let paths: Vec<String> = (0..200).map(|n| format!(r"~ ^/bounded-{n}/\w+$")).collect();
        let all = || paths.iter().map(String::as_str);
        let error = PathPatterns::compile_within(all(), 1 << 20).map(|_| ()).unwrap_err();
        assert_eq!(error.message, "the regular expressions take more than 1 MiB");
        assert!(PathPatterns::compile_within(all(), 100 << 20).is_ok());
    }
}
