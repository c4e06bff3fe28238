//! Writes the head of an HTTP/1 request and reads the heads of its response.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode};

use super::framing::{MalformedResponse, ResponseFraming, describe_error, parse_field};
use super::upload::RequestFraming;
use crate::request::body::RequestBody;
use crate::request::headers::added_fields::AddedFields;
use crate::request::headers::hop_by_hop::list_members;

/// Most bytes of all heads of a response, interim ones included.
const HEADS_MAX: usize = 128 * 1024;
/// Most fields of a response head.
pub(in crate::upstream) const FIELDS_MAX: usize = 1000;
/// Fields about limits that are usually added to a response.
const ADDED_FIELDS: usize = 2;
/// Fields that are parsed without an allocation.
const FIELDS_USUAL: usize = 100;

// === Requests ===

/// Writes the head of `request` with the `added` fields, and returns the framing of its body.
pub(super) fn write_head(
    request: &Request<RequestBody>,
    added: &AddedFields,
    buffer: &mut Vec<u8>,
) -> RequestFraming {
    buffer.extend_from_slice(request.method().as_str().as_bytes());
    buffer.push(b' ');
    // The target as judged: a path with its query, or `*`.
    let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    buffer.extend_from_slice(target.as_bytes());
    buffer.extend_from_slice(b" HTTP/1.1\r\n");
    let mut has_length = false;
    for (name, value) in request.headers() {
        match *name {
            TRANSFER_ENCODING => continue,
            CONTENT_LENGTH => {
                has_length = true;
                continue;
            }
            _ => {}
        }
        write_field(name, value, buffer);
    }
    for (name, value) in added.iter() {
        write_field(name, value, buffer);
    }
    let length = if has_length { content_length(request.headers()) } else { None };
    let framing = match request.body().is_empty() {
        true => RequestFraming::Length(0),
        false => length.map_or(RequestFraming::Chunked, RequestFraming::Length),
    };
    // Only the field that really frames the body is written, once and as it was understood.
    if framing == RequestFraming::Chunked {
        buffer.extend_from_slice(b"transfer-encoding: chunked\r\n");
    } else if let Some(length) = length.filter(|length| framing == RequestFraming::Length(*length)) {
        buffer.extend_from_slice(b"content-length: ");
        buffer.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        buffer.extend_from_slice(b"\r\n");
    }
    buffer.extend_from_slice(b"\r\n");
    framing
}

#[inline]
fn write_field(name: &HeaderName, value: &HeaderValue, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(name.as_str().as_bytes());
    buffer.extend_from_slice(b": ");
    buffer.extend_from_slice(value.as_bytes());
    buffer.extend_from_slice(b"\r\n");
}

/// The length that all lines agree on.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut framing = FramingHeaders::default();
    headers.get_all(CONTENT_LENGTH).iter().for_each(|line| framing.add_length(line));
    framing.length?.ok()
}

/// A decimal number without a sign.
fn parse_digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

// === Responses ===

/// The final head of a response.
pub(super) struct ResponseHead {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub framing: ResponseFraming,
    /// The server accepts another request after this response.
    pub keeps_alive: bool,
}

/// Reads the heads of one response: any number of interim ones, then the final one.
pub(super) struct HeadReader {
    /// The method is HEAD, so the response has no body.
    is_head: bool,
    /// Bytes already searched for the end of a head.
    scanned: usize,
    /// Bytes of the interim heads.
    consumed: usize,
}

impl HeadReader {
    pub(super) fn new(method: &Method) -> HeadReader {
        HeadReader { is_head: *method == Method::HEAD, scanned: 0, consumed: 0 }
    }

    pub(super) fn has_read_head(&self) -> bool {
        self.consumed > 0
    }

    /// Takes the final head out of `read`, if it is complete.
    ///
    /// # Errors
    /// The head is malformed or too long.
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
        // Input that can never become a head fails at once.
        let blank = read.iter().take_while(|byte| b"\r\n".contains(byte)).count();
        let is_head = read[blank..].iter().zip(VERSION_PREFIX).all(|(byte, expected)| byte == expected);
        if is_head { Ok(None) } else { Err("its status line is invalid") }
    }

    /// The end of the empty line that ends a head.
    fn end_of_head(&mut self, read: &[u8]) -> Option<usize> {
        // The last line may have been searched without its end.
        let from = self.scanned.saturating_sub(2);
        for line_end in memchr::memchr_iter(b'\n', &read[from..]) {
            let next = from + line_end + 1;
            match &read[next..] {
                [b'\n', ..] => return Some(next + 1),
                [b'\r', b'\n', ..] => return Some(next + 2),
                _ => {}
            }
        }
        self.scanned = read.len();
        None
    }
}

const TOO_LONG: MalformedResponse = "its head is too long";
/// The first bytes of every response head.
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
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or("its status is invalid")?;
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(None);
    }
    let mut framing = FramingHeaders { is_http10: parsed.version != Some(1), ..FramingHeaders::default() };
    // Grown once, not for the fields about limits.
    let mut headers = HeaderMap::with_capacity(parsed.headers.len() + ADDED_FIELDS);
    for field in &*parsed.headers {
        let (name, value) = parse_field(head, field)?;
        match name {
            CONTENT_LENGTH => framing.add_length(&value),
            TRANSFER_ENCODING => framing.add_coding(&value),
            // Such a line ends here.
            CONNECTION if framing.add_connection(&value) => continue,
            _ => {}
        }
        headers.append(name, value);
    }
    let is_bodiless = is_head || BODILESS.contains(&status);
    let body_framing = if is_bodiless { ResponseFraming::Ended } else { framing.body_framing()? };
    let keeps_alive = status != StatusCode::SWITCHING_PROTOCOLS
        && !matches!(body_framing, ResponseFraming::UntilClose)
        && framing.keeps_alive(status == StatusCode::NO_CONTENT);
    Ok(Some(ResponseHead { status, headers, framing: body_framing, keeps_alive }))
}

/// Responses with these statuses have no body.
const BODILESS: [StatusCode; 3] =
    [StatusCode::SWITCHING_PROTOCOLS, StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED];

/// The fields of a head that frame its body and decide on its connection.
#[derive(Default)]
struct FramingHeaders {
    /// HTTP/1.0.
    is_http10: bool,
    /// The length, while all lines agree.
    length: Option<Result<u64, MalformedResponse>>,
    /// The number of transfer codings.
    codings: u32,
    /// The last transfer coding is `chunked`.
    is_chunked: bool,
    has_close: bool,
    has_keep_alive: bool,
}

impl FramingHeaders {
    fn add_length(&mut self, line: &HeaderValue) {
        // Nearly every head has one line with one number.
        if let (None, Some(length)) = (self.length, parse_digits(line.as_bytes())) {
            self.length = Some(Ok(length));
            return;
        }
        for member in list_members(line) {
            let member = parse_digits(member).ok_or("its length is invalid");
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

    /// Reads a Connection line; true if it contains nothing but `close` and `keep-alive`.
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

    /// The framing of the body (RFC 9112, section 6.3).
    fn body_framing(&self) -> Result<ResponseFraming, MalformedResponse> {
        match (self.codings, self.length) {
            (0, None) => Ok(ResponseFraming::UntilClose),
            (0, Some(length)) => length.map(ResponseFraming::from_length),
            _ if self.is_http10 => Err("HTTP/1.0 has no transfer codings"),
            _ if self.is_chunked => Ok(ResponseFraming::chunked()),
            _ => Ok(ResponseFraming::UntilClose),
        }
    }

    /// True if the connection may be reused (RFC 9112, sections 6.1, 6.3 and 9.3): `close` beats `keep-alive`, and an
    /// ambiguous end of the body closes the connection. A status without a body must not announce one.
    fn keeps_alive(&self, is_bodiless: bool) -> bool {
        let is_clear = match (self.codings, self.length) {
            (0, None | Some(Ok(0))) => true,
            (0, Some(Ok(_))) => !is_bodiless,
            (1, None) => self.is_chunked && !self.is_http10 && !is_bodiless,
            _ => false,
        };
        is_clear && !self.has_close && (self.has_keep_alive || !self.is_http10)
    }
}
