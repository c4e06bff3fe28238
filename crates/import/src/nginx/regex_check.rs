//! Expressions of PCRE as the gateway reads them, and whether it can match the path of a location.

use regex_syntax::ParserBuilder;

use sluicegate_config::schema::tables::locations::parse_plain_path;
use sluicegate_model::value::path_regex::PathRegex;

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
