//! Expressions of PCRE as the gateway reads them, whether it can match the path of a location, and expressions that
//! match below one prefix only.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::Look;
use regex_syntax::hir::literal::{ExtractKind, Extractor, Literal};

use sluicegate_config::schema::tables::locations::parse_plain_path;
use sluicegate_model::PathRegex;

/// Marks that PCRE and the gateway read differently: possessive repetitions, operators of classes, marks of words.
const AMBIGUOUS: [&str; 10] = ["*+", "++", "?+", "}+", "&&", "--", "~~", r"\<", r"\>", r"\b{"];
/// The marks that may follow `(?` in both.
const GROUPS: [&str; 9] = [":", "<", "P<", "i)", "i:", "s)", "s-i:", "s-iu:", "-u:"];

/// The expression with a `$` that also stands before a last line break, as in PCRE. `None` = PCRE reads it otherwise.
fn write_ends(pattern: &str) -> Option<String> {
    let mut groups = pattern.split("(?").skip(1);
    if AMBIGUOUS.iter().any(|text| pattern.contains(text))
        || !groups.all(|group| GROUPS.iter().any(|known| group.starts_with(known)))
    {
        return None;
    }
    let (mut out, mut is_class, mut is_named) = (String::new(), false, false);
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // Behind it, a text might go on with that line break.
            '$' if !is_class && !matches!(chars.peek(), None | Some(')' | '|')) => return None,
            '$' if !is_class => out.push_str(r"\n?"),
            '[' if is_class && chars.peek() != Some(&':') => return None,
            '[' if is_class => is_named = true,
            '[' => {
                out.push(c);
                out.extend(chars.next_if_eq(&'^'));
                // A bracket at the start of a class belongs to it.
                out.extend(chars.next_if_eq(&']'));
                is_class = true;
                continue;
            }
            ']' => is_class = std::mem::take(&mut is_named),
            '\\' if chars.peek() == Some(&'v') => return None,
            '\\' => {
                out.push(c);
                out.extend(chars.next());
                continue;
            }
            _ => {}
        }
        out.push(c);
    }
    Some(out)
}

/// The expression with PCRE's meaning, of bytes. An unwritable one stays as it is, for [`is_usable_path`].
pub(crate) fn translate_pattern(pattern: &str, any_case: bool) -> String {
    let Some(text) = write_ends(pattern) else { return pattern.to_owned() };
    // `.*` takes the same texts either way.
    let rest = ParserBuilder::new().case_insensitive(any_case).build().parse(&text.replace(".*", ""));
    let is_plain = rest
        .is_ok_and(|hir| hir.to_string().is_ascii() && !hir.properties().look_set().contains_word_unicode());
    // The gateway drops spaces before an expression.
    match is_plain && !text.starts_with(char::is_whitespace) {
        // The gateway takes no empty expression.
        true if text.is_empty() => "^".to_owned(),
        true => text,
        false => format!("(?-u:{text})"),
    }
}

/// # Errors
/// Why it cannot.
pub(crate) fn is_usable_path(path: &str) -> Result<(), String> {
    if path.contains("${") {
        return Err("the gateway takes `${` for a variable".to_owned());
    }
    let regex = path.strip_prefix("~*").map(|pattern| (pattern, true));
    if let Some((pattern, any_case)) =
        regex.or_else(|| path.strip_prefix('~').map(|pattern| (pattern, false)))
    {
        let pattern = pattern.trim_start();
        let compiled = PathRegex::compile(pattern, any_case);
        compiled.map_err(|why| format!("the gateway cannot match the expression: {why}"))?;
        let unlike = || "the gateway reads the expression otherwise than nginx".to_owned();
        return write_ends(pattern).map(drop).ok_or_else(unlike);
    }
    let plain = path.strip_prefix("^~").or_else(|| path.strip_prefix('=')).unwrap_or(path);
    parse_plain_path(plain.trim_start()).map(|_| ()).map_err(|error| error.message)
}

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
    let texts: Vec<&[u8]> = literals.iter().map(Literal::as_bytes).collect();
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
