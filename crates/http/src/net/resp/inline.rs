//! Splits an inline command into its arguments.

use std::ops::Range;

use super::fault::ProtocolFault;

const UNBALANCED: ProtocolFault = ProtocolFault("unbalanced quotes in a command");

/// Appends the arguments of `line` to `text`, and their places to `places`. Between double quotes `\n`, `\r`, `\t`,
/// `\b`, `\a`, `\xHH` and any other escaped byte stand for one byte, between single quotes only `\'`; a closing quote
/// ends its argument.
///
/// # Errors
/// A quote is not closed, or an argument goes on behind one.
pub(super) fn split_line(
    line: &[u8],
    text: &mut Vec<u8>,
    places: &mut Vec<Range<usize>>,
) -> Result<(), ProtocolFault> {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len();
        rest = read_argument(rest, text)?;
        places.push(start..text.len());
    }
}

/// Appends the argument at the front of `line`; returns the rest of the line.
fn read_argument<'a>(mut line: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolFault> {
    while let [first, rest @ ..] = line {
        match first {
            b'"' | b'\'' => {
                let rest = read_quoted(rest, *first, text)?;
                let is_end = rest.first().is_none_or(u8::is_ascii_whitespace);
                return if is_end { Ok(rest) } else { Err(UNBALANCED) };
            }
            space if space.is_ascii_whitespace() => break,
            byte => text.push(*byte),
        }
        line = rest;
    }
    Ok(line)
}

/// Appends the text before the closing `quote`; returns the rest of the line.
fn read_quoted<'a>(mut line: &'a [u8], quote: u8, text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolFault> {
    loop {
        let (byte, rest) = match line {
            [] => return Err(UNBALANCED),
            [byte, rest @ ..] if *byte == quote => return Ok(rest),
            [b'\\', b'x', high, low, rest @ ..] if quote == b'"' && is_hex(*high) && is_hex(*low) => {
                (hex_value(*high) << 4 | hex_value(*low), rest)
            }
            [b'\\', escaped, rest @ ..] if quote == b'"' => (unescape(*escaped), rest),
            [b'\\', b'\'', rest @ ..] if quote == b'\'' => (b'\'', rest),
            [byte, rest @ ..] => (*byte, rest),
        };
        text.push(byte);
        line = rest;
    }
}

fn is_hex(digit: u8) -> bool {
    digit.is_ascii_hexdigit()
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20).wrapping_sub(b'a').wrapping_add(10),
    }
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}
