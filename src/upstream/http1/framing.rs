//! Where the body of an answer ends: at its length, with its last chunk, or with the connection.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;

use super::head::{MalformedResponse, describe_error, parse_field};

/// Bytes of the line that tells a chunk's size.
const SIZE_LINE_MAX: usize = 4 * 1024;
/// Bytes of what may be said after the sizes of all chunks; nothing understands it.
const EXTENSIONS_MAX: usize = 16 * 1024;
const TRAILERS_MAX: usize = 16 * 1024;
const TRAILER_FIELDS_MAX: usize = 100;
/// Chunks up to this size go together, as far as they are there, in pieces of at most so many bytes: what a piece costs
/// beside its bytes would else be many times those.
const SMALL_CHUNK_MAX: usize = 4 * 1024;
const JOINED_MAX: usize = 16 * 1024;
/// What follows the data of the last chunk, mostly.
const LAST_CHUNK_END: &[u8] = b"\r\n0\r\n\r\n";

pub(super) enum ResponseFraming {
    Ended,
    /// Bytes still to come.
    Length(u64),
    Chunked(ChunkDecoder),
    UntilClose,
}

pub(super) struct ChunkDecoder {
    phase: ChunkPhase,
    /// Bytes of extensions so far.
    extension_bytes: usize,
}

/// What comes next.
enum ChunkPhase {
    Size,
    /// So many bytes of a chunk.
    Data(u64),
    DataEnd,
    Trailers,
}

impl ResponseFraming {
    pub(super) fn from_length(length: u64) -> ResponseFraming {
        if length == 0 { ResponseFraming::Ended } else { ResponseFraming::Length(length) }
    }

    pub(super) fn chunked() -> ResponseFraming {
        ResponseFraming::Chunked(ChunkDecoder { phase: ChunkPhase::Size, extension_bytes: 0 })
    }

    /// Bytes that are still to come, where they are known.
    pub(super) fn bytes_left(&self) -> Option<usize> {
        match self {
            ResponseFraming::Ended => Some(0),
            ResponseFraming::Length(left) => Some(usize::try_from(*left).unwrap_or(usize::MAX)),
            ResponseFraming::Chunked(_) | ResponseFraming::UntilClose => None,
        }
    }

    /// The next piece of the body in what was `read`; `None` when it has ended, or more has to be read.
    ///
    /// # Errors
    /// When what came is none.
    pub(super) fn next_frame(
        &mut self,
        read: &mut BytesMut,
    ) -> Result<Option<Frame<Bytes>>, MalformedResponse> {
        match self {
            ResponseFraming::Ended => Ok(None),
            ResponseFraming::UntilClose => Ok(take_up_to(read, u64::MAX).map(Frame::data)),
            ResponseFraming::Length(left) => {
                let data = take_up_to(read, *left);
                *left -= data.as_ref().map_or(0, |data| data.len() as u64);
                if *left == 0 {
                    *self = ResponseFraming::Ended;
                }
                Ok(data.map(Frame::data))
            }
            ResponseFraming::Chunked(chunks) => {
                let (frame, is_last) = chunks.next_frame(read)?;
                if is_last {
                    *self = ResponseFraming::Ended;
                }
                Ok(frame)
            }
        }
    }
}

/// At most `most` bytes.
fn take_up_to(read: &mut BytesMut, most: u64) -> Option<Bytes> {
    let count = usize::try_from(most).unwrap_or(usize::MAX).min(read.len());
    (count > 0).then(|| read.split_to(count).freeze())
}

/// A chunk's data with that of the small ones that are there behind it.
fn join_small(data: Bytes, read: &mut BytesMut) -> Bytes {
    if data.len() > SMALL_CHUNK_MAX || small_chunk(read).is_none() {
        return data;
    }
    let mut joined = BytesMut::from(&data[..]);
    while let Some((start, end)) = small_chunk(read)
        && joined.len() + end - start <= JOINED_MAX
    {
        joined.extend_from_slice(&read[start..end]);
        read.advance(end);
    }
    joined.freeze()
}

/// Where the data of a small chunk begins and ends in what follows another, if it is there as a whole and its line says
/// nothing but its size.
fn small_chunk(read: &[u8]) -> Option<(usize, usize)> {
    let line = read.strip_prefix(b"\r\n")?;
    let digits = line.iter().take(4).take_while(|byte| byte.is_ascii_hexdigit()).count();
    line[digits..].starts_with(b"\r\n").then_some(())?;
    let size = usize::try_from(parse_hex(&line[..digits])?).ok()?;
    let start = 2 + digits + 2;
    ((1..=SMALL_CHUNK_MAX).contains(&size) && start + size <= read.len()).then_some((start, start + size))
}

impl ChunkDecoder {
    /// The next frame, and whether it, or nothing, is the end.
    fn next_frame(&mut self, read: &mut BytesMut) -> Result<(Option<Frame<Bytes>>, bool), MalformedResponse> {
        loop {
            match self.phase {
                ChunkPhase::Size => match self.read_size(read)? {
                    Some(0) => self.phase = ChunkPhase::Trailers,
                    Some(size) => self.phase = ChunkPhase::Data(size),
                    None => return Ok((None, false)),
                },
                ChunkPhase::Data(left) => {
                    let Some(data) = take_up_to(read, left) else { return Ok((None, false)) };
                    let left = left - data.len() as u64;
                    self.phase = if left == 0 { ChunkPhase::DataEnd } else { ChunkPhase::Data(left) };
                    let data = if left == 0 { join_small(data, read) } else { data };
                    // Whoever gets the last piece may know that it is the last.
                    let is_last = left == 0 && &read[..] == LAST_CHUNK_END;
                    if is_last {
                        read.clear();
                    }
                    return Ok((Some(Frame::data(data)), is_last));
                }
                ChunkPhase::DataEnd => match &read[..] {
                    [b'\r', b'\n', ..] => {
                        read.advance(2);
                        self.phase = ChunkPhase::Size;
                    }
                    [] | [b'\r'] => return Ok((None, false)),
                    _ => return Err("a chunk is longer than it says"),
                },
                ChunkPhase::Trailers => return read_trailers(read),
            }
        }
    }

    /// The size of the next chunk, once its line is complete.
    fn read_size(&mut self, read: &mut BytesMut) -> Result<Option<u64>, MalformedResponse> {
        let Some(end) = read.iter().take(SIZE_LINE_MAX).position(|&byte| byte == b'\n') else {
            return if read.len() < SIZE_LINE_MAX { Ok(None) } else { Err("a chunk's size is too long") };
        };
        let line = read.split_to(end + 1);
        let line = line.strip_suffix(b"\r\n").ok_or("a chunk's size does not end as it should")?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (number, rest) = line.split_at(digits);
        let size = parse_hex(number).ok_or("a chunk's size is none")?;
        let blank = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let rest = &rest[blank..];
        self.extension_bytes += rest.len();
        match rest {
            [] => Ok(Some(size)),
            [b';', ..] if rest.contains(&b'\r') => Err("a chunk's size does not end as it should"),
            [b';', ..] if self.extension_bytes <= EXTENSIONS_MAX => Ok(Some(size)),
            [b';', ..] => Err("its chunks say too much beside their sizes"),
            _ => Err("a chunk's size is none"),
        }
    }
}

fn parse_hex(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| {
        let digit = char::from(byte).to_digit(16)?;
        number.checked_mul(16)?.checked_add(u64::from(digit))
    })
}

/// What comes after the last chunk, once it is complete.
fn read_trailers(read: &mut BytesMut) -> Result<(Option<Frame<Bytes>>, bool), MalformedResponse> {
    match &read[..] {
        [b'\r', b'\n', ..] => {
            read.advance(2);
            return Ok((None, true));
        }
        [] | [b'\r'] => return Ok((None, false)),
        _ => {}
    }
    let seen = &read[..read.len().min(TRAILERS_MAX)];
    let Some(end) = seen.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return if seen.len() < TRAILERS_MAX { Ok((None, false)) } else { Err("its trailers are too long") };
    };
    let text = read.split_to(end + 4).freeze();
    Ok((Some(Frame::trailers(parse_fields(&text)?)), true))
}

fn parse_fields(text: &Bytes) -> Result<HeaderMap, MalformedResponse> {
    let mut fields = [httparse::EMPTY_HEADER; TRAILER_FIELDS_MAX];
    match httparse::parse_headers(text, &mut fields).map_err(describe_error)? {
        httparse::Status::Complete((length, fields)) if length == text.len() => {
            fields.iter().map(|field| parse_field(text, field)).collect()
        }
        _ => Err("its trailers end too early"),
    }
}
