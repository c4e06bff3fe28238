//! House rules about one Rust file. Each returns its findings as `path:line: what to do`.

use crate::code::{Source, closing, skip_blanks, word_at};

pub const FILE_LINES_MAX: usize = 600;
pub const FUNCTION_LINES_MAX: usize = 70;
pub const LINE_CHARS_MAX: usize = 120;

/// The comment that permits an `unwrap()` or `expect(`.
const EXCUSE: &str = "// Cannot fail:";

/// Length of the file and of its functions.
pub fn sizes(path: &str, source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        found.push(format!("{path}:1: {lines} lines; split it, {FILE_LINES_MAX} are allowed"));
    }
    for (name, first, last) in functions(source) {
        let lines = last - first + 1;
        if lines > FUNCTION_LINES_MAX {
            let allowed = FUNCTION_LINES_MAX;
            found.push(format!("{path}:{first}: fn {name} has {lines} lines; {allowed} are allowed"));
        }
    }
    found
}

/// Length of each line; rustfmt does not wrap texts and comments.
pub fn widths(path: &str, source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX {
            let at = index + 1;
            found.push(format!("{path}:{at}: {chars} characters; {LINE_CHARS_MAX} are allowed"));
        }
    }
    found
}

/// Every function with a body: its name, first and last line.
fn functions(source: &Source) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for start in source.words("fn") {
        let (name, mut at) = word_at(&source.code, start + "fn".len());
        if name.is_empty() {
            continue; // a function pointer type
        }
        while let Some(length) = source.code[at..].find(['(', '[', '{', ';']) {
            at += length;
            match source.code.as_bytes()[at] {
                b'{' => {
                    let end = closing(&source.code, at);
                    found.push((name.to_owned(), source.line(start), source.line(end)));
                    break;
                }
                b';' => break,
                _ => at = closing(&source.code, at),
            }
        }
    }
    found
}

/// A `//!` header states the purpose of the file.
pub fn headline(path: &str, source: &Source) -> Vec<String> {
    let first = source.text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    if first.starts_with("//!") { vec![] } else { vec![format!("{path}:1: begin with a //! line")] }
}

/// Outside tests a panic needs a comment with its reason.
pub fn panics(path: &str, source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for call in [".unwrap()", ".expect("] {
        for at in source.words(call) {
            let line = source.line(at);
            let above = line.checked_sub(2).map_or("", |index| lines[index].trim());
            let excused = lines[line - 1].contains(EXCUSE) || above.starts_with(EXCUSE);
            if !excused && !source.in_tests(at) {
                found.push(format!("{path}:{line}: {call} without a `{EXCUSE}` comment"));
            }
        }
    }
    found
}

/// No unfinished code, no debug output.
pub fn leftovers(path: &str, source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for word in ["TODO", "FIXME"] {
            if line.contains(word) {
                found.push(format!("{path}:{}: {word}: do it or write an issue", index + 1));
            }
        }
    }
    for call in ["dbg!", "println!", "eprintln!", "todo!", "unimplemented!"] {
        for at in source.words(call) {
            found.push(format!("{path}:{}: {call} does not belong here", source.line(at)));
        }
    }
    found
}

/// A `mod name;` of a file, and the inline modules around it.
pub struct Declared {
    pub inline: Vec<String>,
    pub name: String,
    /// The text of a `#[path = "…"]` before it.
    pub file: Option<String>,
    pub test_only: bool,
}

/// Whether a file is part of the program. The harness of the tests is a crate and no part of it.
pub fn is_product(path: &str) -> bool {
    let is_of_a_crate = path.starts_with("crates/") && path.contains("/src/");
    path.starts_with("src/") || is_of_a_crate && !path.starts_with("crates/testkit/")
}

pub fn declared(source: &Source) -> Vec<Declared> {
    let mut found = Vec::new();
    for start in source.words("mod") {
        let (name, behind) = word_at(&source.code, start + "mod".len());
        if source.code[skip_blanks(&source.code, behind)..].starts_with(';') {
            let inline = source.inline_modules(start);
            let name = name.to_owned();
            found.push(Declared {
                inline,
                name,
                file: file(source, start),
                test_only: source.in_tests(start),
            });
        }
    }
    found
}

/// The file that the attributes before `mod` name.
fn file(source: &Source, start: usize) -> Option<String> {
    let before = source.code[..start].rfind(['{', '}', ';']).map_or(0, |at| at + 1);
    let at = before + source.code[before..start].find("#[path")?;
    source.text[at..start].split('"').nth(1).map(str::to_owned)
}
