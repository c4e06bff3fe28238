//! The fields of header edits.

use http::HeaderName;

use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{Special, Text, text};
use sluicegate_model::value::names;

section! {
    /// Changes to headers.
    mod edits = "headers";
    /// Headers that replace those of the same name. Values may have variables such as `${client_ip}`.
    SET: Special = Special(headers), "set", "{}", "{ Strict-Transport-Security: max-age=31536000 }";
    /// Headers beside those of the same name.
    ADD: Special = Special(headers), "add", "{}", "{ Via: sluicegate }";
    /// Names of headers to remove.
    REMOVE: OneOrMore<Text<HeaderName>> = OneOrMore(Text::new("a header name", names::parse_editable_header)),
        "remove", "[]", "[Server, X-Powered-By]";
}

/// Names and values of headers.
pub fn headers() -> Shape {
    Shape::Map("header names", Box::new(text("a header value")))
}
