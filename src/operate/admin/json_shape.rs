//! The forms of JSON in requests and answers, as constants; from them comes the JSON Schema of the OpenAPI document.

use serde_json::{Map, Value, json};

/// The form of one JSON value.
pub(super) enum JsonShape {
    Text,
    /// A whole number from 0.
    Count,
    Number,
    Flag,
    /// One of these texts.
    Words(&'static [&'static str]),
    /// The value, or null.
    Nullable(&'static JsonShape),
    List(&'static JsonShape),
    Object(&'static JsonObject),
    /// Any JSON.
    Any,
}

/// A JSON object. Its name is unique among all objects of the API.
pub(super) struct JsonObject {
    pub name: &'static str,
    pub fields: &'static [JsonField],
}

pub(super) struct JsonField {
    pub name: &'static str,
    pub shape: JsonShape,
    pub sentence: &'static str,
    pub required: bool,
}

/// A field that is always there.
pub(super) const fn always(name: &'static str, shape: JsonShape, sentence: &'static str) -> JsonField {
    JsonField { name, shape, sentence, required: true }
}

/// A field that may be absent.
pub(super) const fn maybe(name: &'static str, shape: JsonShape, sentence: &'static str) -> JsonField {
    JsonField { name, shape, sentence, required: false }
}

impl JsonShape {
    /// The schema of the value. Objects are references to `#/components/schemas`.
    pub fn schema(&self) -> Value {
        match self {
            JsonShape::Text => json!({ "type": "string" }),
            JsonShape::Count => json!({ "type": "integer", "minimum": 0 }),
            JsonShape::Number => json!({ "type": "number" }),
            JsonShape::Flag => json!({ "type": "boolean" }),
            JsonShape::Words(words) => json!({ "type": "string", "enum": words }),
            JsonShape::Nullable(shape) => json!({ "anyOf": [shape.schema(), { "type": "null" }] }),
            JsonShape::List(item) => json!({ "type": "array", "items": item.schema() }),
            JsonShape::Object(object) => object.reference(),
            JsonShape::Any => json!({}),
        }
    }

    /// Adds the schemas of all objects inside the value to `schemas`, by their names.
    pub fn collect_objects(&self, schemas: &mut Map<String, Value>) {
        match self {
            JsonShape::Nullable(inner) | JsonShape::List(inner) => inner.collect_objects(schemas),
            JsonShape::Object(object) => object.collect_into(schemas),
            _ => {}
        }
    }
}

impl JsonObject {
    pub fn reference(&self) -> Value {
        json!({ "$ref": format!("#/components/schemas/{}", self.name) })
    }

    /// Adds its schema and those of the objects inside it to `schemas`.
    pub fn collect_into(&self, schemas: &mut Map<String, Value>) {
        if schemas.insert(self.name.to_owned(), self.schema()).is_none() {
            self.fields.iter().for_each(|field| field.shape.collect_objects(schemas));
        }
    }

    /// Its schema; later versions may add fields.
    pub fn schema(&self) -> Value {
        let property = |field: &JsonField| {
            let mut schema = field.shape.schema();
            schema["description"] = json!(field.sentence);
            (field.name.to_owned(), schema)
        };
        let properties: Map<String, Value> = self.fields.iter().map(property).collect();
        let required = self.fields.iter().filter(|field| field.required).map(|field| field.name);
        json!({
            "type": "object",
            "properties": properties,
            "required": required.collect::<Vec<_>>(),
        })
    }
}
