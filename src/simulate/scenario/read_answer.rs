//! Reads headers, bodies and the answers of the scripted upstream.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Number, Value};

use super::fields::answer;
use super::model::StepAnswer;
use sluicegate_config::yaml::field_value::FieldValue;
use sluicegate_config::yaml::tree::{Node, NodeContent};
use sluicegate_model::codes;
use sluicegate_model::value::names::{parse_header_name, parse_header_value, parse_status};

const JSON: &str = "application/json";

/// The answer of an upstream or an auth service: a status, or a mapping.
pub(super) fn read_answer(value: &FieldValue<'_>) -> StepAnswer {
    if !value.is_map() {
        let status = value.parse_with(|text| parse_status(text, 200)).unwrap_or(StatusCode::OK);
        return StepAnswer { status, ..StepAnswer::default() };
    }
    let fields = value.open_section(&answer::SECTION);
    let status = fields.read(&answer::STATUS);
    let mut headers = fields.find(&answer::HEADERS).map(|value| read_headers(&value)).unwrap_or_default();
    let body = read_body(&fields.find(&answer::BODY), &fields.find(&answer::JSON), &mut |kind| {
        if !headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
            headers.push((CONTENT_TYPE, HeaderValue::from_static(kind)));
        }
    });
    fields.report_unknown_here();
    StepAnswer { status, headers, body: body.map(Bytes::from).unwrap_or_default() }
}

/// The body that is given as text or as JSON. `set_kind` gets the content type of JSON.
pub(super) fn read_body(
    text: &Option<FieldValue<'_>>,
    json: &Option<FieldValue<'_>>,
    set_kind: &mut dyn FnMut(&'static str),
) -> Option<String> {
    match (text, json) {
        (Some(_), Some(json)) => {
            json.refuse_name(codes::NAME, "the body is given twice", "write either `body` or `json`");
            None
        }
        (Some(text), None) => text.parse_with(|text| Ok(text.to_owned())),
        (None, Some(json)) => {
            set_kind(JSON);
            read_json(json)
        }
        (None, None) => None,
    }
}

/// JSON that is written as YAML, or as one text.
fn read_json(value: &FieldValue<'_>) -> Option<String> {
    if let Some(text) = value.as_text() {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        if !is_json {
            let help = "write e.g. { tokens: 5 }, or the text with `body`";
            value.refuse(codes::WORD, "the text is not JSON", help);
        }
        return is_json.then(|| text.to_owned());
    }
    Some(json_of(value.node).to_string())
}

/// YAML as JSON: an unquoted text that looks like a number, a switch or null is one.
fn json_of(node: &Node) -> Value {
    match &node.content {
        NodeContent::Null | NodeContent::Invalid => Value::Null,
        NodeContent::List(items) => Value::Array(items.iter().map(json_of).collect()),
        NodeContent::Map(entries) => {
            let pairs = entries.iter().map(|(key, node)| (key.name.clone(), json_of(node)));
            Value::Object(pairs.collect::<Map<String, Value>>())
        }
        NodeContent::Text(text) => {
            let is_quoted = node.position.width == text.written.chars().count() + 2;
            match (is_quoted, text.written.as_str()) {
                (false, "true") => Value::Bool(true),
                (false, "false") => Value::Bool(false),
                (false, plain) => plain.parse::<Number>().map_or_else(|_| Value::from(plain), Value::Number),
                (true, quoted) => Value::from(quoted),
            }
        }
    }
}

/// A mapping of header names to one value or several. The length of a body is written here.
pub(super) fn read_headers(value: &FieldValue<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = Vec::new();
    for (key, lines) in value.entries() {
        let name = match parse_header_name(&key.name) {
            Ok(name) if name == CONTENT_LENGTH => {
                let message = "the length of a body is written by itself";
                lines.refuse_name(codes::PROTECTED_HEADER, message, "remove it");
                continue;
            }
            Ok(name) => name,
            Err(error) => {
                lines.report_at_name(error);
                continue;
            }
        };
        headers.extend(lines.parse_list(parse_header_value).into_iter().map(|line| (name.clone(), line)));
    }
    headers
}
