//! The JSON Schema (draft 2020-12) of the file, for editors and other programs.

use serde_json::{Map, Value, json};

use super::all_sections;
use super::field::{FieldDescription, Section, Shape};

/// The schema of `gateway.yaml` as a file.
pub fn json_schema_text() -> String {
    // Only maps with odd keys fail to serialize, and there are none.
    serde_json::to_string_pretty(&json_schema()).unwrap_or_default() + "\n"
}

/// The schema of `gateway.yaml`. Any scalar may also be a text with `${NAME}`, which is replaced before reading.
pub fn json_schema() -> Value {
    let sections = all_sections();
    let (file, rest) = sections.split_first().expect("the file is a section"); // Cannot fail: it is the first one.
    let mut schema = section_schema(file);
    let defs = rest.iter().map(|section| (definition_name(section), section_schema(section)));
    schema["minProperties"] = json!(1);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["$defs"] = Value::Object(defs.collect());
    schema
}

fn section_schema(section: &Section) -> Value {
    let fields: Vec<FieldDescription> = section.descriptions().collect();
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), field_schema(field))).collect();
    let required = fields.iter().filter(|field| field.default.is_none());
    let required: Vec<&str> = required.map(|field| field.name).collect();
    let mut schema = json!({
        // An empty section is null in YAML.
        "type": ["object", "null"],
        "description": section.sentence.trim(),
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn field_schema(field: &FieldDescription) -> Value {
    let mut schema = shape_schema(&field.shape);
    let description = match field.default {
        None => format!("{} Required.", field.sentence),
        Some(default) => format!("{} Default: `{default}`.", field.sentence),
    };
    schema["description"] = json!(description);
    // The value as it would be written; a text that is no YAML by itself stays a text.
    let example: Value = serde_yaml::from_str(field.example).unwrap_or_else(|_| json!(field.example));
    schema["examples"] = json!([example]);
    schema
}

fn shape_schema(shape: &Shape) -> Value {
    match shape {
        Shape::Integer(least, u64::MAX) => or_quoted(json!({ "type": "integer", "minimum": least })),
        Shape::Integer(least, most) => {
            or_quoted(json!({ "type": "integer", "minimum": least, "maximum": most }))
        }
        Shape::Boolean => or_variable(json!({ "type": "boolean" })),
        Shape::Text(_, Some(pattern)) => or_variable(json!({ "type": "string", "pattern": pattern })),
        // A text of digits alone is a number in YAML.
        Shape::Text(_, None) => json!({ "type": ["string", "number", "boolean"] }),
        Shape::Words(words) => {
            // A word of digits alone, without quotes, is a number in YAML.
            let numbers = words.iter().filter_map(|word| word.parse().ok().map(|number: f64| json!(number)));
            let words: Vec<Value> = words.iter().map(|word| json!(word)).chain(numbers).collect();
            or_variable(json!({ "enum": words }))
        }
        Shape::OneOrMore(item) => {
            let item = shape_schema(item);
            json!({ "anyOf": [item, { "type": "array", "items": item }, { "type": "null" }] })
        }
        Shape::List(item) => json!({ "type": ["array", "null"], "items": shape_schema(item) }),
        Shape::Map(_, value) => {
            json!({ "type": ["object", "null"], "additionalProperties": shape_schema(value) })
        }
        Shape::Section(section) => json!({ "$ref": format!("#/$defs/{}", definition_name(section)) }),
        Shape::Either(shapes) => json!({ "anyOf": shapes.iter().map(shape_schema).collect::<Vec<_>>() }),
    }
}

/// The key of a section in `$defs`. A reference to it cannot contain brackets.
fn definition_name(section: &Section) -> String {
    section.path.replace("[]", "")
}

/// A number with quotes or without, or a text with `${NAME}`.
fn or_quoted(number: Value) -> Value {
    json!({ "anyOf": [number, { "type": "string", "pattern": r"^[0-9]+$|\$\{" }] })
}

/// A scalar, or a text with `${NAME}` or `${file:PATH}`.
fn or_variable(scalar: Value) -> Value {
    json!({ "anyOf": [scalar, { "type": "string", "pattern": r"\$\{" }] })
}
