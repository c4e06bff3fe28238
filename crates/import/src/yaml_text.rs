//! Scalars, lists and mappings in YAML's flow style.

use std::borrow::Cow;

use sluicegate_model::value::fraction::reduce_fraction;

/// A scalar in double quotes, or as it is where no quotes are needed. `${` is written as `$${`.
pub(super) fn quote(text: &str) -> String {
    quote_template(&text.replace("${", "$${"))
}

/// A scalar with `${name}` for variables.
pub(super) fn quote_template(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_word = matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "yes" | "no" | "on" | "off" | "null" | "y" | "n" | "none" | "any" | "auto"
    );
    if begins && text.chars().all(plain) && !is_word {
        return text.to_owned();
    }
    // JSON, with escapes for what it leaves alone and YAML does not.
    let is_hidden = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}');
    let mut out = serde_json::Value::from(text).to_string();
    while let Some(c) = out.chars().find(|c| is_hidden(*c)) {
        out = out.replace(c, &format!("\\u{:04x}", u32::from(c)));
    }
    out
}

/// The value that stands in the file for `text`: one that is written already stays as it is, and any other text is
/// quoted, so that no text of an imported file is read as YAML.
pub(super) fn as_value(text: &str) -> Cow<'_, str> {
    let (mut depth, mut quoted, mut escaped, mut before) = (0_i32, false, false, ' ');
    let is_sound = |c: char| {
        let is_escaped = escaped;
        escaped = quoted && !is_escaped && c == '\\';
        let before = std::mem::replace(&mut before, c);
        match c {
            '"' if quoted => quoted = is_escaped,
            _ if quoted => return !c.is_control(),
            '"' if !matches!(before, ' ' | '[') => return false,
            '"' => quoted = true,
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' | ' ' => return depth > 0,
            _ => return c.is_ascii_alphanumeric() || "-_./%:".contains(c),
        }
        depth >= 0
    };
    let is_written = text.chars().all(is_sound) && depth == 0 && !quoted && !matches!(before, ' ' | ':');
    if is_written { Cow::Borrowed(text) } else { Cow::Owned(quote(text)) }
}

/// One value as it is, several as a list.
pub(super) fn one_or_list(items: &[String]) -> String {
    match items {
        [one] => as_value(one).into_owned(),
        items => format!("[{}]", items.iter().map(|item| as_value(item)).collect::<Vec<_>>().join(", ")),
    }
}

/// Texts in quotes: one as it is, several as a list.
pub(super) fn quoted_list<T: ToString>(texts: impl IntoIterator<Item = T>) -> String {
    one_or_list(&texts.into_iter().map(|text| quote(&text.to_string())).collect::<Vec<_>>())
}

/// `{ a: b, c: d }` of names and values.
pub(super) fn flow_map(fields: &[(impl AsRef<str>, impl AsRef<str>)]) -> String {
    let entries = fields.iter().map(|(name, value)| (as_value(name.as_ref()), as_value(value.as_ref())));
    let entries: Vec<String> = entries.map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{{ {} }}", entries.join(", "))
}

/// `base`, then `base-2` and so on.
pub(super) fn numbered_names(base: &str) -> impl Iterator<Item = String> {
    std::iter::once(base.to_owned()).chain((2..).map(move |number: usize| format!("{base}-{number}")))
}

/// The text with a dash for each character that a name may not have.
pub(super) fn clean_name(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.chars().map(|c| if fits(c) { c } else { '-' }).collect()
}

/// A rate of gateway.yaml for thousandths per second, at least one.
pub(super) fn write_rate(thousandths: u64) -> String {
    match reduce_fraction(thousandths, 1000) {
        (units, 1) => format!("{units}/s"),
        (units, seconds) => format!("{units}/{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_value_is_quoted() {
        let field = |value: &str| flow_map(&[("a".to_owned(), value.to_owned())]);
        for value in ["10", "100%", "hash:ip", "{}", "\"x, \\\" y: z\"", "[1, { \"b c\": [d, \"\"], e: f }]"]
        {
            assert_eq!(as_value(value), value);
            assert_eq!(field(value), format!("{{ a: {value} }}"));
        }
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "a b",
            "a:",
            "1, b: 2",
            "x\n  b: 1",
            "x #",
            "\"a\" b",
            "{ a: 1 } x",
            "[a",
            "a\"b, c\"",
            "&a",
            &deep,
        ] {
            assert_eq!(
                (as_value(text), field(text)),
                (quote(text).into(), format!("{{ a: {} }}", quote(text)))
            );
            assert_eq!(one_or_list(&[text.to_owned(), "x".to_owned()]), format!("[{}, x]", quote(text)));
        }
    }

    #[test]
    fn scalars_are_quoted_where_needed() {
        for (text, written) in [
            ("app", "app"),
            ("/x/y", "/x/y"),
            ("= /x", "\"= /x\""),
            ("a\"b\\c", "\"a\\\"b\\\\c\""),
            ("no", "\"no\""),
            ("10", "\"10\""),
            ("${HOME}", "\"$${HOME}\""),
            ("", "\"\""),
        ] {
            assert_eq!(quote(text), written);
        }
    }
}
