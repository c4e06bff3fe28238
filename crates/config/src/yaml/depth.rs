//! Limits the nesting of a text before it is parsed, because parsing takes time quadratic in the depth.

use sluicegate_model::Position;

/// The deepest level; it is above the parser's bound, so that an ordinary file never fails here.
const DEPTH_MAX: usize = 200;

/// The position at which `text` nests too deeply, on one line or in brackets.
///
/// This is a scan, not a parse: it knows quotes and comments, and counts brackets only where a value may begin.
pub fn find_too_deep(text: &str) -> Option<Position> {
    let found =
        DepthScanner { bytes: text.as_bytes(), at: 0, brackets: 0, indicators: 0, value_may_begin: true }
            .find_excess()?;
    let before = &text[..found];
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Some(Position { line: before.matches('\n').count() + 1, column, width: 1 })
}

struct DepthScanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Open brackets and braces.
    brackets: usize,
    /// `- `, `? ` and `: ` on this line; each opens a list or mapping inside the previous one.
    indicators: usize,
    value_may_begin: bool,
}

impl DepthScanner<'_> {
    fn find_excess(mut self) -> Option<usize> {
        while let Some(&byte) = self.bytes.get(self.at) {
            if self.brackets + self.indicators > DEPTH_MAX {
                return Some(self.at - 1);
            }
            self.scan_byte(byte);
            self.at += 1;
        }
        (self.brackets + self.indicators > DEPTH_MAX).then(|| self.at - 1)
    }

    fn scan_byte(&mut self, byte: u8) {
        let in_flow = self.brackets > 0;
        match byte {
            b'\n' => (self.indicators, self.value_may_begin) = (0, true),
            b' ' | b'\t' | b'\r' => {}
            b'#' if self.at == 0 || self.bytes[self.at - 1].is_ascii_whitespace() => self.skip_comment(),
            b'"' | b'\'' if self.value_may_begin => self.skip_quoted(byte),
            b'[' | b'{' if self.value_may_begin || in_flow => {
                self.brackets += 1;
                self.value_may_begin = true;
            }
            b']' | b'}' if in_flow => {
                self.brackets -= 1;
                self.value_may_begin = true;
            }
            b',' if in_flow => self.value_may_begin = true,
            b':' | b'-' | b'?' if self.ends_word() && (byte == b':' || self.value_may_begin) => {
                self.indicators += usize::from(self.value_may_begin && !in_flow);
                self.value_may_begin = true;
            }
            b':' if in_flow => self.value_may_begin = true,
            b'&' | b'*' | b'!' if self.value_may_begin => self.skip_name(),
            _ => self.value_may_begin = false,
        }
    }

    fn ends_word(&self) -> bool {
        self.bytes.get(self.at + 1).is_none_or(u8::is_ascii_whitespace)
    }

    /// Moves to the last byte of the line.
    fn skip_comment(&mut self) {
        let rest = self.bytes[self.at..].iter().position(|&byte| byte == b'\n');
        self.at = rest.map_or(self.bytes.len(), |length| self.at + length - 1);
    }

    /// Moves to the closing quote; a quote without an end is an ordinary character.
    fn skip_quoted(&mut self, quote: u8) {
        let mut end = self.at + 1;
        while let Some(&byte) = self.bytes.get(end) {
            match byte {
                b'\\' if quote == b'"' => end += 1,
                b'\'' if quote == b'\'' && self.bytes.get(end + 1) == Some(&b'\'') => end += 1,
                _ if byte == quote => {
                    self.at = end;
                    return;
                }
                _ => {}
            }
            end += 1;
        }
        self.value_may_begin = false;
    }

    /// Moves to the last byte of an anchor, an alias or a tag.
    fn skip_name(&mut self) {
        let ends = |byte: &u8| byte.is_ascii_whitespace() || b",[]{}".contains(byte);
        let length = self.bytes[self.at + 1..].iter().position(ends);
        self.at = length.map_or(self.bytes.len(), |length| self.at + length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_depth_is_found_at_its_position() {
        for open in
            ["[", "{", "{a: ", "[[1], ", "- ", "? ", ": ", "- [\n", "{\"a\":", "[&x ", "[!t ", "['a]', "]
        {
            let found = find_too_deep(&format!("a: {}", open.repeat(1000)));
            assert!(found.is_some(), "{open:?}");
        }
        let position = find_too_deep(&format!("x: 1\ny: {}", "[".repeat(1000))).expect("deep");
        assert_eq!((position.line, position.column), (2, 4 + DEPTH_MAX));
    }

    #[test]
    fn flat_texts_are_not_too_deep() {
        for flat in [
            "a: '[[[['\n",
            "a: \"[\\\"[[\"\n",
            "# [[[[\n",
            "a: b [[[[ c\n",
            "a: it's [ a\n",
            "- a\n",
            "- { a: [1, 2], b: \"[::1]:80\" }\n",
            "- a - b - c: d\n",
            "a: [1, 2] # ]]\n",
            "- path: \"~ ^/[a-z]+\" # '\n",
            "- ''\n",
            "- '''['\n",
        ] {
            assert_eq!(find_too_deep(&flat.repeat(1000)), None, "{flat:?}");
        }
    }
}
