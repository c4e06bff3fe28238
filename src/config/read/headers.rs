//! Reads header edits: headers to set, add and remove.

use http::{HeaderName, HeaderValue};

use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::ValueError;
use crate::config::model::HeaderEdits;
use crate::config::value::names;
use crate::config::yaml::fields::{FieldReader, FieldValue};

/// `{ set: {}, add: {}, remove: [] }`.
pub(crate) fn read_edits(fields: &mut FieldReader<'_>, name: &'static str) -> HeaderEdits {
    let Some(mut edits) = fields.open_section(name) else {
        return HeaderEdits::default();
    };
    let read = HeaderEdits {
        set: edits.get_field("set").map(|value| read_pairs(&value)).unwrap_or_default(),
        add: edits.get_field("add").map(|value| read_pairs(&value)).unwrap_or_default(),
        remove: edits.read_list("remove", names::parse_editable_header),
    };
    edits.report_unknown();
    read
}

/// A mapping of header names to values. The same name in two spellings counts as a duplicate.
pub(crate) fn read_pairs(value: &FieldValue<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let mut pairs: Vec<(HeaderName, HeaderValue)> = Vec::new();
    for (key, value) in value.entries() {
        let name = names::parse_editable_header(&key.name).map_err(|error| value.report_at_name(error)).ok();
        let text = value.parse_with(names::parse_header_value);
        let (Some(name), Some(text)) = (name, text) else { continue };
        if pairs.iter().any(|(other, _)| *other == name) {
            value.report_at_name(ValueError::new(
                codes::DUPLICATE_KEY,
                format!("the header `{name}` appears twice"),
            ));
        }
        pairs.push((name, text));
    }
    pairs
}
