//! The JSON of a call, with every member as it was sent: one that is there twice is an error, not the last of both.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A text in the body of a call, copied only if it has escapes.
pub(super) type CallText<'a> = Cow<'a, str>;

/// A value in the body of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallValue<'a> {
    Null,
    Text(CallText<'a>),
    Number(u64),
    /// A boolean, or a number that is negative or not whole.
    Other,
    List(Vec<CallValue<'a>>),
    /// No name is there twice.
    Object(Vec<(CallText<'a>, CallValue<'a>)>),
}

/// Why a call is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallFault {
    /// The member at fault, e.g. `key.account`; empty = the whole body.
    pub field: String,
    pub message: String,
}

impl CallFault {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> CallFault {
        CallFault { field: field.into(), message: message.into() }
    }
}

impl<'a> CallValue<'a> {
    /// The members of the object that the body is.
    ///
    /// # Errors
    /// The body is no JSON, or another value.
    pub(super) fn read_members(body: &'a [u8]) -> Result<Vec<(CallText<'a>, CallValue<'a>)>, CallFault> {
        match serde_json::from_slice(body) {
            Ok(CallValue::Object(members)) => Ok(members),
            Ok(_) => Err(CallFault::new("", "the body must be a JSON object")),
            Err(error) => Err(CallFault::new("", format!("the body is not understood: {error}"))),
        }
    }
}

impl<'de> Deserialize<'de> for CallValue<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CallValue<'de>, D::Error> {
        deserializer.deserialize_any(CallValueVisitor)
    }
}

struct CallValueVisitor;

impl<'de> Visitor<'de> for CallValueVisitor {
    type Value = CallValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<CallValue<'de>, E> {
        Ok(CallValue::Null)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<CallValue<'de>, E> {
        Ok(CallValue::Other)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<CallValue<'de>, E> {
        Ok(CallValue::Number(number))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<CallValue<'de>, E> {
        Ok(CallValue::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<CallValue<'de>, E> {
        Ok(CallValue::Other)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<CallValue<'de>, E> {
        Ok(CallValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<CallValue<'de>, E> {
        Ok(CallValue::Text(Cow::Borrowed(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<CallValue<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(CallValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<CallValue<'de>, A::Error> {
        let mut object: Vec<(CallText<'de>, CallValue<'de>)> = Vec::new();
        while let Some((name, value)) = members.next_entry::<CallValue<'de>, CallValue<'de>>()? {
            // Names are texts in JSON.
            let CallValue::Text(name) = name else { return Err(A::Error::custom("a name is no text")) };
            // Quadratic, so the number is bounded.
            if object.len() == MEMBERS_MAX {
                return Err(A::Error::custom(format!("an object has more than {MEMBERS_MAX} members")));
            }
            if object.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format!("the member `{name}` is there twice")));
            }
            object.push((name, value));
        }
        Ok(CallValue::Object(object))
    }
}

/// Most members of one object.
const MEMBERS_MAX: usize = 256;
