//! The typed model of edits to header fields.

use http::{HeaderName, HeaderValue};

use super::template::TemplateConfig;

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
