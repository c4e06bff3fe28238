//! Finds the mistake behind a syntax error of the YAML parser, which often names the line after it.
//!
//! This is a scan of the lines up to the parser's position, never of a valid file. What it does not recognize keeps the
//! parser's own message.

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Position, ValueError};
use crate::config::diagnostics::redact;

/// A mistake and its cure.
struct Finding {
    position: Position,
    message: String,
    help: String,
    /// Whether the help repeats text of the file.
    quotes_file: bool,
}

/// The mistake that made the parser fail at line `failed_at`, if it is recognized.
pub(crate) fn explain_syntax_error(text: &str, failed_at: usize) -> Option<(Position, ValueError)> {
    let lines: Vec<Vec<char>> =
        text.split('\n').map(|line| line.trim_end_matches('\r').chars().collect()).collect();
    let last = failed_at.min(lines.len());
    let mut scan = SyntaxScan { lines: &lines, line: 0, ..SyntaxScan::default() };
    let sure = scan.scan_lines(last);
    let Finding { position, message, mut help, quotes_file } = sure.or(scan.indentation)?;
    if quotes_file {
        let shown = redact::redact_lines(text).into_iter().nth(position.line - 1)?;
        if !shown.chars().eq(lines.get(position.line - 1)?.iter().copied()) {
            help = "put the value in quotes".to_owned();
        }
    }
    Some((position, ValueError::new(codes::SYNTAX, message).with_help(help)))
}

#[derive(Default)]
struct SyntaxScan<'a> {
    lines: &'a [Vec<char>],
    line: usize,
    /// The columns of the open lists and mappings, outermost first.
    levels: Vec<Level>,
    brackets: Vec<Bracket>,
    /// Whether the next line may be indented deeper.
    opens_level: bool,
    /// The indentation of the key of an open block of text (`|` or `>`).
    text_block: Option<usize>,
    /// The first line whose indentation fits nowhere.
    indentation: Option<Finding>,
}

#[derive(Clone, Copy)]
struct Level {
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
        while self.line < last {
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

    /// Whether `- ` or `key: ` begins here.
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
            let sample: String = self.lines[wanted.line].iter().skip(wanted.column).collect();
            let word: String = sample.split([':', ' ']).next().unwrap_or_default().to_owned();
            let spaces = |count: usize| match count {
                0 => "not".to_owned(),
                1 => "by 1 space".to_owned(),
                _ => format!("by {count} spaces"),
            };
            let message =
                format!("this line is indented {}, like no line that it could belong to", spaces(start));
            let help = format!(
                "indent it {}, like `{}` in line {}",
                spaces(wanted.column),
                redact::redact_credentials(&word),
                wanted.line + 1
            );
            self.indentation = Some(self.finding(start, 1, message, help));
        }
    }

    fn open_level(&mut self, column: usize) {
        if self.levels.last().is_none_or(|level| level.column < column) {
            self.levels.push(Level { column, line: self.line });
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
        let key_expected = is_level && (start == at) && !self.opens_level
            || self.levels.is_empty()
            || is_level && start == at;
        if let Some((key, value)) = text.split_once(':')
            && key_expected
            && is_word(key)
            && !value.starts_with("//")
        {
            let column = at + key.chars().count();
            let help = format!("write {key}: {value}");
            let found =
                self.finding(column, 1, format!("the colon after `{key}` needs a space after it"), help);
            return Err(Finding { quotes_file: true, ..found });
        }
        if key_expected && is_word(text) {
            let message = format!("`{text}` has no colon after it");
            return Err(self.finding(at, text.chars().count(), message, format!("write {text}:")));
        }
        Ok(())
    }

    fn scan_value(&mut self, at: usize) -> Result<(), Finding> {
        let Some(first) = self.char_at(at) else { return Ok(()) };
        self.check_first_character(at, first, false)?;
        match first {
            '"' | '\'' => {
                let end = self.scan_quoted(at)?;
                match self.skip_blanks(end + 1) {
                    Some(next) if self.char_at(next) != Some(':') => Err(self.report_after_quote(at, next)),
                    _ => Ok(()),
                }
            }
            '[' | '{' => {
                self.open_bracket(at, first);
                self.scan_flow(at + 1)
            }
            '|' | '>' => {
                self.text_block = Some(self.levels.last().map_or(0, |level| level.column));
                Ok(())
            }
            '&' | '!' => Ok(()),
            _ => {
                let text = self.text_from(at);
                let value = text.split(" #").next().unwrap_or_default().trim_end();
                match value.contains(": ") || value.ends_with(':') {
                    true => {
                        Err(self.unquoted(at, value, "a second colon in one line: the value needs quotes"))
                    }
                    false => Ok(()),
                }
            }
        }
    }

    /// A value may not begin with `@`, a backtick, `%`, or a lone `*`.
    fn check_first_character(&self, at: usize, first: char, in_flow: bool) -> Result<(), Finding> {
        let named = self.char_at(at + 1).is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        let wrong = match first {
            '@' | '`' | '%' => true,
            '*' => !named,
            _ => false,
        };
        if !wrong {
            return Ok(());
        }
        let value = self.plain_text(at, in_flow);
        let message = format!("a value that begins with `{first}` needs quotes");
        let mut found = self.unquoted(at, value.trim_matches('`'), &message);
        if value == "*" {
            found.help = "write \"*\" in quotes; for every path write /".to_owned();
        }
        Err(found)
    }

    /// The text of the value at `at`, which ends at a comma or closing bracket inside brackets.
    fn plain_text(&self, at: usize, in_flow: bool) -> String {
        let text = self.text_from(at);
        let text = text.split(" #").next().unwrap_or_default();
        let mut depth = 0_usize;
        let ends = |c: char| {
            match c {
                '[' | '{' => depth += 1,
                ']' | '}' if depth > 0 => depth -= 1,
                ',' | ']' | '}' if depth == 0 => return true,
                _ => {}
            }
            false
        };
        let end = if in_flow { text.find(ends) } else { None };
        text[..end.unwrap_or(text.len())].trim_end().to_owned()
    }

    fn open_bracket(&mut self, column: usize, open: char) {
        let indent = self.skip_blanks(0).unwrap_or(0);
        self.brackets.push(Bracket { open, line: self.line, column, indent, value_at: None });
    }

    fn report_open_bracket(&self, bracket: &Bracket) -> Finding {
        let close = if bracket.open == '[' { ']' } else { '}' };
        let message = format!("the `{}` is never closed", bracket.open);
        let found = self.finding(bracket.column, 1, message, format!("write {close} after its last entry"));
        Finding { position: Position { line: bracket.line + 1, ..found.position }, ..found }
    }

    /// Scans the rest of a line inside brackets.
    fn scan_flow(&mut self, from: usize) -> Result<(), Finding> {
        let mut at = from;
        let mut token: Option<usize> = None;
        while let Some(c) = self.char_at(at) {
            if c == '#' && at > 0 && self.is_blank(at - 1) {
                break;
            }
            let ends_key = self.char_at(at + 1).is_none_or(|c| matches!(c, ' ' | '\t' | ',' | ']' | '}'));
            match c {
                ' ' | '\t' => {}
                ',' => {
                    token = None;
                    self.set_value_at(None);
                }
                ']' | '}' => {
                    self.close_bracket(at, c)?;
                    token = None;
                    if self.brackets.is_empty() {
                        return self.check_after_brackets(at);
                    }
                }
                ':' if ends_key => {
                    if let Some(value) = self.brackets.last().and_then(|bracket| bracket.value_at) {
                        let start = self.skip_blanks(value).unwrap_or(value);
                        let text = self.plain_text(start, true);
                        return Err(self.unquoted(
                            start,
                            &text,
                            "a second colon in one entry: the value needs quotes",
                        ));
                    }
                    token = None;
                    self.set_value_at(Some(at + 1));
                }
                '[' | '{' => {
                    if let Some(start) = token {
                        let text = self.plain_text(start, true);
                        let message = "a value with brackets in it needs quotes here";
                        return Err(self.unquoted(start, &text, message));
                    }
                    self.open_bracket(at, c);
                }
                '"' | '\'' if token.is_none() => {
                    let line = self.line;
                    let start = at;
                    at = self.scan_quoted(at)?;
                    let next = self.skip_blanks(at + 1).and_then(|next| Some((next, self.char_at(next)?)));
                    if let Some((next, c)) = next
                        && line == self.line
                        && !matches!(c, ',' | ']' | '}' | ':')
                    {
                        return Err(self.report_after_quote(start, next));
                    }
                }
                _ => {
                    if token.is_none() {
                        self.check_first_character(at, c, true)?;
                    }
                    token = token.or(Some(at));
                }
            }
            at += 1;
        }
        // A value that goes on in the next line is not followed.
        if let Some(bracket) = self.brackets.last_mut() {
            bracket.value_at = None;
        }
        Ok(())
    }

    fn set_value_at(&mut self, at: Option<usize>) {
        if let Some(bracket) = self.brackets.last_mut() {
            bracket.value_at = at;
        }
    }

    fn close_bracket(&mut self, at: usize, close: char) -> Result<(), Finding> {
        match self.brackets.pop() {
            Some(bracket) if (bracket.open == '[') == (close == ']') => Ok(()),
            Some(bracket) => {
                let wanted = if bracket.open == '[' { ']' } else { '}' };
                let message =
                    format!("`{close}` does not close the `{}` in line {}", bracket.open, bracket.line + 1);
                Err(self.finding(at, 1, message, format!("write {wanted} before it, or instead of it")))
            }
            None => Ok(()),
        }
    }

    /// Only a comment may stand after the last closing bracket.
    fn check_after_brackets(&self, at: usize) -> Result<(), Finding> {
        let Some(next) = self.skip_blanks(at + 1) else { return Ok(()) };
        match self.char_at(next) {
            Some(c @ (']' | '}')) => Err(self.finding(
                next,
                1,
                format!("this `{c}` closes nothing"),
                "remove it, or open one before",
            )),
            Some(':') => Ok(()),
            _ => Err(self.finding(
                next,
                1,
                "text after the closing bracket",
                "write it in a line of its own, or put the whole value in quotes",
            )),
        }
    }

    fn report_after_quote(&self, start: usize, next: usize) -> Finding {
        let message = format!("text after the quote that began in column {} and has ended", start + 1);
        let help =
            "write quotes around the whole value; inside \"…\" write \\\" for a quote, inside '…' write ''";
        self.finding(next, 1, message, help)
    }

    /// The place of the closing quote, in this line or, if text goes on, in a later one.
    fn scan_quoted(&mut self, start: usize) -> Scanned {
        let (line, quote) = (self.line, self.char_at(start).unwrap_or('"'));
        let open = self.finding(
            start,
            1,
            format!("the quote {quote} is never closed"),
            format!("write {quote} at the end of the value"),
        );
        let mut at = start + 1;
        loop {
            match self.char_at(at) {
                None if self.line + 1 >= self.lines.len() => return Err(open),
                None => {
                    self.line += 1;
                    at = 0;
                    continue;
                }
                Some('\\') if quote == '"' => {
                    self.check_escape(at)?;
                    at += 1;
                }
                Some('\'') if quote == '\'' && self.char_at(at + 1) == Some('\'') => at += 1,
                Some(c) if c == quote => break,
                Some(_) => {}
            }
            at += 1;
        }
        let after = self.skip_blanks(at + 1).and_then(|next| self.char_at(next));
        let ends = after.is_none_or(|c| matches!(c, ',' | ']' | '}'));
        if line != self.line && !ends { Err(open) } else { Ok(at) }
    }

    fn check_escape(&self, at: usize) -> Result<(), Finding> {
        const KNOWN: &str = "0abtnvfre \"/\\N_LPxuU\t";
        match self.char_at(at + 1) {
            Some(c) if !KNOWN.contains(c) => {
                let message = format!("`\\{c}` has no meaning inside \"…\"");
                let help = format!("write single quotes around the value: '…', or \\\\{c}");
                Err(self.finding(at, 2, message, help))
            }
            _ => Ok(()),
        }
    }
}

/// The value in quotes.
fn quote_value(value: &str) -> String {
    match value.contains(['"', '\\']) {
        true => format!("'{}'", value.replace('\'', "''")),
        false => format!("\"{value}\""),
    }
}
