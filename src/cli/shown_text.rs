//! Text from the gateway, made safe for a terminal: a client chooses parts of it.

/// Control characters, and invisible ones that reorder text, are escaped.
pub(super) fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

/// The same for every line.
pub(super) fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape_controls).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(
            escape_controls("a\u{1b}[2J\r\u{9b}1m\u{202e}b\n"),
            "a\\u{1b}[2J\\r\\u{9b}1m\\u{202e}b\\n"
        );
        assert_eq!(escape_controls("uri=/a?b='c' \"é\" \\ \u{2026}"), "uri=/a?b='c' \"é\" \\ \u{2026}");
        assert_eq!(escape_lines("a\tb\nc\u{7}\n"), "a\\tb\nc\\u{7}\n");
    }
}
