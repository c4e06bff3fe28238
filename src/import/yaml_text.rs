//! Scalars, lists and mappings in YAML's flow style.

/// A scalar in double quotes, or as it is where no quotes are needed. `${` is written as `$${`.
pub(super) fn quote(text: &str) -> String {
    quote_template(&text.replace("${", "$${"))
}

/// A scalar whose `${name}` are variables.
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
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("\\U{:08x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// One value as it is, several as a list.
pub(super) fn one_or_list(items: &[String]) -> String {
    match items {
        [one] => one.clone(),
        items => format!("[{}]", items.join(", ")),
    }
}

/// `{ a: b, c: d }` of fields that are written already.
pub(super) fn flow_map(fields: &[(String, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{{ {} }}", fields.join(", "))
}

/// A rate of gateway.yaml for thousandths per second.
pub(super) fn write_rate(thousandths: u64) -> String {
    let (mut a, mut b) = (thousandths.max(1), 1000_u64);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    match 1000 / a {
        1 => format!("{}/s", thousandths / a),
        seconds => format!("{}/{seconds}s", thousandths / a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
