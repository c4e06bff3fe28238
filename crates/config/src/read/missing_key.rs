//! Reads `missing_key`: the treatment of a request that lacks a part of a limit's key.

use http::StatusCode;

use crate::schema::field::ParseScalar;
use crate::schema::tables::limits::{MISSING_KEYS, limit, missing_key};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::tree::NodeContent;
use sluicegate_model::limit::MissingKey;
use sluicegate_model::value::scalars::Parsed;
use sluicegate_model::value::words::parse_word;

/// `ip`, `shared`, `skip`, `reject` or `{ reject: 401 }`, with the status of the rejection.
pub(crate) fn read_missing_key(fields: &FieldReader<'_>) -> (MissingKey, StatusCode) {
    let default = missing_key::REJECT.parse_default();
    let Some(value) = fields.find(&limit::MISSING_KEY) else { return (MissingKey::Ip, default) };
    match value.node.content {
        NodeContent::Map(_) => {
            let status = value.open_section(&missing_key::SECTION).read_all(|fields| {
                fields.find_required(&missing_key::REJECT);
                fields.read(&missing_key::REJECT)
            });
            (MissingKey::Reject, status)
        }
        NodeContent::Text(_) => (value.parse_with(parse_missing_key).unwrap_or(MissingKey::Ip), default),
        _ => {
            value.report_shape("one of ip, shared, skip and reject, or { reject: 401 }");
            (MissingKey::Ip, default)
        }
    }
}

fn parse_missing_key(text: &str) -> Parsed<MissingKey> {
    parse_word(&MISSING_KEYS)(text).map_err(|error| match missing_key::REJECT.value.parse_text(text) {
        Ok(_) => error.with_help(format!("write {{ reject: {text} }}")),
        Err(_) => error,
    })
}
