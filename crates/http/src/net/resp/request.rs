//! Reads commands: arrays of bulk strings, and inline commands as people type them, with their quotes.

use std::ops::Range;

/// Bytes of one command.
pub const REQUEST_MAX: usize = 64 * 1024;
/// Arguments of one command, its name included.
const ARGUMENTS_MAX: usize = 1_024;
/// Digits of a length; more would exceed every bound.
const LENGTH_DIGITS_MAX: usize = 10;

/// Reads one command after the other from the front of a buffer. Its memory is used again.
#[derive(Debug, Default)]
pub struct CommandReader {
    arguments: Vec<Range<usize>>,
    /// The arguments of an inline command, without quotes; empty = they are in the input.
    unquoted: Vec<u8>,
}

/// The content at the front of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestStep {
    /// The first bytes of a command.
    Partial,
    /// This many bytes that ask for nothing: an empty line or an empty array.
    Skip(usize),
    /// A command of this many bytes.
    Command(usize),
}

// === impl CommandReader ===

impl CommandReader {
    /// Reads the command at the front of `input`; [`CommandReader::argument`] then shows it.
    ///
    /// # Errors
    /// The input is no RESP, or exceeds a bound.
    pub fn read_command(&mut self, input: &[u8]) -> Result<RequestStep, ProtocolFault> {
        self.arguments.clear();
        self.unquoted.clear();
        let step = match input.first() {
            None => RequestStep::Partial,
            Some(b'*') => self.read_array(input)?,
            Some(_) => self.read_inline(input)?,
        };
        match step {
            RequestStep::Partial if input.len() >= REQUEST_MAX => {
                Err(ProtocolFault("a command has at most 64 KiB"))
            }
            RequestStep::Skip(length) | RequestStep::Command(length) if length > REQUEST_MAX => {
                Err(ProtocolFault("a command has at most 64 KiB"))
            }
            step => Ok(step),
        }
    }

    /// The number of arguments, the name of the command included.
    pub fn count(&self) -> usize {
        self.arguments.len()
    }

    /// An argument of the command that was read from `input`.
    pub fn argument<'a>(&'a self, input: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let source = if self.unquoted.is_empty() { input } else { &self.unquoted };
        source.get(self.arguments.get(index)?.clone())
    }

    fn read_array(&mut self, input: &[u8]) -> Result<RequestStep, ProtocolFault> {
        let Some((count, mut at)) = read_length(input, "invalid multibulk length")? else {
            return Ok(RequestStep::Partial);
        };
        let Ok(count) = usize::try_from(count) else { return Ok(RequestStep::Skip(at)) };
        if count > ARGUMENTS_MAX {
            return Err(ProtocolFault("invalid multibulk length: a command has at most 1024 arguments"));
        }
        for _ in 0..count {
            let rest = &input[at..];
            match rest.first() {
                None => return Ok(RequestStep::Partial),
                Some(b'$') => {}
                Some(_) => return Err(ProtocolFault("expected '$' before an argument")),
            }
            let Some((length, head)) = read_length(rest, "invalid bulk length")? else {
                return Ok(RequestStep::Partial);
            };
            let length = usize::try_from(length).ok().filter(|length| *length <= REQUEST_MAX);
            let length = length.ok_or(ProtocolFault("invalid bulk length"))?;
            let (start, end) = (at + head, at + head + length);
            match input.get(end..).unwrap_or_default() {
                [] | [b'\r'] => return Ok(RequestStep::Partial),
                [b'\r', b'\n', ..] => {}
                _ => return Err(ProtocolFault("expected the end of an argument")),
            }
            self.arguments.push(start..end);
            at = end + 2;
        }
        Ok(if count == 0 { RequestStep::Skip(at) } else { RequestStep::Command(at) })
    }

    fn read_inline(&mut self, input: &[u8]) -> Result<RequestStep, ProtocolFault> {
        let Some(end) = memchr::memchr(b'\n', input) else { return Ok(RequestStep::Partial) };
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        split_line(line, &mut self.unquoted, &mut self.arguments)?;
        if self.arguments.len() > ARGUMENTS_MAX {
            return Err(ProtocolFault("a command has at most 1024 arguments"));
        }
        if is_http(&self.arguments, &self.unquoted) {
            return Err(ProtocolFault("this is HTTP, not RESP"));
        }
        Ok(match self.arguments.is_empty() {
            true => RequestStep::Skip(end + 1),
            false => RequestStep::Command(end + 1),
        })
    }
}

/// True if a line belongs to the head of an HTTP request: a page in a browser must not reach the commands in a body.
fn is_http(arguments: &[Range<usize>], unquoted: &[u8]) -> bool {
    let is_name = |first: &Range<usize>| unquoted[first.clone()].eq_ignore_ascii_case(b"host:");
    let is_version = |last: &Range<usize>| unquoted[last.clone()].starts_with(b"HTTP/");
    arguments.first().is_some_and(is_name) || arguments.last().is_some_and(is_version)
}

/// The number behind the first byte of `input`, and the length of its line; `None` = the line is not complete.
fn read_length(input: &[u8], fault: &'static str) -> Result<Option<(i64, usize)>, ProtocolFault> {
    let line = &input[1..];
    // Longer than every valid line.
    let seen = &line[..line.len().min(LENGTH_DIGITS_MAX + 2)];
    let Some(end) = memchr::memchr(b'\r', seen) else {
        return if seen.len() < LENGTH_DIGITS_MAX + 2 { Ok(None) } else { Err(ProtocolFault(fault)) };
    };
    let is_number = |text: &&str| !text.starts_with('+');
    let number = std::str::from_utf8(&line[..end]).ok().filter(is_number).and_then(|text| text.parse().ok());
    let number = number.ok_or(ProtocolFault(fault))?;
    match line.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((number, end + 3))),
        Some(_) => Err(ProtocolFault(fault)),
    }
}

const UNBALANCED: ProtocolFault = ProtocolFault("unbalanced quotes in a command");

/// Appends the arguments of `line` to `text`, and their places to `places`. Between double quotes `\n`, `\r`, `\t`,
/// `\b`, `\a`, `\xHH` and any other escaped byte stand for one byte, between single quotes only `\'`; a closing quote
/// ends its argument.
///
/// # Errors
/// A quote is not closed, or an argument goes on behind one.
fn split_line(line: &[u8], text: &mut Vec<u8>, places: &mut Vec<Range<usize>>) -> Result<(), ProtocolFault> {
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
            [b'\\', b'x', high, low, rest @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                (digit(*high) << 4 | digit(*low), rest)
            }
            [b'\\', escaped, rest @ ..] if quote == b'"' => (unescape(*escaped), rest),
            [b'\\', b'\'', rest @ ..] if quote == b'\'' => (b'\'', rest),
            [byte, rest @ ..] => (*byte, rest),
        };
        text.push(byte);
        line = rest;
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

/// A reason why the input is no RESP; nothing behind it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolFault(pub &'static str);
