//! The typed model of texts with variables.

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
