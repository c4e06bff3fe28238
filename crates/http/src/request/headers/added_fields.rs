//! The fields that the gateway adds to a request, beside its head until they are sent.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Fields to send with the head of a request. Over HTTP/1 they are only written, which costs a fifth of inserting them
/// into the head first.
#[derive(Debug, Default)]
pub struct AddedFields(Vec<(HeaderName, HeaderValue)>);

impl AddedFields {
    /// No fields yet, with room for those of most requests: three about the origin of the request, and its id.
    pub fn new() -> AddedFields {
        AddedFields(Vec::with_capacity(4))
    }

    /// Sets a field that the head itself does not contain.
    #[inline]
    pub fn set(&mut self, name: HeaderName, value: HeaderValue) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some(field) => field.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// The fields in the order in which they were set.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &(HeaderName, HeaderValue)> {
        self.0.iter()
    }

    /// Moves all fields into `headers`.
    pub fn move_into(&mut self, headers: &mut HeaderMap) {
        headers.extend(self.0.drain(..));
    }

    /// Adds all fields to `headers`.
    pub fn copy_into(&self, headers: &mut HeaderMap) {
        headers.extend(self.0.iter().cloned());
    }

    /// Removes all fields from `headers`.
    pub fn remove_from(&self, headers: &mut HeaderMap) {
        for (name, _) in &self.0 {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_set_once_and_leaves_as_it_came() {
        let (name, value) = (HeaderName::from_static("x-request-id"), HeaderValue::from_static);
        let mut added = AddedFields::default();
        added.set(name.clone(), value("1"));
        added.set(name.clone(), value("2"));
        assert_eq!(added.iter().count(), 1);
        let mut headers = HeaderMap::new();
        headers.insert("accept", value("*/*"));
        let before = headers.clone();
        added.copy_into(&mut headers);
        assert_eq!(headers[&name], "2");
        added.remove_from(&mut headers);
        assert_eq!(headers, before);
        added.move_into(&mut headers);
        assert_eq!((&headers[&name], added.iter().count()), (&value("2"), 0));
    }
}
