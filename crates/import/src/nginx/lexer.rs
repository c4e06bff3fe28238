//! Words, `;` and braces of an nginx configuration, by the rules of nginx's own reader.

use std::iter::Peekable;
use std::str::Chars;

use crate::{ImportFault, ImportedLine};

/// One word or mark, and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfToken {
    pub line: usize,
    pub kind: TokenKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenKind {
    Word(String),
    Semicolon,
    Open,
    Close,
    /// The code of a `…_by_lua_block`, unread.
    Code,
}

/// A longer word is a mistake.
const WORD_BYTES_MAX: usize = 64 << 10;

/// All other spaces are parts of words.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

pub(super) fn read_tokens(text: &str, file: &str) -> Result<Vec<ConfToken>, ImportFault> {
    let mut reader = TokenReader { chars: text.chars().peekable(), line: 1, file };
    let mut tokens: Vec<ConfToken> = Vec::new();
    while let Some(c) = reader.next_char() {
        let line = reader.line;
        let kind = match c {
            c if is_space(c) => continue,
            '#' => {
                reader.skip_line();
                continue;
            }
            ';' => TokenKind::Semicolon,
            '}' => TokenKind::Close,
            '{' if begins_code(&tokens) => {
                reader.skip_code(line)?;
                TokenKind::Code
            }
            '{' => TokenKind::Open,
            '"' | '\'' => TokenKind::Word(reader.read_quoted(c, line)?),
            c => TokenKind::Word(reader.read_bare(c, line)?),
        };
        tokens.push(ConfToken { line, kind });
    }
    Ok(tokens)
}

/// True if the directive that is being read holds the code of another language.
fn begins_code(tokens: &[ConfToken]) -> bool {
    let is_mark = |token: &ConfToken| !matches!(token.kind, TokenKind::Word(_));
    let start = tokens.iter().rposition(is_mark).map_or(0, |mark| mark + 1);
    matches!(tokens.get(start), Some(ConfToken { kind: TokenKind::Word(name), .. }) if name.ends_with("_by_lua_block"))
}

struct TokenReader<'t> {
    chars: Peekable<Chars<'t>>,
    line: usize,
    file: &'t str,
}

impl TokenReader<'_> {
    fn next_char(&mut self) -> Option<char> {
        let c = self.chars.next()?;
        // The line of a token is that of its first character: a line break counts for the next token.
        if c == '\n' {
            self.line += 1;
        }
        Some(c)
    }

    fn fault(&self, line: usize, message: &str) -> ImportFault {
        ImportFault::new(&ImportedLine { file: self.file.to_owned(), line }, message)
    }

    fn skip_line(&mut self) {
        while self.next_char().is_some_and(|c| c != '\n') {}
    }

    /// Passes over nested braces, the strings and comments of Lua.
    fn skip_code(&mut self, line: usize) -> Result<(), ImportFault> {
        let mut depth = 1_usize;
        while let Some(c) = self.next_char() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                '"' | '\'' => {
                    self.read_quoted(c, line)?;
                }
                '-' if self.chars.peek() == Some(&'-') => self.skip_line(),
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(self.fault(line, "the block of code does not end"))
    }

    fn read_quoted(&mut self, quote: char, line: usize) -> Result<String, ImportFault> {
        let mut word = String::new();
        while let Some(c) = self.next_char() {
            match c {
                c if c == quote => return Ok(word),
                '\\' => self.push_escape(&mut word),
                c => word.push(c),
            }
            if word.len() > WORD_BYTES_MAX {
                return Err(self.fault(line, "the text in quotes is too long"));
            }
        }
        Err(self.fault(line, "the quote is not closed"))
    }

    fn read_bare(&mut self, first: char, line: usize) -> Result<String, ImportFault> {
        let mut word = String::new();
        let mut next = Some(first);
        while let Some(c) = next {
            let is_variable = word.ends_with('$') && c == '{';
            match c {
                '\\' => self.push_escape(&mut word),
                c => word.push(c),
            }
            if word.len() > WORD_BYTES_MAX {
                return Err(self.fault(line, "the word is too long"));
            }
            if is_variable {
                while let Some(c) = self.chars.next_if(|c| !is_space(*c) && !matches!(c, ';' | '}')) {
                    word.push(c);
                }
                if self.chars.next_if_eq(&'}').is_some() {
                    word.push('}');
                }
            }
            let ends = |c: &char| is_space(*c) || *c == ';' || (*c == '{' && !word.ends_with('$'));
            next = match self.chars.peek() {
                Some(c) if !ends(c) => self.next_char(),
                _ => None,
            };
        }
        Ok(word)
    }

    /// nginx keeps the backslash before everything but quotes, itself, and t, r, n.
    fn push_escape(&mut self, word: &mut String) {
        match self.next_char() {
            Some(c @ ('"' | '\'' | '\\')) => word.push(c),
            Some('t') => word.push('\t'),
            Some('r') => word.push('\r'),
            Some('n') => word.push('\n'),
            Some(other) => word.extend(['\\', other]),
            None => word.push('\\'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let tokens = read_tokens(text, "x").unwrap();
        let text = |token: ConfToken| match token.kind {
            TokenKind::Word(word) => word,
            TokenKind::Semicolon => ";".to_owned(),
            TokenKind::Open => "{".to_owned(),
            TokenKind::Close => "}".to_owned(),
            TokenKind::Code => "CODE".to_owned(),
        };
        tokens.into_iter().map(text).collect()
    }

    #[test]
    fn words_are_split_as_nginx_does() {
        assert_eq!(
            words("a b;#c\nd{e}"),
            ["a", "b", ";", "d", "{", "e}"],
            "a word ends at a space, at ; or at a brace"
        );
        assert_eq!(words("d { e; }"), ["d", "{", "e", ";", "}"]);
        assert_eq!(words(r#"map "a b" 'c\'d';"#), ["map", "a b", "c'd", ";"]);
        assert_eq!(words(r"location ~ \.php$ {"), ["location", "~", r"\.php$", "{"]);
        assert_eq!(words("set $x ${host}y;"), ["set", "$x", "${host}y", ";"]);
        assert_eq!(words("a b#c;"), ["a", "b#c", ";"]);
        assert_eq!(
            words("access_by_lua_block { if x then return {'}'} end -- }\n } a;"),
            ["access_by_lua_block", "CODE", "a", ";"]
        );
    }

    #[test]
    fn lines_are_counted() {
        let lines: Vec<usize> =
            read_tokens("a\n\n b;\n\"x\ny\" z", "x").unwrap().iter().map(|t| t.line).collect();
        assert_eq!(lines, [1, 3, 3, 4, 5]);
        assert_eq!(read_tokens("a;\n'b", "f").unwrap_err().to_string(), "f:2: the quote is not closed");
    }
}
