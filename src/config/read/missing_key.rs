//! Reads `missing_key`: the treatment of a request that lacks a part of a limit's key.

use http::StatusCode;

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::limit::MissingKey;
use crate::config::value::scalars::Parsed;
use crate::config::yaml::fields::{FieldReader, FieldValue, parse_word};
use crate::config::yaml::tree::NodeContent;

/// The status of `missing_key: reject`.
pub(crate) const DEFAULT_STATUS: StatusCode = StatusCode::FORBIDDEN;

const WORDS: [(&str, MissingKey); 4] = [
    ("ip", MissingKey::Ip),
    ("shared", MissingKey::Shared),
    ("reject", MissingKey::Reject),
    ("skip", MissingKey::Skip),
];

/// `ip`, `shared`, `skip`, `reject` or `{ reject: 401 }`, with the status of the rejection.
pub(crate) fn read_missing_key(fields: &mut FieldReader<'_>) -> (MissingKey, StatusCode) {
    let Some(value) = fields.get_field("missing_key") else { return (MissingKey::Ip, DEFAULT_STATUS) };
    match value.node.content {
        NodeContent::Map(_) => (MissingKey::Reject, read_status(&value)),
        NodeContent::Text(_) => {
            (value.parse_with(parse_missing_key).unwrap_or(MissingKey::Ip), DEFAULT_STATUS)
        }
        _ => {
            value.report_shape("one of ip, shared, skip and reject, or { reject: 401 }");
            (MissingKey::Ip, DEFAULT_STATUS)
        }
    }
}

fn read_status(value: &FieldValue<'_>) -> StatusCode {
    let mut fields = value.field_reader();
    let status = fields.get_field("reject");
    if status.is_none() {
        fields.report_missing("reject", "write { reject: 401 } or { reject: 403 }");
    }
    fields.report_unknown();
    status.and_then(|status| status.parse_with(parse_status)).unwrap_or(DEFAULT_STATUS)
}

fn parse_missing_key(text: &str) -> Parsed<MissingKey> {
    parse_word(&WORDS)(text).map_err(|error| match parse_status(text) {
        Ok(_) => error.with_help(format!("write {{ reject: {text} }}")),
        Err(_) => error,
    })
}

fn parse_status(text: &str) -> Parsed<StatusCode> {
    match text {
        "401" => Ok(StatusCode::UNAUTHORIZED),
        "403" => Ok(StatusCode::FORBIDDEN),
        _ => {
            let message = format!("`{text}` is not a status of a request without its key");
            Err(ValueError::new(codes::STATUS, message).with_help("write 401 or 403"))
        }
    }
}
