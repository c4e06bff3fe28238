//! The typed model of texts with variables.

use std::fmt;

/// Parsed text with `${name}` variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateConfig(pub Vec<TemplatePiece>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePiece {
    Text(String),
    Var(TemplateVar),
}

/// The template variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateVar {
    Status,
    Title,
    Message,
    Limit,
    Tier,
    Rate,
    RetryAfter,
    RetryAfterMs,
    RequestId,
    ClientIp,
    Account,
    Host,
    /// The normalised path without its query; another name of [`TemplateVar::Path`].
    Uri,
    Path,
    RequestUri,
    Scheme,
    Location,
    Upstream,
}

impl TemplateVar {
    /// The variables with their names in the file.
    pub const NAMES: [(&'static str, TemplateVar); 18] = [
        ("status", TemplateVar::Status),
        ("title", TemplateVar::Title),
        ("message", TemplateVar::Message),
        ("limit", TemplateVar::Limit),
        ("tier", TemplateVar::Tier),
        ("rate", TemplateVar::Rate),
        ("retry_after", TemplateVar::RetryAfter),
        ("retry_after_ms", TemplateVar::RetryAfterMs),
        ("request_id", TemplateVar::RequestId),
        ("client_ip", TemplateVar::ClientIp),
        ("account", TemplateVar::Account),
        ("host", TemplateVar::Host),
        ("uri", TemplateVar::Uri),
        ("path", TemplateVar::Path),
        ("request_uri", TemplateVar::RequestUri),
        ("scheme", TemplateVar::Scheme),
        ("location", TemplateVar::Location),
        ("upstream", TemplateVar::Upstream),
    ];
}

/// The text as in the file.
impl fmt::Display for TemplateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            TemplatePiece::Text(text) => f.write_str(text),
            TemplatePiece::Var(var) => {
                let name = TemplateVar::NAMES.iter().find(|(_, known)| known == var);
                write!(f, "${{{}}}", name.map_or("", |(name, _)| name))
            }
        })
    }
}
