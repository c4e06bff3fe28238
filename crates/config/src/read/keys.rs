//! Reads keys, and the treatment of requests that lack a part of them.

use http::StatusCode;

use crate::schema::field::{Field, OneOrMore, ParseScalar};
use crate::schema::kinds::Text;
use crate::schema::tables::limits::{limit, missing_key};
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::NodeContent;
use sluicegate_model::value::words::parse_word;
use sluicegate_model::{KeyPart, Mention, MissingKey, Parsed, ValueError, codes};

/// The parts of a key, or those of its default.
pub(crate) fn read_key(fields: &FieldReader<'_>, field: &Field<OneOrMore<Text<KeyPart>>>) -> Vec<KeyPart> {
    match fields.find(field) {
        Some(value) => read_key_parts(&value, &field.value.0, "key"),
        None => field.parse_default_list(),
    }
}

/// One or more parts, each once.
pub(crate) fn read_key_parts(value: &FieldValue<'_>, kind: &Text<KeyPart>, name: &str) -> Vec<KeyPart> {
    value.check_filled(match name {
        "key" => "write key: ip, or key: global for one counter",
        _ => "write fair_by: account, or fair_by: none for arrival order",
    });
    let mut parts = Vec::new();
    for item in value.one_or_more() {
        let Some(part) = item.parse_with(|text| kind.parse_text(text)) else { continue };
        if parts.contains(&part) {
            item.report_at_value(ValueError::new(
                codes::NAME,
                format!("the {name} has the part `{}` twice", item.written_text()),
            ));
        }
        if let KeyPart::Source(source) = &part {
            item.mention(Mention::Source(source.clone()));
        }
        parts.push(part);
    }
    parts
}

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
    parse_word(&MissingKey::WORDS)(text).map_err(|error| match missing_key::REJECT.value.parse_text(text) {
        Ok(_) => error.with_help(format!("write {{ reject: {text} }}")),
        Err(_) => error,
    })
}
