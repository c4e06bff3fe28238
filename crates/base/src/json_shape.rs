//! The forms of JSON in requests and answers, as constants; from them comes the JSON Schema of the OpenAPI document.
//!
//! [`json_object!`] defines structs, their JSON and the form of their JSON at once.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Number, Value, json};

/// The form of one JSON value.
#[derive(Clone, Copy)]
pub enum JsonShape {
    /// Any text.
    Text,
    /// A whole number from 0.
    Count,
    /// Any number, also a negative one or a fraction.
    Number,
    /// True or false.
    Flag,
    /// One of these texts.
    Words(&'static [&'static str]),
    /// The value, or null.
    Nullable(&'static JsonShape),
    /// A list of any length; each value in it has this form.
    List(&'static JsonShape),
    /// An object, to which the schema refers by its name.
    Object(&'static JsonObject),
    /// Any JSON.
    Any,
}

/// A JSON object. Its name is unique among all objects of the API.
pub struct JsonObject {
    /// The name under which its schema stands in `#/components/schemas`.
    pub name: &'static str,
    /// The known fields; later versions may add more.
    pub fields: &'static [JsonField],
}

/// A field of a JSON object.
pub struct JsonField {
    /// The name of the field in the JSON.
    pub name: &'static str,
    /// The form of the value, when the field is present.
    pub shape: JsonShape,
    /// The description of the field in the schema.
    pub sentence: &'static str,
    /// False if the field may be absent.
    pub required: bool,
}

/// A type with one form of JSON for all its values.
pub trait JsonShaped {
    /// The form of all values of the type.
    const SHAPE: JsonShape;
    /// The form of a field that may be absent, when it is present.
    const SHAPE_IF_THERE: JsonShape = Self::SHAPE;

    /// True if a field that may be absent is left out.
    fn is_left_out(&self) -> bool {
        false
    }
}

/// Defines structs that are written as JSON objects: `field: Type = "its sentence"` for each field, `as "name"` where
/// that is its name in JSON, `= maybe "…"` for one that is left out where it says nothing, `= nullable "…"` for one
/// that may be null as well, `in [words]` for one of some texts, and no sentence for one that is not part of the JSON.
/// The sentence is the documentation of the field; doc comments above the field go on from it.
#[macro_export]
macro_rules! json_object {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<$life:lifetime>)? as $schema:literal {
            $($(#[$note:meta])* $field_vis:vis $field:ident: $type:ty
                $(= $($maybe:ident)? $sentence:literal $(as $json:literal)? $(in $words:tt)?)?,)*
        }
    )+) => {$(
        $(#[$meta])*
        $vis struct $name $(<$life>)? {
            $($(#[doc = $sentence])? $(#[$note])* $field_vis $field: $type,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// The form of the struct as a JSON object, with the name and the fields that the API documents.
            pub const OBJECT: $crate::json_shape::JsonObject =
                $crate::json_shape::JsonObject::named($schema).with(&[$($(
                    $crate::json_shape::JsonField::of_type::<$type>(
                        [$($json,)? stringify!($field)][0], $sentence, concat!($(stringify!($maybe))?),
                    )$(.one_of(&$crate::json_shape::JsonShape::Words(&$words)))?,
                )?)*]);
        }

        impl $(<$life>)? $crate::json_shape::JsonShaped for $name $(<$life>)? {
            const SHAPE: $crate::json_shape::JsonShape = $crate::json_shape::JsonShape::Object(&Self::OBJECT);
        }

        impl $(<$life>)? serde::Serialize for $name $(<$life>)? {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut object = serde::Serializer::serialize_map(serializer, None)?;
                $($(
                    let required = concat!($(stringify!($maybe))?).is_empty();
                    if required || !$crate::json_shape::JsonShaped::is_left_out(&self.$field) {
                        let name = [$($json,)? stringify!($field)][0];
                        serde::ser::SerializeMap::serialize_entry(&mut object, name, &self.$field)?;
                    }
                )?)*
                serde::ser::SerializeMap::end(object)
            }
        }
    )+};
}
pub use json_object;

/// Gives each of the types this form.
macro_rules! json_values {
    ($($type:ty),* => $shape:ident) => {
        $(impl JsonShaped for $type {
            const SHAPE: JsonShape = JsonShape::$shape;
        })*
    };
}
json_values!(&str, IpAddr, SocketAddr => Text);
json_values!(Value => Any);
json_values!(u16, u32, u64, usize => Count);
json_values!(f64, Number => Number);

impl JsonShaped for String {
    const SHAPE: JsonShape = JsonShape::Text;

    fn is_left_out(&self) -> bool {
        self.is_empty()
    }
}

impl JsonShaped for bool {
    const SHAPE: JsonShape = JsonShape::Flag;

    fn is_left_out(&self) -> bool {
        !self
    }
}

impl<T: JsonShaped> JsonShaped for Option<T> {
    const SHAPE: JsonShape = JsonShape::Nullable(&T::SHAPE);
    const SHAPE_IF_THERE: JsonShape = T::SHAPE;

    fn is_left_out(&self) -> bool {
        self.is_none()
    }
}

impl<T: JsonShaped> JsonShaped for Vec<T> {
    const SHAPE: JsonShape = JsonShape::List(&T::SHAPE);

    fn is_left_out(&self) -> bool {
        self.is_empty()
    }
}

/// A field that is always there.
pub const fn always(name: &'static str, shape: JsonShape, sentence: &'static str) -> JsonField {
    JsonField { name, shape, sentence, required: true }
}

/// A field that may be absent.
pub const fn maybe(name: &'static str, shape: JsonShape, sentence: &'static str) -> JsonField {
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

impl JsonField {
    /// `maybe` is empty for a field that is always there, else `maybe` or `nullable`.
    pub const fn of_type<T: JsonShaped>(
        name: &'static str,
        sentence: &'static str,
        maybe: &'static str,
    ) -> JsonField {
        let shape = match maybe.as_bytes() {
            b"maybe" => T::SHAPE_IF_THERE,
            _ => T::SHAPE,
        };
        JsonField { name, shape, sentence, required: maybe.is_empty() }
    }

    /// One of these [`JsonShape::Words`], or null where the type has null.
    pub const fn one_of(self, words: &'static JsonShape) -> JsonField {
        match self.shape {
            JsonShape::Nullable(_) => JsonField { shape: JsonShape::Nullable(words), ..self },
            _ => JsonField { shape: *words, ..self },
        }
    }
}

impl JsonObject {
    /// An object without fields; `name` is unique among all objects of the API.
    pub const fn named(name: &'static str) -> JsonObject {
        JsonObject { name, fields: &[] }
    }

    /// The same object with these fields in place of any others.
    pub const fn with(self, fields: &'static [JsonField]) -> JsonObject {
        JsonObject { fields, ..self }
    }

    pub(crate) fn reference(&self) -> Value {
        json!({ "$ref": format!("#/components/schemas/{}", self.name) })
    }

    /// Adds its schema and those of the objects inside it to `schemas`.
    pub fn collect_into(&self, schemas: &mut Map<String, Value>) {
        if schemas.insert(self.name.to_owned(), self.schema()).is_none() {
            self.fields.iter().for_each(|field| field.shape.collect_objects(schemas));
        }
    }

    /// The schema of the object; later versions may add fields.
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
