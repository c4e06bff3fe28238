//! The framing of a response body: it ends at its length, with its last chunk, or with the connection.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use http_body::Frame;

/// Most bytes of the line with a chunk's size.
const SIZE_LINE_MAX: usize = 4 * 1024;
/// Most bytes of all chunk extensions of a body; they are ignored.
const EXTENSIONS_MAX: usize = 16 * 1024;
const TRAILERS_MAX: usize = 16 * 1024;
const TRAILER_FIELDS_MAX: usize = 100;
/// Available chunks up to this size are joined into frames of at most `JOINED_MAX` bytes: the overhead of a frame is
/// many times the cost of a few bytes.
const SMALL_CHUNK_MAX: usize = 4 * 1024;
const JOINED_MAX: usize = 16 * 1024;
/// The usual bytes after the data of the last chunk.
const LAST_CHUNK_END: &[u8] = b"\r\n0\r\n\r\n";

pub(super) enum ResponseFraming {
    Ended,
    /// Bytes still to be read.
    Length(u64),
    Chunked(ChunkDecoder),
    UntilClose,
}

pub(super) struct ChunkDecoder {
    phase: ChunkPhase,
    /// Bytes of extensions so far.
    extension_bytes: usize,
}

/// The next element of the chunked coding.
enum ChunkPhase {
    Size,
    /// The bytes left of a chunk.
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

    /// Bytes still to be read, if known.
    pub(super) fn bytes_left(&self) -> Option<usize> {
        match self {
            ResponseFraming::Ended => Some(0),
            ResponseFraming::Length(left) => Some(usize::try_from(*left).unwrap_or(usize::MAX)),
            ResponseFraming::Chunked(_) | ResponseFraming::UntilClose => None,
        }
    }

    /// The next frame of the body in `read`; `None` if it has ended, or more input is needed.
    ///
    /// # Errors
    /// The chunked coding or the trailers are malformed.
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

fn take_up_to(read: &mut BytesMut, most: u64) -> Option<Bytes> {
    let count = usize::try_from(most).unwrap_or(usize::MAX).min(read.len());
    (count > 0).then(|| read.split_to(count).freeze())
}

/// Joins the data of a chunk with the small complete chunks behind it.
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

/// The start and end of a small chunk's data in the input behind another chunk, if the chunk is complete and has no
/// extension.
fn small_chunk(read: &[u8]) -> Option<(usize, usize)> {
    let line = read.strip_prefix(b"\r\n")?;
    let digits = line.iter().take(4).take_while(|byte| byte.is_ascii_hexdigit()).count();
    line[digits..].starts_with(b"\r\n").then_some(())?;
    let size = usize::try_from(parse_hex(&line[..digits])?).ok()?;
    let start = 2 + digits + 2;
    ((1..=SMALL_CHUNK_MAX).contains(&size) && start + size <= read.len()).then_some((start, start + size))
}

impl ChunkDecoder {
    /// The next frame, and whether the body ends with it, or without one.
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
                    // So that the last frame is known to be the last.
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
                    _ => return Err("a chunk is longer than its size"),
                },
                ChunkPhase::Trailers => return read_trailers(read),
            }
        }
    }

    /// The size of the next chunk, once its line is complete.
    fn read_size(&mut self, read: &mut BytesMut) -> Result<Option<u64>, MalformedResponse> {
        let Some(end) = read.iter().take(SIZE_LINE_MAX).position(|&byte| byte == b'\n') else {
            return if read.len() < SIZE_LINE_MAX { Ok(None) } else { Err("a chunk size line is too long") };
        };
        let line = read.split_to(end + 1);
        let line = line.strip_suffix(b"\r\n").ok_or("a chunk size line does not end in CRLF")?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (number, rest) = line.split_at(digits);
        let size = parse_hex(number).ok_or("a chunk size is invalid")?;
        let blank = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let rest = &rest[blank..];
        self.extension_bytes += rest.len();
        match rest {
            [] => Ok(Some(size)),
            [b';', ..] if rest.contains(&b'\r') => Err("a chunk size line does not end in CRLF"),
            [b';', ..] if self.extension_bytes <= EXTENSIONS_MAX => Ok(Some(size)),
            [b';', ..] => Err("its chunk extensions are too long"),
            _ => Err("a chunk size is invalid"),
        }
    }
}

/// `digits` are hexadecimal.
fn parse_hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

/// The trailers after the last chunk, once they are complete.
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

/// The reason why a response is malformed.
pub(super) type MalformedResponse = &'static str;

/// The name of a parsed field, and its value as a slice of `text`.
///
/// # Errors
/// The name or the value is invalid, although the parser accepted it.
pub(super) fn parse_field(
    text: &Bytes,
    field: &httparse::Header<'_>,
) -> Result<(HeaderName, HeaderValue), MalformedResponse> {
    let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| "a field name is invalid")?;
    let value = HeaderValue::from_maybe_shared(text.slice_ref(field.value))
        .map_err(|_| "a field value is invalid")?;
    Ok((name, value))
}

pub(super) fn describe_error(error: httparse::Error) -> MalformedResponse {
    match error {
        httparse::Error::HeaderName => "a field name is invalid",
        httparse::Error::HeaderValue => "a field value is invalid",
        httparse::Error::NewLine => "a line end is invalid",
        httparse::Error::Status => "its status is invalid",
        httparse::Error::Token => "its status line is invalid",
        httparse::Error::TooManyHeaders => "it has too many fields",
        httparse::Error::Version => "its version is unknown",
    }
}
