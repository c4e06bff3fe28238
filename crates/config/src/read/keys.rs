//! Reads keys: of limits, queues, bandwidth and stops.

use crate::schema::field::{Field, OneOrMore, ParseScalar};
use crate::schema::kinds::Text;
use crate::schema::tables::limits::KEY_PART;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use sluicegate_model::diagnostics::codes;
use sluicegate_model::diagnostics::problem::ValueError;
use sluicegate_model::key::KeyPart;

/// The parts of a key, or those of its default.
pub(crate) fn read_key(fields: &FieldReader<'_>, field: &Field<OneOrMore<Text<KeyPart>>>) -> Vec<KeyPart> {
    match fields.find(field) {
        Some(value) => read_key_parts(&value, "key"),
        None => field.parse_default_list(),
    }
}

/// One or more parts, each once.
pub(crate) fn read_key_parts(value: &FieldValue<'_>, name: &str) -> Vec<KeyPart> {
    if value.is_empty() {
        value.report_empty(match name {
            "key" => "write key: ip, or key: global for one counter",
            _ => "write fair_by: account, or fair_by: none for arrival order",
        });
    }
    let mut parts = Vec::new();
    for item in value.one_or_more() {
        let Some(part) = item.parse_with(|text| KEY_PART.parse_text(text)) else { continue };
        if parts.contains(&part) {
            item.report_at_value(ValueError::new(
                codes::NAME,
                format!("the {name} has the part `{}` twice", item.written_text()),
            ));
        }
        if let KeyPart::Source(source) = &part {
            item.mention_source(source);
        }
        parts.push(part);
    }
    parts
}
