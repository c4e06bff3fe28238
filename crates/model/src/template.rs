//! The typed model of texts with variables, and of edits to header fields.

use std::fmt;

use http::{HeaderName, HeaderValue};

use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_base::labelled::labelled_enum;

/// Parsed text with `${name}` variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateConfig(pub Vec<TemplatePiece>);

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePiece {
    /// Text that is copied as it is.
    Text(String),
    /// The place of a variable's value.
    Var(TemplateVar),
    /// The value of this column in the line of the request's API key.
    KeyColumn(String),
    /// The value at this place in the JSON of the request's body.
    JsonValue(JsonPointer),
}

labelled_enum! {
    /// The template variables.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TemplateVar: as_str -> &'static str {
        /// The status of the response.
        Status = "status",
        /// The title of the status, e.g. `Too Many Requests`.
        Title = "title",
        /// The reason as a sentence, with the time until a retry if there is one.
        Message = "message",
        /// The name of the limit that rejects the request.
        Limit = "limit",
        /// The class of the request in the shares of the limit that rejects it.
        Class = "class",
        /// The tier of the caller.
        Tier = "tier",
        /// The rate that rejects the request.
        Rate = "rate",
        /// The time until a retry, in whole seconds.
        RetryAfter = "retry_after",
        /// The time until a retry, in ms.
        RetryAfterMs = "retry_after_ms",
        /// The request id.
        RequestId = "request_id",
        /// The client's address.
        ClientIp = "client_ip",
        /// The account of the caller.
        Account = "account",
        /// The host of the request without its port.
        Host = "host",
        /// The normalised path without its query; another name of [`TemplateVar::Path`].
        Uri = "uri",
        /// The normalised path without its query.
        Path = "path",
        /// The path and query as the client sent them.
        RequestUri = "request_uri",
        /// The scheme by which the client reached the gateway, or the proxy in front of it.
        Scheme = "scheme",
        /// The name of the location.
        Location = "location",
        /// The name of the upstream.
        Upstream = "upstream",
    }
}

/// The text as in the file.
impl fmt::Display for TemplateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            TemplatePiece::Text(text) => f.write_str(text),
            TemplatePiece::Var(var) => write!(f, "${{{}}}", var.as_str()),
            TemplatePiece::KeyColumn(column) => write!(f, "${{key:{column}}}"),
            TemplatePiece::JsonValue(pointer) => write!(f, "${{json:{}}}", pointer.as_str()),
        })
    }
}

/// Edits of the header fields of a request or a response: first `set`, then `add`, then `remove`.
#[derive(Debug, Clone, Default)]
pub struct HeaderEdits {
    /// Fields that replace all of the same name.
    pub set: Vec<(HeaderName, HeaderText)>,
    /// Fields beside those of the same name.
    pub add: Vec<(HeaderName, HeaderText)>,
    /// Names of fields that are removed.
    pub remove: Vec<HeaderName>,
}

/// The value of a field that is set or added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderText {
    /// A value without variables.
    Fixed(HeaderValue),
    /// Each request fills in the variables.
    Template(TemplateConfig),
}
