//! Reads a whole response, and writes it anew from what was read.

use bytes::BytesMut;
use http::{HeaderMap, Method, StatusCode};

use super::framing::{MalformedResponse, ResponseFraming};
use super::head::{HeadReader, ResponseHead};

/// What a response says.
#[derive(Debug, PartialEq)]
pub struct ReadResponse {
    status: StatusCode,
    headers: HeaderMap,
    framing: &'static str,
    keeps_alive: bool,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    end: ResponseEnd,
    /// The bytes behind a response that ended.
    rest: Vec<u8>,
}

/// How the reading of a response ended.
#[derive(Debug, PartialEq)]
enum ResponseEnd {
    Complete,
    /// More bytes are needed, or the body lasts until the connection is closed.
    Open,
    Malformed(MalformedResponse),
}

/// A head is malformed; the pieces decide which of its faults is found first.
#[derive(Debug, PartialEq)]
pub struct MalformedHead;

/// `None` while the head is not complete.
pub type ReadOutcome = Result<Option<ReadResponse>, MalformedHead>;

/// Reads a response from its pieces, as the connection does.
pub fn read(is_head: bool, pieces: &[&[u8]]) -> ReadOutcome {
    let method = if is_head { Method::HEAD } else { Method::GET };
    let (mut reader, mut buffer, mut pieces) = (HeadReader::new(&method), BytesMut::new(), pieces.iter());
    let head = loop {
        match reader.read_head(&mut buffer).map_err(|_| MalformedHead)? {
            Some(head) => break head,
            None => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => return Ok(None),
            },
        }
    };
    let ResponseHead { status, headers, mut framing, keeps_alive } = head;
    let (mut body, mut trailers) = (Vec::new(), None);
    let kind = name(&framing);
    let end = loop {
        match framing.next_frame(&mut buffer) {
            Err(fault) => break ResponseEnd::Malformed(fault),
            Ok(Some(frame)) => {
                assert!(trailers.is_none(), "a frame behind the trailers");
                match frame.into_data() {
                    Ok(data) => body.extend_from_slice(&data),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
            }
            Ok(None) if matches!(framing, ResponseFraming::Ended) => break ResponseEnd::Complete,
            Ok(None) => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => break ResponseEnd::Open,
            },
        }
    };
    pieces.for_each(|piece| buffer.extend_from_slice(piece));
    let rest = if end == ResponseEnd::Complete { buffer.to_vec() } else { Vec::new() };
    Ok(Some(ReadResponse { status, headers, framing: kind, keeps_alive, body, trailers, end, rest }))
}

fn name(framing: &ResponseFraming) -> &'static str {
    match framing {
        ResponseFraming::Ended => "none",
        ResponseFraming::Length(_) => "length",
        ResponseFraming::Chunked(_) => "chunked",
        ResponseFraming::UntilClose => "until close",
    }
}

fn write_fields(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        let forbidden = |byte: &u8| matches!(byte, b'\r' | b'\n' | b'\0');
        assert!(!value.as_bytes().iter().any(forbidden), "a control character in {name}: {value:?}");
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Checks that a response with the fields and the body that were read says the same.
pub fn check_again(outcome: &ReadOutcome, is_head: bool) {
    let Ok(Some(first)) = outcome else { return };
    let mut text = format!("HTTP/1.1 {} \r\n", first.status.as_u16()).into_bytes();
    write_fields(&first.headers, &mut text);
    text.extend_from_slice(b"\r\n");
    if first.framing == "chunked" {
        for (at, chunk) in first.body.chunks(CHUNK).enumerate() {
            // Sizes in capital and in small letters, with and without an extension.
            let line =
                if at % 2 == 0 { format!("{:x}", chunk.len()) } else { format!("0{:X};a=b", chunk.len()) };
            text.extend_from_slice(line.as_bytes());
            text.extend_from_slice(&[b"\r\n", chunk, b"\r\n"].concat());
        }
        if first.end == ResponseEnd::Complete {
            text.extend_from_slice(b"0\r\n");
            write_fields(first.trailers.as_ref().unwrap_or(&HeaderMap::new()), &mut text);
            text.extend_from_slice(b"\r\n");
        }
    } else {
        text.extend_from_slice(&first.body);
    }
    text.extend_from_slice(&first.rest);
    let again = read(is_head, &[&text]).map(|again| again.map(|again| comparable(&again)));
    assert_eq!(again, Ok(Some(comparable(first))), "{}", text.escape_ascii());
}

/// Bytes of the chunks that are written.
const CHUNK: usize = 300;

/// What of a response is written: not its version and its lines about the connection.
fn comparable(response: &ReadResponse) -> impl std::fmt::Debug + PartialEq + use<> {
    let ReadResponse { status, headers, framing, body, trailers, end, rest, .. } = response;
    let trailers = trailers.clone().unwrap_or_default();
    let is_complete = *end == ResponseEnd::Complete;
    (*status, headers.clone(), *framing, body.clone(), trailers, is_complete, rest.clone())
}
