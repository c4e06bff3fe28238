//! Reads header edits: headers to set, add and remove.

use http::HeaderName;

use crate::schema::field::Field;
use crate::schema::kinds::Nested;
use crate::schema::tables::reject::edits;
use crate::yaml::field_reader::FieldReader;
use crate::yaml::field_value::FieldValue;
use crate::yaml::tree::{NodeContent, TextPiece};
use sluicegate_model::value::foreign_variables::{VARIABLES, find_variable};
use sluicegate_model::value::names;
use sluicegate_model::{
    HeaderEdits, HeaderText, Mention, TemplateConfig, TemplatePiece, TemplateVar, ValueError, codes,
    did_you_mean,
};

/// The edits of a field that is a section of them.
pub(crate) fn read_edits(fields: &FieldReader<'_>, field: &Field<Nested>) -> HeaderEdits {
    fields.read_section(field, |edits| {
        let pairs = |field| edits.find(field).map(|value| read_texts(&value)).unwrap_or_default();
        HeaderEdits { set: pairs(&edits::SET), add: pairs(&edits::ADD), remove: edits.read(&edits::REMOVE) }
    })
}

/// A mapping of header names to values with variables.
pub(crate) fn read_texts(value: &FieldValue<'_>) -> Vec<(HeaderName, HeaderText)> {
    read_pairs(value, read_header_text)
}

/// A mapping of header names to values of `read`. The same name in two spellings counts as a duplicate.
pub(crate) fn read_pairs<T>(
    value: &FieldValue<'_>,
    read: impl Fn(&FieldValue<'_>) -> Option<T>,
) -> Vec<(HeaderName, T)> {
    let mut pairs: Vec<(HeaderName, T)> = Vec::new();
    for (key, value) in value.entries() {
        let name = value.accept_name(names::parse_editable_header(&key.name));
        let (Some(text), Some(name)) = (read(&value), name) else { continue };
        if pairs.iter().any(|(other, _)| *other == name) {
            let message = format!("the header `{name}` appears twice");
            value.report_at_name(ValueError::new(codes::DUPLICATE_KEY, message));
        }
        pairs.push((name, text));
    }
    pairs
}

fn read_header_text(value: &FieldValue<'_>) -> Option<HeaderText> {
    let has_variables = matches!(&value.node.content, NodeContent::Text(text) if text.as_plain().is_none());
    if !has_variables {
        return value.parse_with(names::parse_header_value).map(HeaderText::Fixed);
    }
    let template = read_template(value, |var| VARIABLES.contains(&var.as_str()), false)?;
    let fixed_error = template.0.iter().find_map(|piece| match piece {
        TemplatePiece::Text(text) => names::parse_header_value(text).err(),
        TemplatePiece::Var(_) | TemplatePiece::KeyColumn(_) | TemplatePiece::JsonValue(_) => None,
    });
    if let Some(error) = fixed_error {
        value.report_at_value(error);
        return None;
    }
    Some(HeaderText::Template(template))
}

/// The template of a body, which may contain values of the request's body.
pub(crate) fn read_body_template(value: &FieldValue<'_>) -> Option<TemplateConfig> {
    read_template(value, |_| true, true)
}

/// A scalar with those template variables that `is_allowed` accepts, and if it `is_body` with values of the body.
pub(crate) fn read_template(
    value: &FieldValue<'_>,
    is_allowed: impl Fn(TemplateVar) -> bool,
    is_body: bool,
) -> Option<TemplateConfig> {
    let NodeContent::Text(text) = &value.node.content else {
        value.report_shape("text");
        return None;
    };
    let mut pieces = Vec::new();
    for piece in &text.pieces {
        match piece {
            TextPiece::Plain(plain) => pieces.push(TemplatePiece::Text(plain.clone())),
            TextPiece::Variable(name) if name.starts_with("key:") => {
                let column = name.trim_start_matches("key:").to_owned();
                value.mention(Mention::KeyColumn(column.clone()));
                pieces.push(TemplatePiece::KeyColumn(column));
            }
            TextPiece::Variable(name) if is_body && name.starts_with("json:") => {
                let pointer = names::parse_pointer(name.trim_start_matches("json:"));
                let pointer = pointer.map_err(|error| value.report_at_value(error)).ok()?;
                pieces.push(TemplatePiece::JsonValue(pointer));
            }
            TextPiece::Variable(name) => match TemplateVar::WORDS.iter().find(|(known, _)| known == name) {
                Some((_, var)) if is_allowed(*var) => pieces.push(TemplatePiece::Var(*var)),
                known => {
                    let allowed =
                        TemplateVar::WORDS.iter().filter(|(_, var)| is_allowed(*var)).map(|(name, _)| *name);
                    let names: Vec<&str> = allowed.collect();
                    let message = match known {
                        Some(_) => format!("the template variable `${{{name}}}` has no value here"),
                        None => format!("unknown template variable `${{{name}}}`"),
                    };
                    let help = find_variable(name)
                        .filter(|own| names.contains(own))
                        .map(|own| format!("did you mean `{own}`?"))
                        .or_else(|| did_you_mean(name, names.iter().copied()))
                        .unwrap_or_else(|| format!("the variables here are {}", names.join(", ")));
                    value.refuse(codes::TEMPLATE, message, help);
                    return None;
                }
            },
        }
    }
    Some(TemplateConfig(pieces))
}
