//! What belongs to one connection alone: headers that are never passed on, and the framing of a message.

use std::fmt;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::header::{FORWARDED, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Version};

use crate::config::{ClientIpConfig, Config, Cost, KeyPart, ValueSource};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Names that a Connection header cannot make us drop: framing, routing, and who calls.
const ALWAYS_PROTECTED: [HeaderName; 7] = [
    CONTENT_LENGTH,
    HOST,
    FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-real-ip"),
];

/// Every name that this configuration protects from a client's Connection header, to be made once.
pub fn protected_names(config: &Config) -> Vec<HeaderName> {
    let mut names: Vec<HeaderName> = ALWAYS_PROTECTED.to_vec();
    let mut protect = |source: &ValueSource| match source {
        ValueSource::Header(name) => names.push(name.clone()),
        ValueSource::Cookie(_) => names.push(http::header::COOKIE),
        // Its header is protected wherever tokens are verified.
        ValueSource::Query(_) | ValueSource::Jwt(_) => {}
    };
    let account = &config.account;
    account.from.iter().chain(&account.tier.from).for_each(&mut protect);
    account.jwt.iter().for_each(|jwt| protect(&ValueSource::Header(jwt.header.clone())));
    for part in
        config.locations.iter().filter_map(|location| location.bandwidth.as_ref()).flat_map(|own| &own.key)
    {
        if let KeyPart::Source(source) = part {
            protect(source);
        }
    }
    for limit in &config.limits {
        for part in limit.key.iter().chain(&limit.fair_by) {
            if let KeyPart::Source(source) = part {
                protect(source);
            }
        }
        if let Cost::Header { name, .. } = &limit.cost {
            protect(&ValueSource::Header(name.clone()));
        }
    }
    if let ClientIpConfig::Header(name) = &config.server.client_ip {
        protect(&ValueSource::Header(name.clone()));
    }
    protect(&ValueSource::Header(config.server.request_id.clone()));
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    names
}

/// What a request asked of its connection, read before it was dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HopOptions {
    /// The Upgrade header of a request whose Connection header names it.
    pub upgrade: Option<HeaderValue>,
    /// The client takes trailers; the request says `te: trailers` now.
    pub trailers: bool,
}

/// Which hop-by-hop headers a head contains.
#[derive(Clone, Copy, Default)]
struct HopByHopFlags(u16);

impl HopByHopFlags {
    const CONNECTION: u16 = 1;
    const TE: u16 = 1 << 1;
    const TRAILER: u16 = 1 << 2;
    const UPGRADE: u16 = 1 << 3;
    const TRANSFER_ENCODING: u16 = 1 << 4;
    const KEEP_ALIVE: u16 = 1 << 5;
    const PROXY_CONNECTION: u16 = 1 << 6;
    const PROXY_AUTHENTICATE: u16 = 1 << 7;
    const PROXY_AUTHORIZATION: u16 = 1 << 8;
    /// Part of an upgrade to h2c, which is never asked for.
    const HTTP2_SETTINGS: u16 = 1 << 9;

    /// One pass over the names; most heads contain none, and then the map is not touched.
    #[inline]
    fn scan_headers(headers: &HeaderMap) -> HopByHopFlags {
        let mut present = 0;
        for name in headers.keys() {
            let name = name.as_str();
            // By length first: one jump sorts out nearly every other header.
            present |= match name.len() {
                2 if name == "te" => HopByHopFlags::TE,
                7 if name == "trailer" => HopByHopFlags::TRAILER,
                7 if name == "upgrade" => HopByHopFlags::UPGRADE,
                10 if name == "connection" => HopByHopFlags::CONNECTION,
                10 if name == "keep-alive" => HopByHopFlags::KEEP_ALIVE,
                14 if name == "http2-settings" => HopByHopFlags::HTTP2_SETTINGS,
                16 if name == "proxy-connection" => HopByHopFlags::PROXY_CONNECTION,
                17 if name == "transfer-encoding" => HopByHopFlags::TRANSFER_ENCODING,
                18 if name == "proxy-authenticate" => HopByHopFlags::PROXY_AUTHENTICATE,
                19 if name == "proxy-authorization" => HopByHopFlags::PROXY_AUTHORIZATION,
                _ => 0,
            };
        }
        HopByHopFlags(present)
    }

    fn has_header(self, header: u16) -> bool {
        self.0 & header != 0
    }
}

/// Takes the hop-by-hop headers, and those that Connection names, out of a request; `protected` ones stay.
#[inline]
pub fn strip_request(headers: &mut HeaderMap, protected: &[HeaderName]) -> HopOptions {
    let present = HopByHopFlags::scan_headers(headers);
    if present.0 == 0 { HopOptions::default() } else { strip_found_headers(headers, present, protected) }
}

fn strip_found_headers(
    headers: &mut HeaderMap,
    present: HopByHopFlags,
    protected: &[HeaderName],
) -> HopOptions {
    let mut asked = HopOptions::default();
    if present.has_header(HopByHopFlags::TE) {
        asked.trailers = headers.get_all(TE).iter().any(takes_trailers);
    }
    if present.has_header(HopByHopFlags::CONNECTION) {
        let nominates_upgrade = remove_nominated(headers, protected);
        if nominates_upgrade && present.has_header(HopByHopFlags::UPGRADE) {
            let mut lines = headers.get_all(UPGRADE).iter();
            // More than one would be read as one or the other.
            asked.upgrade = lines.next().filter(|_| lines.next().is_none()).cloned();
        }
    }
    if present.has_header(HopByHopFlags::TRAILER) {
        headers.remove(TRAILER);
    }
    remove_hop_headers(headers, present);
    if asked.trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    asked
}

/// Takes the hop-by-hop headers, and those that Connection names, out of an answer; Trailer stays if trailers
/// may follow.
///
/// # Errors
/// An answer whose end two readers could see in two places: the parser of answers lets these pass.
#[inline]
pub fn strip_response(headers: &mut HeaderMap, keep_trailer: bool) -> Result<(), FramingError> {
    let present = HopByHopFlags::scan_headers(headers);
    check_response_framing(headers, present)?;
    if present.0 == 0 {
        return Ok(());
    }
    if present.has_header(HopByHopFlags::CONNECTION) {
        remove_nominated(headers, &[CONTENT_LENGTH, TRAILER]);
    }
    if present.has_header(HopByHopFlags::TRAILER) && !keep_trailer {
        headers.remove(TRAILER);
    }
    remove_hop_headers(headers, present);
    Ok(())
}

fn remove_hop_headers(headers: &mut HeaderMap, present: HopByHopFlags) {
    let rest = [
        (HopByHopFlags::CONNECTION, CONNECTION),
        (HopByHopFlags::TE, TE),
        (HopByHopFlags::UPGRADE, UPGRADE),
        (HopByHopFlags::TRANSFER_ENCODING, TRANSFER_ENCODING),
        (HopByHopFlags::KEEP_ALIVE, KEEP_ALIVE),
        (HopByHopFlags::PROXY_CONNECTION, PROXY_CONNECTION),
        (HopByHopFlags::PROXY_AUTHENTICATE, PROXY_AUTHENTICATE),
        (HopByHopFlags::PROXY_AUTHORIZATION, PROXY_AUTHORIZATION),
        (HopByHopFlags::HTTP2_SETTINGS, HTTP2_SETTINGS),
    ];
    for (header, name) in rest {
        if present.has_header(header) {
            headers.remove(name);
        }
    }
}

/// Removes what the Connection lines name; returns whether `upgrade` is among it. Upgrade itself stays.
fn remove_nominated(headers: &mut HeaderMap, protected: &[HeaderName]) -> bool {
    let lines: smallvec::SmallVec<[HeaderValue; 2]> = headers.get_all(CONNECTION).iter().cloned().collect();
    let mut upgrade = false;
    for option in lines.iter().flat_map(list_members) {
        if option.eq_ignore_ascii_case(b"keep-alive") || option.eq_ignore_ascii_case(b"close") {
            continue;
        }
        if option.eq_ignore_ascii_case(b"upgrade") {
            upgrade = true;
            continue;
        }
        let Ok(name) = std::str::from_utf8(option) else { continue };
        if !protected.iter().any(|kept| kept.as_str().eq_ignore_ascii_case(name)) {
            headers.remove(name);
        }
    }
    upgrade
}

/// Whether a TE line lists `trailers` with a weight other than zero.
///
/// RFC 9110 gives `trailers` no weight at all; `trailers;q=0.5` is therefore no `trailers`.
fn takes_trailers(line: &HeaderValue) -> bool {
    list_members(line).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// The members of a list, of one line of a field.
pub fn list_members(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// Why the framing of a message is ambiguous: 400 from a client, 502 from an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramingError {
    /// Transfer-Encoding is something other than one `chunked`.
    TransferEncoding,
    /// Transfer-Encoding in HTTP/1.0, which has none.
    OldVersion,
    /// Both Content-Length and Transfer-Encoding.
    TwoFramings,
    /// Content-Length given twice, or not a number.
    ContentLength,
}

impl fmt::Display for FramingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FramingError::TransferEncoding => "Transfer-Encoding is not exactly chunked",
            FramingError::OldVersion => "Transfer-Encoding in an HTTP/1.0 message",
            FramingError::TwoFramings => "Content-Length together with Transfer-Encoding",
            FramingError::ContentLength => "Content-Length is not one number",
        })
    }
}

impl std::error::Error for FramingError {}

/// Refuses a request whose end two readers could see in two places. Content-Length alone was judged by the
/// parser of HTTP/1, which leaves one of several; that of HTTP/2 leaves all of them.
#[inline]
pub fn check_request_framing(headers: &HeaderMap, version: Version) -> Result<(), FramingError> {
    if version == Version::HTTP_2 {
        check_content_length(headers)?;
    }
    if !headers.contains_key(TRANSFER_ENCODING) {
        return Ok(());
    }
    if version < Version::HTTP_11 {
        return Err(FramingError::OldVersion);
    }
    check_transfer_encoding(headers)
}

#[inline]
fn check_response_framing(headers: &HeaderMap, present: HopByHopFlags) -> Result<(), FramingError> {
    if present.has_header(HopByHopFlags::TRANSFER_ENCODING) {
        return check_transfer_encoding(headers);
    }
    check_content_length(headers)
}

#[inline]
fn check_content_length(headers: &HeaderMap) -> Result<(), FramingError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(length), None) if is_length(length) => Ok(()),
        _ => Err(FramingError::ContentLength),
    }
}

#[inline]
fn is_length(value: &HeaderValue) -> bool {
    let digits = value.as_bytes();
    !digits.is_empty()
        && digits.iter().all(u8::is_ascii_digit)
        && value.to_str().is_ok_and(|text| text.parse::<u64>().is_ok())
}

fn check_transfer_encoding(headers: &HeaderMap) -> Result<(), FramingError> {
    if headers.contains_key(CONTENT_LENGTH) {
        return Err(FramingError::TwoFramings);
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(FramingError::TransferEncoding),
    }
}

#[cfg(test)]
mod tests;
