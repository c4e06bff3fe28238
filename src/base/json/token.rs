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
    /// The first half of a surrogate pair, which needs its second.
    first_half: Option<u16>,
}

/// The effect of a byte behind a backslash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EscapeByte {
    Taken,
    /// The first half of a surrogate pair is complete.
    FirstHalf,
    Character(char),
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
    /// Whether only another escape sequence may follow.
    pub(super) fn is_open(&self) -> bool {
        self.first_half.is_some()
    }

    pub(super) fn push(&mut self, byte: u8) -> EscapeByte {
        if self.digits_left > 0 {
            return self.push_digit(byte);
        }
        let character = match byte {
            b'u' => {
                (self.digits_left, self.unit) = (4, 0);
                return EscapeByte::Taken;
            }
            _ if self.is_open() => return EscapeByte::Invalid,
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            _ => return EscapeByte::Invalid,
        };
        EscapeByte::Character(character)
    }

    fn push_digit(&mut self, byte: u8) -> EscapeByte {
        let Some(digit) = char::from(byte).to_digit(16) else { return EscapeByte::Invalid };
        self.unit = self.unit << 4 | digit as u16;
        self.digits_left -= 1;
        if self.digits_left > 0 {
            return EscapeByte::Taken;
        }
        let halves = [self.first_half.take(), Some(self.unit)];
        if halves[0].is_none() && matches!(self.unit, 0xd800..0xdc00) {
            self.first_half = Some(self.unit);
            return EscapeByte::FirstHalf;
        }
        match char::decode_utf16(halves.into_iter().flatten()).next() {
            Some(Ok(character)) => EscapeByte::Character(character),
            _ => EscapeByte::Invalid,
        }
    }
}
