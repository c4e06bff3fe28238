//! Hop-by-hop header fields, which are never forwarded, and the framing of messages.

use http::header::{
    CONNECTION, CONTENT_LENGTH, FORWARDED, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Version};

use super::summary::HeaderSummary;
use crate::request::priority::PRIORITY;
use sluicegate_model::{ClientIpConfig, Config, Cost, KeyPart, ValueSource};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Names that a Connection header cannot remove: framing, routing, and the identity of the client.
const ALWAYS_PROTECTED: [HeaderName; 8] = [
    CONTENT_LENGTH,
    HOST,
    FORWARDED,
    PRIORITY,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-real-ip"),
];

/// Every name that this configuration protects from a client's Connection header; built once.
pub fn protected_names(config: &Config) -> Vec<HeaderName> {
    let mut names: Vec<HeaderName> = ALWAYS_PROTECTED.to_vec();
    let mut protect = |source: &ValueSource| match source {
        ValueSource::Header(name) => names.push(name.clone()),
        ValueSource::Cookie(_) => names.push(http::header::COOKIE),
        // The header of the token is protected below.
        ValueSource::Query(_) | ValueSource::Jwt(_) | ValueSource::Json(_) | ValueSource::Auth(_) => {}
    };
    let account = &config.account;
    account.from.iter().chain(&account.tier.from).for_each(&mut protect);
    let conditions = config.locations.iter().flat_map(|location| &location.when);
    conditions.for_each(|condition| protect(&condition.source));
    account.jwt.iter().for_each(|jwt| protect(&ValueSource::Header(jwt.header.clone())));
    for part in
        config.locations.iter().filter_map(|location| location.bandwidth.as_ref()).flat_map(|own| &own.key)
    {
        if let KeyPart::Source(source) = part {
            protect(source);
        }
    }
    for limit in &config.limits {
        for part in limit.parts() {
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

/// The hop-by-hop options of a request, read before their fields are removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HopOptions {
    /// The Upgrade header, if the Connection header names it.
    pub upgrade: Option<HeaderValue>,
    /// The client accepts trailers; the request now has exactly `te: trailers`.
    pub trailers: bool,
}

/// Removes the hop-by-hop fields of a request with this `summary`, and the fields that Connection names except
/// `protected` ones.
#[inline]
pub fn strip_request(
    headers: &mut HeaderMap,
    summary: HeaderSummary,
    protected: &[HeaderName],
) -> HopOptions {
    if !summary.has_any(HeaderSummary::HOP_BY_HOP) {
        return HopOptions::default();
    }
    strip_found_fields(headers, summary, protected)
}

fn strip_found_fields(
    headers: &mut HeaderMap,
    summary: HeaderSummary,
    protected: &[HeaderName],
) -> HopOptions {
    let mut options = HopOptions::default();
    if summary.has_any(HeaderSummary::TE) {
        options.trailers = headers.get_all(TE).iter().any(accepts_trailers);
    }
    if summary.has_any(HeaderSummary::CONNECTION) {
        let names_upgrade = remove_nominated(headers, protected);
        if names_upgrade && summary.has_any(HeaderSummary::UPGRADE) {
            let mut lines = headers.get_all(UPGRADE).iter();
            // Two lines are ambiguous: readers disagree on which one counts.
            options.upgrade = lines.next().filter(|_| lines.next().is_none()).cloned();
        }
    }
    if summary.has_any(HeaderSummary::TRAILER) {
        headers.remove(TRAILER);
    }
    remove_hop_fields(headers, summary);
    if options.trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    options
}

/// Removes the hop-by-hop fields of a response, and the fields that Connection names; Trailer stays if `keep_trailer`.
///
/// # Errors
/// The end of the response is ambiguous; the parser of responses lets these pass.
#[inline]
pub fn strip_response(headers: &mut HeaderMap, keep_trailer: bool) -> Result<(), FramingError> {
    let (summary, length) = HeaderSummary::scan_response(headers);
    if summary.has_any(HeaderSummary::TRANSFER_ENCODING) {
        check_transfer_encoding(headers)?;
    } else if summary.has_any(HeaderSummary::CONTENT_LENGTH) && !length.is_some_and(is_valid_length) {
        return Err(FramingError::ContentLength);
    }
    if !summary.has_any(HeaderSummary::HOP_BY_HOP) {
        return Ok(());
    }
    if summary.has_any(HeaderSummary::CONNECTION) {
        remove_nominated(headers, &[CONTENT_LENGTH, TRAILER]);
    }
    if summary.has_any(HeaderSummary::TRAILER) && !keep_trailer {
        headers.remove(TRAILER);
    }
    remove_hop_fields(headers, summary);
    Ok(())
}

/// Removes the present hop-by-hop fields but Trailer.
fn remove_hop_fields(headers: &mut HeaderMap, summary: HeaderSummary) {
    let fields = [
        (HeaderSummary::CONNECTION, CONNECTION),
        (HeaderSummary::TE, TE),
        (HeaderSummary::UPGRADE, UPGRADE),
        (HeaderSummary::TRANSFER_ENCODING, TRANSFER_ENCODING),
        (HeaderSummary::KEEP_ALIVE, KEEP_ALIVE),
        (HeaderSummary::PROXY_CONNECTION, PROXY_CONNECTION),
        (HeaderSummary::PROXY_AUTHENTICATE, PROXY_AUTHENTICATE),
        (HeaderSummary::PROXY_AUTHORIZATION, PROXY_AUTHORIZATION),
        (HeaderSummary::HTTP2_SETTINGS, HTTP2_SETTINGS),
    ];
    for (field, name) in fields {
        if summary.has_any(field) {
            headers.remove(name);
        }
    }
}

/// Removes the fields that the Connection lines name; returns whether `upgrade` is among them. Upgrade itself stays.
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

/// True if a TE line lists `trailers` with a weight other than zero.
///
/// RFC 9110 gives `trailers` no weight, so `trailers;q=0.5` is not `trailers`.
fn accepts_trailers(line: &HeaderValue) -> bool {
    list_members(line).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

/// Tells the client that this response is the last of its connection.
pub fn set_connection_close(headers: &mut HeaderMap) {
    // An Upgrade field must be named in Connection as well.
    let options = if headers.contains_key(UPGRADE) { "close, upgrade" } else { "close" };
    headers.insert(CONNECTION, HeaderValue::from_static(options));
}

/// The members of a list in one line of a field.
pub fn list_members(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// The reason why the framing of a message is ambiguous: 400 from a client, 502 from an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramingError {
    /// Transfer-Encoding is not exactly one `chunked`.
    TransferEncoding,
    /// Transfer-Encoding in HTTP/1.0, which does not have it.
    OldVersion,
    /// Both Content-Length and Transfer-Encoding.
    TwoFramings,
    /// Content-Length given twice, or not a number.
    ContentLength,
}

/// Rejects a request with an ambiguous end. The HTTP/1 parser has already checked a Content-Length alone, and reduced
/// equal ones to one; the HTTP/2 parser leaves all of them.
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
fn check_content_length(headers: &HeaderMap) -> Result<(), FramingError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(length), None) if is_valid_length(length) => Ok(()),
        _ => Err(FramingError::ContentLength),
    }
}

#[inline]
fn is_valid_length(value: &HeaderValue) -> bool {
    let digits = value.as_bytes();
    !digits.is_empty()
        && digits.iter().all(u8::is_ascii_digit)
        // Any number with fewer digits fits.
        && (digits.len() < 20 || value.to_str().is_ok_and(|text| text.parse::<u64>().is_ok()))
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
