//! The values of a request's body that responses of the gateway contain.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use sluicegate_base::json_pointer::JsonPointer;

/// Bytes of an `id`, without quotation marks; a longer one is not repeated.
const RPC_ID_MAX: usize = 256;

/// The values of one body.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BodyTexts {
    rpc_id: Option<Box<str>>,
    values: Vec<(JsonPointer, Box<str>)>,
}

impl BodyTexts {
    /// The `id` of the JSON-RPC message, as it was written: a text or a number; `null` of any other body.
    pub fn rpc_id(&self) -> &str {
        self.rpc_id.as_deref().unwrap_or("null")
    }

    /// The value at this place; empty without one.
    pub fn value(&self, pointer: &JsonPointer) -> &str {
        self.values.iter().find(|(known, _)| known == pointer).map_or("", |(_, text)| text)
    }

    pub(super) fn add_value(&mut self, pointer: &JsonPointer, text: Option<&[u8]>) {
        if let Some(text) = text {
            self.values.push((pointer.clone(), String::from_utf8_lossy(text).into()));
        }
    }

    /// Reads the `id` of a body that begins with `bytes`, wherever it ends.
    pub(super) fn read_rpc_id(&mut self, bytes: &[u8]) {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let mut ids = IdVisitor(&mut Vec::new());
        let mut document = serde_json::Deserializer::from_slice(bytes);
        let read = document.deserialize_map(&mut ids).and_then(|()| document.end());
        let [id] = ids.0[..] else { return };
        // A number at the end of what was read may go on.
        let may_go_on = || id.as_bytes().as_ptr_range().end == bytes.as_ptr_range().end;
        let is_told = read.map_or_else(|error| error.is_eof() && !may_go_on(), |()| true);
        self.rpc_id = (is_told && is_usable(id)).then(|| id.into());
    }
}

/// Collects the members `id` of a message, two at most, as far as it is read.
struct IdVisitor<'v, 'de>(&'v mut Vec<&'de str>);

impl<'de> Visitor<'de> for &mut IdVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<Cow<'de, str>>()? {
            if name == "id" && self.0.len() < 2 {
                self.0.push(members.next_value::<&'de RawValue>()?.get());
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// True of a text or a number that is short enough.
fn is_usable(id: &str) -> bool {
    let text = id.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let is_number = id.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    (text.is_some() || is_number) && text.unwrap_or(id).len() <= RPC_ID_MAX
}

#[cfg(test)]
mod tests;
