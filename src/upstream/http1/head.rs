//! Heads of HTTP/1: a request's is written, an answer's is read.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode};

use super::framing::ResponseFraming;
use super::upload::RequestFraming;
use crate::request::body::RequestBody;
use crate::request::headers::hop_by_hop::list_members;

/// Bytes of an answer's head, with all that are sent before the final one.
const HEADS_MAX: usize = 128 * 1024;
/// Fields of an answer's head.
pub(in crate::upstream) const FIELDS_MAX: usize = 1000;
/// Fields that are read without room made for them.
const FIELDS_USUAL: usize = 100;

/// What may be wrong with an answer.
pub(super) type MalformedResponse = &'static str;

// === Requests ===

/// Writes the head of `request`, and tells how its body is to be sent.
pub(super) fn write_head(request: &Request<RequestBody>, page: &mut Vec<u8>) -> RequestFraming {
    page.extend_from_slice(request.method().as_str().as_bytes());
    page.push(b' ');
    // As it was judged: a path with its query, or `*`.
    let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    page.extend_from_slice(target.as_bytes());
    page.extend_from_slice(b" HTTP/1.1\r\n");
    let mut tells_length = false;
    for (name, value) in request.headers() {
        match *name {
            TRANSFER_ENCODING => continue,
            CONTENT_LENGTH => {
                tells_length = true;
                continue;
            }
            _ => {}
        }
        page.extend_from_slice(name.as_str().as_bytes());
        page.extend_from_slice(b": ");
        page.extend_from_slice(value.as_bytes());
        page.extend_from_slice(b"\r\n");
    }
    let length = if tells_length { content_length(request.headers()) } else { None };
    let framing = match request.body().is_empty() {
        true => RequestFraming::Length(0),
        false => length.map_or(RequestFraming::Chunked, RequestFraming::Length),
    };
    // Only what the body is really framed by may stand there, once and as it was read.
    if framing == RequestFraming::Chunked {
        page.extend_from_slice(b"transfer-encoding: chunked\r\n");
    } else if let Some(length) = length.filter(|length| framing == RequestFraming::Length(*length)) {
        page.extend_from_slice(b"content-length: ");
        page.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        page.extend_from_slice(b"\r\n");
    }
    page.extend_from_slice(b"\r\n");
    framing
}

/// The one length that all lines agree on.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut told = FramingHeaders::default();
    headers.get_all(CONTENT_LENGTH).iter().for_each(|line| told.add_length(line));
    told.length?.ok()
}

/// A number as HTTP writes it, without a sign.
fn parse_digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

// === Answers ===

/// The final head of an answer.
pub(super) struct ResponseHead {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub framing: ResponseFraming,
    /// The server takes another request after this answer.
    pub keeps_alive: bool,
}

/// Reads the heads of one answer: any number of interim ones, then the final one.
pub(super) struct HeadReader {
    /// Of HEAD, whose answers have no body.
    is_head: bool,
    /// Bytes that were looked through for the end of a head.
    scanned: usize,
    /// Bytes of the heads that came before.
    consumed: usize,
}

impl HeadReader {
    pub(super) fn new(method: &Method) -> HeadReader {
        HeadReader { is_head: *method == Method::HEAD, scanned: 0, consumed: 0 }
    }

    /// Whether a whole head has been read.
    pub(super) fn has_read_head(&self) -> bool {
        self.consumed > 0
    }

    /// Takes the final head from what was `read`, if it is there.
    ///
    /// # Errors
    /// When what came is none, or too much.
    pub(super) fn read_head(
        &mut self,
        read: &mut BytesMut,
    ) -> Result<Option<ResponseHead>, MalformedResponse> {
        while let Some(end) = self.end_of_head(read) {
            let head = read.split_to(end).freeze();
            self.scanned = 0;
            self.consumed += head.len();
            if self.consumed > HEADS_MAX {
                return Err(TOO_LONG);
            }
            if let Some(head) = parse_head(&head, self.is_head)? {
                return Ok(Some(head));
            }
        }
        if self.consumed + read.len() > HEADS_MAX {
            return Err(TOO_LONG);
        }
        // What will never be a head is not waited for.
        let begun = read.iter().take_while(|byte| b"\r\n".contains(byte)).count();
        let begun = &read[begun..];
        let is_one = begun.iter().zip(VERSION_PREFIX).all(|(byte, begin)| byte == begin);
        if is_one { Ok(None) } else { Err("its first line is none") }
    }

    /// Where the empty line ends that ends a head.
    fn end_of_head(&mut self, read: &[u8]) -> Option<usize> {
        // The line before may have been looked at without its end.
        let mut from = self.scanned.saturating_sub(2);
        while let Some(line_end) = read[from..].iter().position(|&byte| byte == b'\n') {
            from += line_end + 1;
            match &read[from..] {
                [b'\n', ..] => return Some(from + 1),
                [b'\r', b'\n', ..] => return Some(from + 2),
                _ => {}
            }
        }
        self.scanned = read.len();
        None
    }
}

const TOO_LONG: MalformedResponse = "its head is too long";
/// What every head of an answer begins with.
const VERSION_PREFIX: &[u8] = b"HTTP/1.";

/// `None` for an interim head.
fn parse_head(head: &Bytes, is_head: bool) -> Result<Option<ResponseHead>, MalformedResponse> {
    let config = httparse::ParserConfig::default();
    let mut usual = [const { MaybeUninit::uninit() }; FIELDS_USUAL];
    let mut many = Vec::new();
    let mut parsed = httparse::Response::new(&mut []);
    let mut status = config.parse_response_with_uninit_headers(&mut parsed, head, &mut usual);
    if status == Err(httparse::Error::TooManyHeaders) {
        many.resize(FIELDS_MAX, MaybeUninit::uninit());
        parsed = httparse::Response::new(&mut []);
        status = config.parse_response_with_uninit_headers(&mut parsed, head, &mut many);
    }
    if status.map_err(describe_error)?.is_partial() {
        return Err("its head ends too early");
    }
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or("its status is none")?;
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(None);
    }
    let mut told = FramingHeaders { is_http10: parsed.version != Some(1), ..FramingHeaders::default() };
    let mut headers = HeaderMap::with_capacity(parsed.headers.len());
    for field in &*parsed.headers {
        let (name, value) = parse_field(head, field)?;
        match name {
            CONTENT_LENGTH => told.add_length(&value),
            TRANSFER_ENCODING => told.add_coding(&value),
            // Nobody further on needs to know.
            CONNECTION if told.add_connection(&value) => continue,
            _ => {}
        }
        headers.append(name, value);
    }
    let is_bodiless = is_head || BODILESS.contains(&status);
    let framing = if is_bodiless { ResponseFraming::Ended } else { told.body_framing()? };
    let keeps = status != StatusCode::SWITCHING_PROTOCOLS
        && !matches!(framing, ResponseFraming::UntilClose)
        && told.keeps_alive(status == StatusCode::NO_CONTENT);
    Ok(Some(ResponseHead { status, headers, framing, keeps_alive: keeps }))
}

/// Answers with these end with their head.
const BODILESS: [StatusCode; 3] =
    [StatusCode::SWITCHING_PROTOCOLS, StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED];

/// The name of a field, and its value where it is in `text`.
///
/// # Errors
/// When it is none, though the parser took it.
pub(super) fn parse_field(
    text: &Bytes,
    field: &httparse::Header<'_>,
) -> Result<(HeaderName, HeaderValue), MalformedResponse> {
    let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| "a field's name is none")?;
    let value =
        HeaderValue::from_maybe_shared(text.slice_ref(field.value)).map_err(|_| "a field's value is none")?;
    Ok((name, value))
}

pub(super) fn describe_error(error: httparse::Error) -> MalformedResponse {
    match error {
        httparse::Error::HeaderName => "a field's name is none",
        httparse::Error::HeaderValue => "a field's value is none",
        httparse::Error::NewLine => "a line does not end as it should",
        httparse::Error::Status => "its status is none",
        httparse::Error::Token => "its first line is none",
        httparse::Error::TooManyHeaders => "it has too many fields",
        httparse::Error::Version => "its version is unknown",
    }
}

/// What an answer's head says of its body and its connection.
#[derive(Default)]
struct FramingHeaders {
    /// HTTP/1.0.
    is_http10: bool,
    /// The lengths of all lines, while they agree.
    length: Option<Result<u64, MalformedResponse>>,
    /// Transfer codings, and whether the last of them is `chunked`.
    codings: u32,
    is_chunked: bool,
    has_close: bool,
    has_keep_alive: bool,
}

impl FramingHeaders {
    fn add_length(&mut self, line: &HeaderValue) {
        for member in list_members(line) {
            let member = parse_digits(member).ok_or("its length is none");
            self.length = match self.length {
                None => Some(member),
                Some(before) if before == member => Some(before),
                Some(_) => Some(Err("it has two lengths")),
            };
        }
    }

    fn add_coding(&mut self, line: &HeaderValue) {
        for member in list_members(line) {
            self.codings = self.codings.saturating_add(1);
            self.is_chunked = member.eq_ignore_ascii_case(b"chunked");
        }
    }

    /// Whether the line says nothing but whether the connection stays.
    fn add_connection(&mut self, line: &HeaderValue) -> bool {
        let mut is_all = true;
        for member in list_members(line) {
            if member.eq_ignore_ascii_case(b"close") {
                self.has_close = true;
            } else if member.eq_ignore_ascii_case(b"keep-alive") {
                self.has_keep_alive = true;
            } else {
                is_all = false;
            }
        }
        is_all
    }

    /// Where the body ends (RFC 9112, section 6.3).
    fn body_framing(&self) -> Result<ResponseFraming, MalformedResponse> {
        match (self.codings, self.length) {
            (0, None) => Ok(ResponseFraming::UntilClose),
            (0, Some(length)) => length.map(ResponseFraming::from_length),
            _ if self.is_http10 => Err("HTTP/1.0 has no transfer codings"),
            _ if self.is_chunked => Ok(ResponseFraming::chunked()),
            _ => Ok(ResponseFraming::UntilClose),
        }
    }

    /// Whether the connection may be used again (RFC 9112, sections 6.1, 6.3 and 9.3): who says both means to close,
    /// and where two could disagree on the end of the body, nothing that follows it is believed. A status that has no
    /// body may announce none.
    fn keeps_alive(&self, has_none: bool) -> bool {
        let is_clear = match (self.codings, self.length) {
            (0, None | Some(Ok(0))) => true,
            (0, Some(Ok(_))) => !has_none,
            (1, None) => self.is_chunked && !self.is_http10 && !has_none,
            _ => false,
        };
        is_clear && !self.has_close && (self.has_keep_alive || !self.is_http10)
    }
}
