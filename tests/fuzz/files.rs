//! The loader of configurations: mangled files are read or rejected in time, each problem with its position.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use rustix::time::{ClockId, clock_gettime};
use sluicegate_config as config;
use sluicegate_model::{LimitId, ProblemReport};

use crate::fuzz;

/// Words with a meaning in YAML or in the configuration.
const WORDS: &[&str] = &[
    "[",
    "]",
    "{",
    "}",
    "- ",
    ": ",
    ":",
    ", ",
    "&a ",
    "*a",
    "!t ",
    "\"",
    "'",
    "|\n",
    ">-\n",
    "? ",
    "<<: *a",
    "#",
    " # ",
    "\n",
    "\n  ",
    "\t",
    "\r\n",
    "\r",
    "\u{2028}",
    "${X}",
    "${X:-y}",
    "${file:x}",
    "$${",
    "${host}",
    "none",
    "auto",
    "0",
    "-1",
    "1e9",
    "18446744073709551616",
    "10/s",
    "1/0s",
    "5s",
    "99999999999d",
    "64KiB",
    "20%",
    "~ (",
    "~ [",
    "= /",
    "^~ /",
    "é",
    "\u{feff}",
    "\u{0}",
    "---\n",
    "...\n",
    "10.0.0.0/33",
    "::/0",
    "header:",
    "jwt:sub",
    "hash:header:X",
    "global",
    "location: {}",
    "limits:",
    "locations:",
    "upstreams:",
    "key: ip",
    "rate: 10/s",
    "queue: 5",
    "upstream: demo",
];

/// One change of a text.
#[derive(Debug, Clone)]
enum Change {
    Remove(Index, Index),
    Repeat(Index, Index, u8),
    Insert(Index, &'static str),
    Put(Index, char),
    Swap(Index, Index),
    /// Inserts lines of another file.
    Take(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    prop_oneof![
        1 => (index(), index()).prop_map(|(a, b)| Change::Remove(a, b)),
        1 => (index(), index(), 1..40u8).prop_map(|(a, b, n)| Change::Repeat(a, b, n)),
        4 => (index(), select(WORDS)).prop_map(|(a, word)| Change::Insert(a, word)),
        1 => (index(), any::<char>()).prop_map(|(a, c)| Change::Put(a, c)),
        1 => (index(), index()).prop_map(|(a, b)| Change::Swap(a, b)),
        1 => (index(), index()).prop_map(|(a, b)| Change::Take(a, b)),
    ]
}

/// Every configuration file of the repository.
fn seeds() -> Vec<String> {
    let folders = [
        "crates/config/tests/config/valid",
        "crates/config/tests/config/invalid",
        "crates/config/tests/config/warned",
        "examples",
        ".",
    ];
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}

/// A range of at most a few lines, at any position.
fn part(chars: &[char], from: &Index, length: &Index) -> (usize, usize) {
    let start = from.index(chars.len() + 1);
    (start, (start + length.index(80)).min(chars.len()))
}

fn apply(change: &Change, chars: &mut Vec<char>, seeds: &[String]) {
    match change {
        Change::Remove(from, length) => {
            let (start, end) = part(chars, from, length);
            chars.drain(start..end);
        }
        Change::Repeat(from, length, times) => {
            let (start, end) = part(chars, from, length);
            let repeated = chars[start..end].repeat(usize::from(*times));
            chars.splice(end..end, repeated);
        }
        Change::Insert(at, word) => {
            let at = at.index(chars.len() + 1);
            chars.splice(at..at, word.chars());
        }
        Change::Put(at, c) => {
            let at = at.index(chars.len() + 1);
            chars.splice(at..(at + 1).min(chars.len()), [*c]);
        }
        Change::Swap(a, b) if !chars.is_empty() => {
            let (a, b) = (a.index(chars.len()), b.index(chars.len()));
            chars.swap(a, b);
        }
        Change::Swap(..) => {}
        Change::Take(from, at) => {
            let lines: Vec<&str> = from.get(seeds).lines().collect();
            let start = at.index(lines.len().max(1));
            let taken: String = lines[start..].iter().take(5).map(|line| format!("{line}\n")).collect();
            let at = at.index(chars.len() + 1);
            chars.splice(at..at, taken.chars());
        }
    }
}

/// The processor time of this thread, independent of other load.
fn cpu_time_ms() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// Checks that every problem has a position in the text and can be shown.
fn check_report(report: &ProblemReport, text: &str) -> Result<(), TestCaseError> {
    let lines = text.split('\n').count();
    prop_assert!(!report.problems.is_empty());
    for problem in &report.problems {
        let is_in_text = problem.file.is_empty();
        prop_assert!(!is_in_text || (1..=lines + 1).contains(&problem.line), "{problem:?}");
        prop_assert!(problem.column >= 1 && !problem.message.is_empty(), "{problem:?}");
    }
    prop_assert!(report.render(true).contains("problem"));
    Ok(())
}

#[test]
fn mangled_files_are_read_or_rejected_with_positions() {
    let seeds = seeds();
    assert!(seeds.len() > 100, "{} files", seeds.len());
    let strategy = (any::<Index>(), proptest::collection::vec(change(), 0..8));
    fuzz(strategy, |(seed, changes)| {
        let mut chars: Vec<char> = seed.get(&seeds).chars().collect();
        changes.iter().for_each(|change| apply(change, &mut chars, &seeds));
        let text: String = chars.into_iter().collect();
        let before = cpu_time_ms();
        let read = config::parse(&text, "gateway.yaml");
        let took = cpu_time_ms() - before;
        prop_assert!(took < 1000, "{took} ms for {text:?}");
        match read {
            Err(report) => check_report(&report, &text),
            Ok(loaded) => {
                for location in &loaded.config.locations {
                    config::describe::describe_location(&loaded.config, location);
                }
                for limit in 0..loaded.config.limits.len() {
                    config::describe::describe_limit(&loaded.config, LimitId(limit), None);
                }
                Ok(())
            }
        }
    });
}

#[test]
fn any_text_is_read_or_rejected() {
    let word =
        prop_oneof![4 => select(WORDS).prop_map(str::to_owned), 1 => any::<String>(), 1 => "[a-z]{1,6}"];
    fuzz(proptest::collection::vec(word, 0..60), |words| {
        match config::parse(&words.concat(), "gateway.yaml") {
            Err(report) => check_report(&report, &words.concat()),
            Ok(_) => Ok(()),
        }
    });
}
