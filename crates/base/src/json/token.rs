//! The tokens of a JSON string or number that slices may cut: their text, and escape sequences.

/// The longest text that is kept, in bytes.
pub const TEXT_MAX: usize = 1024;

/// The text of a token, of which earlier slices brought a part.
#[derive(Debug, Clone)]
pub(super) struct TokenBuffer {
    bytes: [u8; TEXT_MAX],
    length: usize,
    is_kept: bool,
    is_long: bool,
}

/// An escape sequence inside a string.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EscapeScan {
    /// Digits of `\u` that are missing, and the value of those that came.
    digits_left: u8,
    unit: u16,
    /// The first half of a surrogate pair, of which the second may follow.
    first_half: Option<u16>,
}

/// The effect of a byte behind a backslash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EscapeByte {
    Taken,
    /// The sequence is complete, with the characters that are known now: none by the first half of a surrogate pair,
    /// two if such a half stayed alone in front of another character.
    Complete([Option<char>; 2]),
    Invalid,
}

// === impl TokenBuffer ===

impl Default for TokenBuffer {
    fn default() -> Self {
        TokenBuffer { bytes: [0; TEXT_MAX], length: 0, is_kept: false, is_long: false }
    }
}

impl TokenBuffer {
    pub(super) fn begin(&mut self, is_kept: bool) {
        self.length = 0;
        self.is_kept = is_kept;
        self.is_long = false;
    }

    pub(super) fn push(&mut self, text: &[u8]) {
        if !self.is_kept {
            return;
        }
        let end = self.length + text.len();
        match self.bytes.get_mut(self.length..end) {
            Some(free) if !self.is_long => {
                free.copy_from_slice(text);
                self.length = end;
            }
            _ => self.is_long = true,
        }
    }

    /// The text with its `last` piece. `None`: it is not kept or too long.
    pub(super) fn join<'a>(&'a mut self, last: &'a [u8]) -> Option<&'a [u8]> {
        if self.length == 0 && !self.is_long {
            // Most tokens are inside one slice.
            return Some(last).filter(|last| self.is_kept && last.len() <= TEXT_MAX);
        }
        self.push(last);
        Some(&self.bytes[..self.length]).filter(|_| self.is_kept && !self.is_long)
    }
}

// === impl EscapeScan ===

impl EscapeScan {
    pub(super) fn push(&mut self, byte: u8) -> EscapeByte {
        if self.digits_left > 0 {
            return self.push_digit(byte);
        }
        let character = match byte {
            b'u' => {
                (self.digits_left, self.unit) = (4, 0);
                return EscapeByte::Taken;
            }
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x8,
            b'f' => 0xc,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => return EscapeByte::Invalid,
        };
        self.complete(character.into())
    }

    fn push_digit(&mut self, byte: u8) -> EscapeByte {
        let Some(digit) = char::from(byte).to_digit(16) else { return EscapeByte::Invalid };
        self.unit = self.unit << 4 | digit as u16;
        self.digits_left -= 1;
        if self.digits_left > 0 { EscapeByte::Taken } else { self.complete(self.unit) }
    }

    /// Halves that stay alone are replaced: RFC 8259 allows them, and servers read the document nevertheless.
    fn complete(&mut self, unit: u16) -> EscapeByte {
        let is_first = matches!(unit, 0xd800..0xdc00);
        let before = std::mem::replace(&mut self.first_half, is_first.then_some(unit));
        let units = before.into_iter().chain((!is_first).then_some(unit));
        let decoded = char::decode_utf16(units);
        let mut characters = decoded.map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER));
        EscapeByte::Complete([characters.next(), characters.next()])
    }

    /// The character in place of a first half that has stayed alone.
    pub(super) fn end_half(&mut self) -> Option<char> {
        self.first_half.take().map(|_| char::REPLACEMENT_CHARACTER)
    }
}
