//! Scans values: plain ones, quotes, and brackets with their content.

use super::{Bracket, Finding, Scanned, SyntaxScan};
use sluicegate_model::Position;

impl SyntaxScan<'_> {
    pub(super) fn scan_value(&mut self, at: usize) -> Result<(), Finding> {
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
            '-' if self.is_blank(at + 1) => {
                let item = self.plain_text(at + 1, false);
                let message = "a list begins in the line after its key";
                let help = format!("write it there, or in one line: [{}]", item.trim());
                Err(Finding { quotes_file: true, ..self.finding(at, 1, message, help) })
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
        self.brackets.push(Bracket { open, line: self.line, column, indent: self.indent, value_at: None });
    }

    pub(super) fn report_open_bracket(&self, bracket: &Bracket) -> Finding {
        let close = if bracket.open == '[' { ']' } else { '}' };
        let message = format!("the `{}` is never closed", bracket.open);
        let found = self.finding(bracket.column, 1, message, format!("write {close} after its last entry"));
        Finding { position: Position { line: bracket.line + 1, ..found.position }, ..found }
    }

    /// Scans the rest of a line inside brackets.
    pub(super) fn scan_flow(&mut self, from: usize) -> Result<(), Finding> {
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
