//! Runs of bytes inside a JSON string that stand for themselves, and whether they are UTF-8.

const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// The beginning of a string's bytes, up to a quote, a backslash or a control character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextRun {
    pub(super) length: usize,
    pub(super) is_ascii: bool,
}

// Eight bytes at a time: most bytes of a stream are inside strings.
pub(super) fn find_run(bytes: &[u8]) -> TextRun {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut high = 0;
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let (quotes, backslashes) = (word ^ (ONES * 0x22), word ^ (ONES * 0x5c));
        // The lowest bit that is set marks a true end; a borrow may set others above it.
        let ends = quotes.wrapping_sub(ONES) & !quotes
            | backslashes.wrapping_sub(ONES) & !backslashes
            | word.wrapping_sub(ONES * 0x20) & !word;
        let ends = ends & HIGH;
        if ends != 0 {
            let below = (ends & ends.wrapping_neg()) - 1;
            high |= word & HIGH & below;
            return TextRun { length: at * 8 + ends.trailing_zeros() as usize / 8, is_ascii: high == 0 };
        }
        high |= word & HIGH;
    }
    let tail = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len());
    let is_ascii = high == 0 && rest[..tail].is_ascii();
    TextRun { length: words.len() * 8 + tail, is_ascii }
}

/// An incomplete character: its first bytes, before the others have come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CutCharacter {
    bytes: [u8; 4],
    length: usize,
}

impl CutCharacter {
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// True if the bytes of a run continue in UTF-8; keeps the character that its end cuts.
    pub(super) fn accepts(&mut self, mut run: &[u8]) -> bool {
        while let Some((byte, rest)) = run.split_first().filter(|_| self.length > 0) {
            self.bytes[self.length] = *byte;
            self.length += 1;
            run = rest;
            match str::from_utf8(&self.bytes[..self.length]) {
                Ok(_) => self.length = 0,
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return false,
            }
        }
        let Err(error) = str::from_utf8(run) else { return true };
        let cut = &run[error.valid_up_to()..];
        if error.error_len().is_some() {
            return false;
        }
        self.length = cut.len();
        self.bytes[..cut.len()].copy_from_slice(cut);
        true
    }
}
