//! The values of an MCP message, and the headers that repeat them (MCP of 2026-07-28).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName};

use super::SourceValue;
use super::body::{BodyForm, BodyValue, BodyValues};
use sluicegate_model::{McpPart, mcp_pointers};

const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");

/// A header says otherwise than the body, or cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderMismatch;

/// The value of the message, which its body alone tells.
pub fn read_mcp(part: McpPart, body: Option<&BodyValues>) -> SourceValue<'_> {
    match body.map(|body| find_value(part, body)) {
        Some(BodyValue::Text(text)) if !text.is_empty() => SourceValue::One(text.as_bytes().into()),
        Some(BodyValue::Repeated) => SourceValue::Repeated,
        _ => SourceValue::Absent,
    }
}

/// Compares the headers of a request with its body. Upstreams and proxies may route by them, and one that says another
/// name would use a tool on the budget of a second one.
///
/// # Errors
/// A header stands there twice, cannot be decoded, or says another value than the body.
pub fn check_mcp_headers(headers: &HeaderMap, body: &BodyValues) -> Result<(), HeaderMismatch> {
    // A body that is too long is refused for that, and one that is empty is no message.
    if matches!(body.form, BodyForm::TooLong | BodyForm::Empty) {
        return Ok(());
    }
    for (name, part) in [(&MCP_METHOD, McpPart::Method), (&MCP_NAME, McpPart::Name)] {
        let mut lines = headers.get_all(name).iter();
        let Some(line) = lines.next() else { continue };
        let BodyValue::Text(text) = find_value(part, body) else { return Err(HeaderMismatch) };
        if lines.next().is_some() || !says_text(line.as_bytes(), text.as_bytes()) {
            return Err(HeaderMismatch);
        }
    }
    Ok(())
}

fn find_value(part: McpPart, body: &BodyValues) -> &BodyValue {
    let [method, name, uri] = mcp_pointers();
    let method = body.find(method);
    match (part, method) {
        (McpPart::Method, _) => method,
        (McpPart::Name, BodyValue::Text(method)) if method.starts_with("resources/") => body.find(uri),
        (McpPart::Name, _) => body.find(name),
    }
}

/// True if the value of a header means this text: as it is, or in Base64 between its marks.
fn says_text(value: &[u8], text: &[u8]) -> bool {
    match value.strip_prefix(b"=?base64?").and_then(|rest| rest.strip_suffix(b"?=")) {
        Some(encoded) => STANDARD.decode(encoded).is_ok_and(|decoded| decoded == text),
        None => value == text,
    }
}

#[cfg(test)]
mod tests;
