//! A regular expression that shall match below one prefix only.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::Look;
use regex_syntax::hir::literal::{ExtractKind, Extractor};

/// The expression below a prefix.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RegexBelow {
    /// No path below the prefix matches.
    Never,
    /// The expression in the field `path`.
    Path(String),
    /// The expression may match partly inside the prefix, so that it cannot be written.
    Unknown,
}

/// `pattern` below `prefix`.
pub(super) fn scope_regex(prefix: &str, pattern: &str, any_case: bool) -> RegexBelow {
    let mark = if any_case { "~*" } else { "~" };
    if prefix == "/" {
        return RegexBelow::Path(format!("{mark} {pattern}"));
    }
    let Ok(hir) = ParserBuilder::new().utf8(false).case_insensitive(any_case).build().parse(pattern) else {
        // The reader of paths reports it.
        return RegexBelow::Path(format!("{mark} {pattern}"));
    };
    let found = Extractor::new().kind(ExtractKind::Prefix).extract(&hir);
    let Some(literals) = found.literals().filter(|literals| !literals.is_empty()) else {
        return RegexBelow::Unknown;
    };
    let texts: Vec<&[u8]> = literals.iter().map(regex_syntax::hir::literal::Literal::as_bytes).collect();
    let prefix_bytes = prefix.as_bytes();
    if hir.properties().look_set_prefix().contains(Look::Start) {
        if texts.iter().all(|text| text.starts_with(prefix_bytes)) {
            return RegexBelow::Path(format!("{mark} {pattern}"));
        }
        let apart = |text: &&[u8]| !text.starts_with(prefix_bytes) && !prefix_bytes.starts_with(text);
        return if texts.iter().all(apart) { RegexBelow::Never } else { RegexBelow::Unknown };
    }
    if hir.properties().look_set().contains(Look::Start) {
        return RegexBelow::Unknown;
    }
    // A match that begins with a byte the prefix does not have lies behind it.
    let begins_inside = |text: &[u8]| text.first().is_none_or(|first| prefix_bytes.contains(first));
    if texts.iter().any(|text| begins_inside(text)) {
        return RegexBelow::Unknown;
    }
    let escaped = regex_syntax::escape(prefix);
    // An expression of bytes takes any byte before it.
    let flags = if pattern.starts_with("(?-u:") { "s-iu" } else { "s-i" };
    RegexBelow::Path(format!("{mark} ^(?{flags}:{escaped}.*)(?:{pattern})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_bound_to_a_prefix() {
        let path = |text: &str| RegexBelow::Path(text.to_owned());
        assert_eq!(scope_regex("/app/", r"\.php$", false), path(r"~ ^(?s-i:/app/.*)(?:\.php$)"));
        assert_eq!(
            scope_regex("/app/", r"^/app/.*\.js$", true),
            RegexBelow::Unknown,
            "its literals are in any case"
        );
        assert_eq!(scope_regex("/app/", r"^/app/.*\.js$", false), path(r"~ ^/app/.*\.js$"));
        assert_eq!(scope_regex("/app/", r"^/other/", false), RegexBelow::Never);
        assert_eq!(scope_regex("/app/", r"p/x", false), RegexBelow::Unknown);
        assert_eq!(scope_regex("/app/", r".*x", false), RegexBelow::Unknown);
        assert_eq!(scope_regex("/", r"^x", false), path("~ ^x"));
    }
}
