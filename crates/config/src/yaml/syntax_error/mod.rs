//! Finds the mistake behind a syntax error of the YAML parser, which often names the line after it.
//!
//! This is a scan of the lines up to the parser's position, never of a valid file. An unknown mistake keeps the
//! parser's own message.

mod values;

use sluicegate_model::diagnostics::redact;
use sluicegate_model::{Position, ValueError, codes};

/// A mistake and its cure.
struct Finding {
    position: Position,
    message: String,
    help: String,
    /// The help repeats text of the file.
    quotes_file: bool,
}

/// The mistake that made the parser fail at line `failed_at`, if it is recognized.
pub fn explain_syntax_error(text: &str, failed_at: usize) -> Option<(Position, ValueError)> {
    let lines: Vec<Vec<char>> =
        text.split('\n').map(|line| line.trim_end_matches('\r').chars().collect()).collect();
    let last = failed_at.min(lines.len());
    let mut scan = SyntaxScan { lines: &lines, line: 0, ..SyntaxScan::default() };
    let sure = scan.scan_lines(last);
    let Finding { position, message, mut help, quotes_file } = sure.or(scan.indentation)?;
    if quotes_file {
        let shown = redact::redact_lines(text).into_iter().nth(position.line - 1)?;
        if !shown.chars().eq(lines.get(position.line - 1)?.iter().copied()) {
            help = "write the value behind a colon and a space, in quotes".to_owned();
        }
    }
    Some((position, ValueError::new(codes::SYNTAX, message).with_help(help)))
}

#[derive(Default)]
struct SyntaxScan<'a> {
    lines: &'a [Vec<char>],
    line: usize,
    /// The indentation of the line.
    indent: usize,
    /// The columns of the open lists and mappings, outermost first.
    levels: Vec<IndentLevel>,
    brackets: Vec<Bracket>,
    /// The next line may be indented deeper.
    opens_level: bool,
    /// The indentation of the key of an open block of text (`|` or `>`).
    text_block: Option<usize>,
    /// The first line with an indentation that fits nowhere.
    indentation: Option<Finding>,
}

#[derive(Clone, Copy)]
struct IndentLevel {
    column: usize,
    line: usize,
}

struct Bracket {
    open: char,
    line: usize,
    column: usize,
    /// The indentation of its line.
    indent: usize,
    /// The place after the colon of the entry that is being read.
    value_at: Option<usize>,
}

/// The place of a scan within a line, or the mistake that ends it.
type Scanned = Result<usize, Finding>;

impl SyntaxScan<'_> {
    fn scan_lines(&mut self, last: usize) -> Option<Finding> {
        // An open bracket shows only where the next entry begins.
        while self.line < last || !self.brackets.is_empty() && self.line < self.lines.len() {
            if let Err(found) = self.scan_line() {
                return Some(found);
            }
            self.line += 1;
        }
        self.brackets.last().map(|bracket| self.report_open_bracket(bracket))
    }

    fn chars(&self) -> &[char] {
        self.lines.get(self.line).map_or(&[], Vec::as_slice)
    }

    fn char_at(&self, at: usize) -> Option<char> {
        self.chars().get(at).copied()
    }

    /// The first character at or after `at` that is no blank; `None` before a comment or the end.
    fn skip_blanks(&self, at: usize) -> Option<usize> {
        let found = at + self.chars().get(at..)?.iter().position(|c| !matches!(c, ' ' | '\t'))?;
        let comment = self.chars()[found] == '#' && (found == 0 || found > at || self.is_blank(found - 1));
        (!comment).then_some(found)
    }

    fn is_blank(&self, at: usize) -> bool {
        self.char_at(at).is_none_or(|c| matches!(c, ' ' | '\t'))
    }

    fn text_from(&self, at: usize) -> String {
        self.chars().get(at..).unwrap_or_default().iter().collect()
    }

    fn finding(
        &self,
        at: usize,
        width: usize,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Finding {
        let position = Position { line: self.line + 1, column: at + 1, width: width.max(1) };
        Finding { position, message: message.into(), help: help.into(), quotes_file: false }
    }

    /// A value that needs quotes.
    fn unquoted(&self, at: usize, value: &str, message: &str) -> Finding {
        let value = value.trim_end();
        let help = format!("put the value in quotes: {}", quote_value(value));
        Finding { quotes_file: true, ..self.finding(at, value.chars().count(), message, help) }
    }

    fn scan_line(&mut self) -> Result<(), Finding> {
        let Some(start) = self.skip_blanks(0) else { return Ok(()) };
        self.indent = start;
        if self.text_block.is_some_and(|indent| start > indent) {
            return Ok(());
        }
        self.text_block = None;
        if let Some(bracket) = self.brackets.last() {
            if start <= bracket.indent && self.begins_entry(start) {
                return Err(self.report_open_bracket(bracket));
            }
            return self.scan_flow(start);
        }
        if start == 0 && (self.text_from(0).starts_with("---") || self.text_from(0).starts_with("%YAML")) {
            return Ok(());
        }
        if let Some(tab) = self.chars()[..start].iter().position(|c| *c == '\t') {
            let message = "a tab indents this line, and YAML allows only spaces there";
            return Err(self.finding(tab, 1, message, "write spaces, two for each level"));
        }
        self.check_indentation(start);
        self.scan_block(start)
    }

    /// True if `- ` or `key: ` begins here.
    fn begins_entry(&self, at: usize) -> bool {
        self.char_at(at) == Some('-') && self.is_blank(at + 1) || self.find_colon(at).is_some()
    }

    /// The colon after a plain key that begins at `at`.
    fn find_colon(&self, at: usize) -> Option<usize> {
        let rest = self.chars().get(at..)?;
        if rest.first().is_some_and(|c| matches!(c, '[' | '{' | '|' | '>' | '@' | '`' | '%')) {
            return None;
        }
        let from = match rest.first() {
            Some(&quote @ ('"' | '\'')) => at + 2 + rest[1..].iter().position(|c| *c == quote)?,
            _ => at,
        };
        (from..self.chars().len())
            .take_while(|&place| self.chars()[place] != '#' || place == from || !self.is_blank(place - 1))
            .find(|&place| self.chars()[place] == ':' && self.is_blank(place + 1))
    }

    /// True if the next line with text is `key: ` in this column.
    fn next_line_begins_key(&self, column: usize) -> bool {
        let lines = self.lines.get(self.line + 1..).unwrap_or_default();
        let next = lines.iter().find(|line| line.iter().any(|c| !matches!(c, ' ' | '#')));
        next.is_some_and(|next| {
            let text: String = next.iter().collect();
            next.iter().position(|c| *c != ' ') == Some(column)
                && (text.contains(": ") || text.ends_with(':'))
        })
    }

    /// Notes a line that begins at no open level.
    fn check_indentation(&mut self, start: usize) {
        let mut left = None;
        while let Some(level) = self.levels.pop_if(|level| level.column > start) {
            left = Some(level);
        }
        let outer = self.levels.last().copied();
        let wanted = match (outer, left) {
            (Some(outer), None) if outer.column < start && !self.opens_level && self.begins_entry(start) => {
                outer
            }
            (Some(outer), Some(left)) if outer.column < start => {
                if left.column - start <= start - outer.column { left } else { outer }
            }
            (None, Some(left)) => left,
            _ => return,
        };
        if self.indentation.is_none() {
            let first: String = self.lines[wanted.line].iter().skip(wanted.column).collect();
            let word = redact::redact_credentials(first.split([':', ' ']).next().unwrap_or_default());
            let message = match left {
                Some(_) => format!("this line is indented by {}, like none above", count_spaces(start)),
                None => "this line is indented under one that has its value already".to_owned(),
            };
            let help = match wanted.column {
                0 => format!("write it without spaces before it, like `{word}` in line {}", wanted.line + 1),
                column => {
                    format!(
                        "indent it by {}, like `{word}` in line {}",
                        count_spaces(column),
                        wanted.line + 1
                    )
                }
            };
            let other = if left.is_none() { ", or remove the value above it" } else { "" };
            self.indentation = Some(self.finding(start, 1, message, help + other));
        }
    }

    fn open_level(&mut self, column: usize) {
        if self.levels.last().is_none_or(|level| level.column < column) {
            self.levels.push(IndentLevel { column, line: self.line });
        }
    }

    /// Scans `- `, `key:` and a value outside brackets.
    fn scan_block(&mut self, start: usize) -> Result<(), Finding> {
        let mut at = start;
        while self.char_at(at) == Some('-') && self.is_blank(at + 1) {
            self.open_level(at);
            self.opens_level = true;
            let Some(next) = self.skip_blanks(at + 1) else { return Ok(()) };
            at = next;
        }
        let colon = self.find_colon(at);
        if self.char_at(at) == Some('-')
            && self.char_at(at + 1).is_some_and(char::is_alphabetic)
            && colon.is_some()
        {
            let message = "the dash of a list needs a space after it";
            let word: String = self.text_from(at + 1).split(':').next().unwrap_or_default().to_owned();
            return Err(self.finding(at, 1, message, format!("write - {word}:")));
        }
        let Some(colon) = colon else {
            self.check_lone_word(start, at)?;
            self.opens_level = false;
            return self.scan_value(at);
        };
        self.open_level(at);
        self.opens_level = true;
        let Some(value) = self.skip_blanks(colon + 1) else { return Ok(()) };
        self.opens_level = false;
        self.scan_value(value)
    }

    /// `burst:20` and `locations` where a key must stand.
    fn check_lone_word(&self, start: usize, at: usize) -> Result<(), Finding> {
        let text = self.text_from(at);
        let text = text.split(" #").next().unwrap_or_default().trim_end();
        let is_word = |word: &str| {
            word.starts_with(|c: char| c.is_ascii_alphabetic())
                && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        };
        let is_level = self.levels.is_empty() || self.levels.last().is_some_and(|level| level.column == at);
        let key_expected = is_level && start == at;
        if let Some((key, value)) = text.split_once(':')
            && (key_expected || self.next_line_begins_key(at))
            && is_word(key)
            && !value.starts_with("//")
        {
            let column = at + key.chars().count();
            let help = format!("write {key}: {value}");
            let found =
                self.finding(column, 1, format!("the colon after `{key}` needs a space after it"), help);
            return Err(Finding { quotes_file: true, ..found });
        }
        let (word, value) = text.split_once(' ').unwrap_or((text, ""));
        if key_expected && is_word(word) {
            let message = format!("`{word}` has no colon after it");
            let help = format!("write {word}: {}", value.trim_start());
            let found = self.finding(at, word.chars().count(), message, help.trim_end());
            return Err(Finding { quotes_file: true, ..found });
        }
        Ok(())
    }
}

fn count_spaces(count: usize) -> String {
    if count == 1 { "1 space".to_owned() } else { format!("{count} spaces") }
}

/// The value in quotes.
pub(super) fn quote_value(value: &str) -> String {
    match value.contains(['"', '\\']) {
        true => format!("'{}'", value.replace('\'', "''")),
        false => format!("\"{value}\""),
    }
}
