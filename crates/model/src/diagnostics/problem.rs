//! Collects the problems of a file with their positions, and renders them in the style of rustc.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet, normalize_untrusted_str};
use serde::Serialize;

use super::redact::redact_credentials;
use crate::key::ValueSource;
use sluicegate_base::json_shape::json_object;

/// A position in the file: line and column counted from 1, in characters, and the width to underline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1. Those of an included file follow those of the files before it: see [`SourceFile`].
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// The characters to underline.
    pub width: usize,
}

impl Position {
    /// The beginning of the file.
    pub const START: Position = Position { line: 1, column: 1, width: 1 };
}

json_object! {
    /// One error or warning.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Problem as "Problem" {
        /// One of the stable constants in [`super::codes`].
        pub code: &'static str = "The code of the problem, e.g. E006.",
        pub file: String = maybe "The included file that has it; absent for gateway.yaml itself.",
        pub field: String = "The field, e.g. `limits.per-ip.rate`; empty for the file as a whole.",
        pub line: usize = "Its line in the file, from 1.",
        /// Counted in characters.
        pub column: usize = "Its column, from 1.",
        /// Characters to underline.
        pub width: usize,
        pub message: String = "The problem.",
        /// Advice as part of a sentence: "did you mean `x`?", "write `5s`".
        pub suggestion: Option<String> = "What to do.",
    }
}

impl Problem {
    /// The included file that has the problem, or else `main`.
    pub fn file_or<'a>(&'a self, main: &'a str) -> &'a str {
        if self.file.is_empty() { main } else { &self.file }
    }

    /// The place of the problem in the file.
    pub fn position(&self) -> Position {
        Position { line: self.line, column: self.column, width: self.width }
    }
}

impl From<Problem> for ValueError {
    fn from(problem: Problem) -> ValueError {
        ValueError { suggestion: problem.suggestion, ..ValueError::new(problem.code, problem.message) }
    }
}

/// All problems of one file, in file order. `Display` is the plain rendering.
#[derive(Debug, Clone, Serialize)]
pub struct ProblemReport {
    /// The path of the file as given.
    pub file: String,
    /// The problems, in file order.
    pub problems: Vec<Problem>,
    /// The lines of each file by [`Problem::file`], with every secret masked; empty if there is no text to show.
    #[serde(skip)]
    pub lines: HashMap<String, Vec<String>>,
}

impl ProblemReport {
    /// A report about the file as a whole.
    pub fn for_file(file: &str, error: ValueError) -> ProblemReport {
        ProblemReport {
            file: file.to_owned(),
            problems: vec![error.at_position(Position::START, "")],
            lines: HashMap::new(),
        }
    }

    /// Every problem with its source line and a caret, in colour if `color`.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let mut out = String::new();
        for problem in &self.problems {
            out.push_str(&self.render_one(problem, &renderer));
            out.push_str("\n\n");
        }
        out.push_str(&match self.problems.len() {
            1 => format!("{}: 1 problem", self.file),
            several => format!("{}: {several} problems", self.file),
        });
        out
    }

    fn render_one(&self, problem: &Problem, renderer: &Renderer) -> String {
        let level = if problem.code.starts_with('W') { Level::WARNING } else { Level::ERROR };
        let title = level.primary_title(problem.message.as_str()).id(problem.code);
        let mut group = Group::with_title(title);
        // A file that cannot be read has neither lines nor positions.
        if !self.lines.is_empty() || (problem.line, problem.column) != (1, 1) {
            let lines = self.lines.get(&problem.file).map_or(&[][..], Vec::as_slice);
            let line = lines.get(problem.line.saturating_sub(1)).map_or("", String::as_str);
            let line = truncate_line(line, problem);
            let label = (!problem.field.is_empty()).then_some(problem.field.as_str());
            let mark = AnnotationKind::Primary.span(underline_range(line, problem)).label(label);
            let snippet = Snippet::source(line).line_start(problem.line).path(problem.file_or(&self.file));
            group = group.element(snippet.annotation(mark));
        }
        if let Some(suggestion) = &problem.suggestion {
            group = group.element(Level::HELP.message(normalize_untrusted_str(suggestion)));
        }
        renderer.render(&[group])
    }
}

impl fmt::Display for ProblemReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for ProblemReport {}

/// The part of a line to show, so that a file on one long line is not repeated whole for each problem.
fn truncate_line<'a>(line: &'a str, problem: &Problem) -> &'a str {
    let end = line.char_indices().nth(problem.column + problem.width + 200);
    end.map_or(line, |(byte, _)| &line[..byte])
}

/// The bytes to underline within `line`.
fn underline_range(line: &str, problem: &Problem) -> Range<usize> {
    let byte_of = |chars: usize| line.char_indices().nth(chars).map_or(line.len(), |(byte, _)| byte);
    let start = problem.column.saturating_sub(1);
    byte_of(start)..byte_of(start + problem.width.max(1))
}

/// One file of a set: the main file, or one that it includes.
#[derive(Debug)]
pub struct SourceFile {
    /// The [`Position::line`] of its first line.
    pub first_line: usize,
    /// Its path, as problems show it.
    pub name: String,
    /// Relative paths in it start here.
    pub folder: PathBuf,
    /// Locations of the files before it.
    pub locations_before: usize,
    /// The team that owns what it defines.
    pub owner: OnceCell<Arc<str>>,
}

/// Collects problems while the file is read.
#[derive(Debug, Default)]
pub struct ProblemSink {
    /// In the order of their lines; empty = positions are those of the only file.
    sources: RefCell<Vec<Rc<SourceFile>>>,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    mentions: RefCell<Vec<(Position, String, Mention)>>,
}

/// A fact from one section, checked after all sections are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mention {
    /// A source that something is counted or named by.
    Source(ValueSource),
    /// A column of the file of API keys.
    KeyColumn(String),
    /// The dates of accounts, by which the windows of a limit begin.
    Anchor,
    /// A tier that a limit has numbers for.
    Tier(String),
}

/// An error in one value, before its position is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueError {
    /// One of the stable constants in [`super::codes`].
    pub code: &'static str,
    /// The problem, without a full stop.
    pub message: String,
    /// Advice as part of a sentence; `None` = none.
    pub suggestion: Option<String>,
    /// The wrong part of the value, in characters: its start and its length.
    pub part: Option<(usize, usize)>,
}

impl ValueError {
    /// An error without advice, about the whole value.
    pub fn new(code: &'static str, message: impl Into<String>) -> ValueError {
        ValueError { code, message: message.into(), suggestion: None, part: None }
    }

    /// The same error with this advice, in place of any that it had.
    pub fn with_help(self, suggestion: impl Into<String>) -> ValueError {
        ValueError { suggestion: Some(suggestion.into()), ..self }
    }

    /// The same error with this advice; `None` removes any that it had.
    pub fn with_optional_help(self, suggestion: Option<String>) -> ValueError {
        ValueError { suggestion, ..self }
    }

    /// Adds `suggestion` unless there is one already.
    pub fn with_default_help(self, suggestion: &str) -> ValueError {
        ValueError { suggestion: self.suggestion.or_else(|| Some(suggestion.to_owned())), ..self }
    }

    /// Masks users and passwords of URLs, which even a mistyped key may contain.
    pub fn at_position(self, position: Position, field: &str) -> Problem {
        Problem {
            code: self.code,
            file: String::new(),
            field: redact_credentials(field),
            line: position.line,
            column: position.column,
            width: position.width,
            message: redact_credentials(&self.message),
            suggestion: self.suggestion,
        }
    }
}

/// More problems than a person reads; a file with more is wrong as a whole.
const PROBLEMS_MAX: usize = 1000;

impl ProblemSink {
    /// Adds the file that is read next; its lines follow those of the files before it.
    pub fn add_source(&self, source: SourceFile) -> Rc<SourceFile> {
        let source = Rc::new(source);
        self.sources.borrow_mut().push(source.clone());
        source
    }

    /// The file at `position`; `None` if there is only one, without a name.
    pub fn source_at(&self, position: Position) -> Option<Rc<SourceFile>> {
        let sources = self.sources.borrow();
        let after = sources.partition_point(|source| source.first_line <= position.line);
        sources.get(after.checked_sub(1)?).cloned()
    }

    /// The line of a place that a message at `from` mentions: "5", or "5 of teams/a.yaml" in another file.
    pub fn show_line(&self, place: Position, from: Position) -> String {
        let Some(source) = self.source_at(place) else { return place.line.to_string() };
        let line = place.line + 1 - source.first_line;
        let is_other = self.source_at(from).is_some_and(|other| !Rc::ptr_eq(&source, &other));
        if is_other { format!("{line} of {}", source.name) } else { line.to_string() }
    }

    /// The problem with the names of its own file: line, and number of the location.
    fn locate_problem(&self, mut problem: Problem) -> Problem {
        let Some(source) = self.source_at(problem.position()).filter(|source| source.first_line > 1) else {
            return problem;
        };
        problem.file.clone_from(&source.name);
        problem.line -= source.first_line - 1;
        if let Some((number, rest)) =
            problem.field.strip_prefix("locations[").and_then(|rest| rest.split_once(']'))
            && let Ok(number) = number.parse::<usize>()
        {
            problem.field = format!("locations[{}]{rest}", number.saturating_sub(source.locations_before));
        }
        problem
    }

    /// Adds an error at this place; those beyond the 1,000th are dropped.
    pub fn add_problem(&self, position: Position, field: &str, error: ValueError) {
        self.push_capped(&self.problems, error.at_position(position, field));
    }

    /// Adds a warning at this place; those beyond the 1,000th are dropped.
    pub fn add_warning(&self, position: Position, field: &str, error: ValueError) {
        self.push_capped(&self.warnings, error.at_position(position, field));
    }

    /// True if further problems would be dropped, so that suggestions need not be computed.
    pub fn is_full(&self) -> bool {
        self.problems.borrow().len() >= PROBLEMS_MAX
    }

    /// True if there is an error; warnings do not count.
    pub fn has_problems(&self) -> bool {
        !self.problems.borrow().is_empty()
    }

    /// Keeps a mention for the check after all sections are read.
    pub fn record_mention(&self, position: Position, field: &str, mention: Mention) {
        self.mentions.borrow_mut().push((position, field.to_owned(), mention));
    }

    /// Removes and returns all mentions, in the order of their recording: the place, the field and the fact.
    pub fn take_mentions(&self) -> Vec<(Position, String, Mention)> {
        self.mentions.take()
    }

    /// Problems, then warnings, each in file order; the sink is empty afterwards.
    pub fn take_sorted(&self) -> (Vec<Problem>, Vec<Problem>) {
        let (mut problems, mut warnings) = (self.problems.take(), self.warnings.take());
        let place = |one: &Problem| (one.line, one.column);
        problems.sort_by(|a, b| (&a.file, place(a), a.code).cmp(&(&b.file, place(b), b.code)));
        problems.dedup();
        warnings.sort_by(|a, b| (&a.file, place(a)).cmp(&(&b.file, place(b))));
        (problems, warnings)
    }

    fn push_capped(&self, list: &RefCell<Vec<Problem>>, problem: Problem) {
        let mut list = list.borrow_mut();
        if list.len() < PROBLEMS_MAX {
            list.push(self.locate_problem(problem));
        }
    }
}

/// "did you mean `x`?" for the nearest word.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    find_nearest(word, known).map(|name| format!("did you mean `{name}`?"))
}

/// The word of `known` closest to `word`, if one is close: by spelling (optimal string alignment), or because one is
/// the beginning of the other. Case, `-`, `_` and a plural do not count.
pub fn find_nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if !(1..=64).contains(&word.len()) {
        return None;
    }
    let lower = word.to_lowercase();
    let bare = |name: &str| {
        let bare = name.to_lowercase().replace(['-', '_'], "");
        bare.strip_suffix('s').filter(|singular| singular.len() > 2).map_or(bare.clone(), str::to_owned)
    };
    let close = |name: &str| (name.len().max(lower.len()) / 3).clamp(1, 3).min(name.len().saturating_sub(1));
    let begins = |name: &str| {
        let (short, long) =
            if name.len() < lower.len() { (name, lower.as_str()) } else { (lower.as_str(), name) };
        short.len() >= 4 && short.len() * 2 >= long.len() && long.starts_with(short)
    };
    let distance = |name: &str| match strsim::osa_distance(&lower, &name.to_lowercase()) {
        distance if distance <= 1 => Some(distance),
        _ if bare(name) == bare(word) => Some(1),
        distance if distance <= close(name) => Some(distance),
        _ if begins(&name.to_lowercase()) => Some(usize::MAX),
        _ => None,
    };
    known
        .into_iter()
        .filter_map(|name| Some((distance(name)?, name)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_word_is_suggested_and_a_far_one_is_not() {
        let known = ["upstream", "redirect", "respond"];
        assert_eq!(did_you_mean("upsteam", known).as_deref(), Some("did you mean `upstream`?"));
        assert_eq!(did_you_mean("Upstream", known).as_deref(), Some("did you mean `upstream`?"));
        assert_eq!(did_you_mean("zebra", known), None);
        assert_eq!(did_you_mean("warning", ["warn", "error"]).as_deref(), Some("did you mean `warn`?"));
        assert_eq!(did_you_mean("Max-Waits", ["max_wait"]).as_deref(), Some("did you mean `max_wait`?"));
        assert_eq!(did_you_mean("warn", ["warned-about"]), None);
    }

    #[test]
    fn a_problem_is_shown_with_its_line_a_caret_and_help() {
        let error = ValueError::new("E006", "unknown field `upsteam`").with_help("did you mean `upstream`?");
        let position = Position { line: 2, column: 5, width: 7 };
        let report = ProblemReport {
            file: "gateway.yaml".to_owned(),
            problems: vec![error.at_position(position, "locations[0].upsteam")],
            lines: [(String::new(), vec!["locations:".to_owned(), "  - upsteam: app".to_owned()])].into(),
        };
        let text = report.to_string();
        assert!(text.contains("error[E006]: unknown field `upsteam`"), "{text}");
        assert!(text.contains("--> gateway.yaml:2:5"), "{text}");
        assert!(text.contains("^^^^^^^ locations[0].upsteam"), "{text}");
        assert!(text.contains("= help: did you mean `upstream`?"), "{text}");
        assert!(!text.contains('\u{1b}') && report.render(true).contains('\u{1b}'));
    }

    #[test]
    fn an_unreadable_file_is_reported_without_an_excerpt() {
        let error = ValueError::new("E001", "the file `x.yaml` does not exist").with_help("name another");
        let rendered = ProblemReport::for_file("x.yaml", error).to_string();
        let lines: Vec<&str> = rendered.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let first = "error[E001]: the file `x.yaml` does not exist";
        assert!(lines[0] == first && lines[1..].iter().all(|line| !line.contains("-->")), "{rendered}");
        assert!(
            rendered.contains("help: name another") && rendered.ends_with("x.yaml: 1 problem"),
            "{rendered}"
        );
    }
}
