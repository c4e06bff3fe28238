//! The typed model of texts with variables, and of edits to header fields.

use std::fmt;

use http::{HeaderName, HeaderValue};

use sluicegate_base::labelled::labelled_enum;

/// Parsed text with `${name}` variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateConfig(pub Vec<TemplatePiece>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePiece {
    Text(String),
    Var(TemplateVar),
}

labelled_enum! {
    /// The template variables.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TemplateVar: as_str -> &'static str {
        Status = "status",
        Title = "title",
        Message = "message",
        Limit = "limit",
        Tier = "tier",
        Rate = "rate",
        RetryAfter = "retry_after",
        RetryAfterMs = "retry_after_ms",
        RequestId = "request_id",
        ClientIp = "client_ip",
        Account = "account",
        Host = "host",
        /// The normalised path without its query; another name of [`TemplateVar::Path`].
        Uri = "uri",
        Path = "path",
        RequestUri = "request_uri",
        Scheme = "scheme",
        Location = "location",
        Upstream = "upstream",
    }
}

/// The text as in the file.
impl fmt::Display for TemplateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            TemplatePiece::Text(text) => f.write_str(text),
            TemplatePiece::Var(var) => write!(f, "${{{}}}", var.as_str()),
        })
    }
}

#[derive(Debug, Clone, Default)]
pub struct HeaderEdits {
    pub set: Vec<(HeaderName, HeaderText)>,
    pub add: Vec<(HeaderName, HeaderText)>,
    pub remove: Vec<HeaderName>,
}

/// The value of a field that is set or added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderText {
    Fixed(HeaderValue),
    /// Each request fills in the variables.
    Template(TemplateConfig),
}
