//! Rust source, classified: code, comments and literals, tests.

use std::ops::Range;

/// One source file. `code` is as long as `text`, with blanks in place of comments and literals.
pub struct Source {
    pub text: String,
    pub code: String,
    /// Bytes of items under `#[cfg(test)]`.
    pub tests: Vec<Range<usize>>,
}

impl Source {
    pub fn new(text: &str) -> Source {
        let code = mask(text);
        let tests = test_items(&code);
        Source { text: text.to_owned(), code, tests }
    }

    /// The line of a byte, counted from 1.
    pub fn line(&self, at: usize) -> usize {
        1 + self.code[..at].matches('\n').count()
    }

    pub fn in_tests(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }

    /// The positions of `word` in code as a whole word.
    pub fn words(&self, word: &str) -> Vec<usize> {
        let whole = |at: &usize| {
            let grows_left = word.starts_with(is_word) && self.code[..*at].ends_with(is_word);
            let grows_right = word.ends_with(is_word) && self.code[at + word.len()..].starts_with(is_word);
            !grows_left && !grows_right
        };
        self.code.match_indices(word).map(|(at, _)| at).filter(whole).collect()
    }

    /// The names of the inline modules around a byte, outermost first.
    pub fn inline_modules(&self, at: usize) -> Vec<String> {
        let mut names = Vec::new();
        for start in self.words("mod") {
            let (name, after) = word_at(&self.code, start + "mod".len());
            let open = skip_blanks(&self.code, after);
            if start < at && self.code[open..].starts_with('{') && closing(&self.code, open) > at {
                names.push(name.to_owned());
            }
        }
        names
    }
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

pub fn skip_blanks(text: &str, at: usize) -> usize {
    at + (text[at..].len() - text[at..].trim_start().len())
}

/// The word at or after blanks from `at`, and the byte behind it.
pub fn word_at(text: &str, at: usize) -> (&str, usize) {
    let start = skip_blanks(text, at);
    let end = text[start..].find(|c| !is_word(c)).map_or(text.len(), |length| start + length);
    (&text[start..end], end)
}

/// The byte of the bracket that closes the one at `open`, or the end of the text.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

/// Test-only items: from `#[cfg(test)]` to the end of the item below it.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    if code.contains("#![cfg(test)]") {
        ranges.push(0..code.len() + 1);
    }
    for (start, attribute) in code.match_indices("#[cfg(test)]") {
        let behind = start + attribute.len();
        let end = code[behind..].find(['{', ';']).map_or(code.len(), |length| behind + length);
        let end = if code[end..].starts_with('{') { closing(code, end) } else { end };
        ranges.push(start..end);
    }
    ranges
}

/// Blanks comments and the insides of literals; every line break stays in place.
fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let after_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let hidden = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if rest.starts_with('"') {
            string(rest)
        } else if !after_word && (rest.starts_with('r') || rest.starts_with("br")) {
            raw_string(rest)
        } else if rest.starts_with('\'') {
            character(rest)
        } else {
            0
        };
        if hidden == 0 {
            let c = rest.chars().next().unwrap_or(' ');
            out.push(c);
            at += c.len_utf8();
        } else {
            out.extend(rest[..hidden].bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
            at += hidden;
        }
    }
    out
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if tail.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a raw string, or 0 when `rest` only begins like one.
fn raw_string(rest: &str) -> usize {
    let head = if rest.starts_with("br") { 2 } else { 1 };
    let hashes = rest[head..].bytes().take_while(|b| *b == b'#').count();
    let open = head + hashes;
    if !rest[open..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    rest[open + 1..].find(&end).map_or(rest.len(), |length| open + 1 + length + end.len())
}

/// The length of a character literal, or 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((escaped, _))) => {
            let from = escaped + 1;
            rest[from..].find('\'').map_or(0, |length| from + length + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}
