//! Covering secrets in the lines that problems quote.

/// The lines of `text`, with everything behind a secret's key covered: by the look of the line alone, because a
/// file whose YAML is broken must not show its secrets either.
pub(super) fn covered_lines(text: &str) -> Vec<String> {
    let indent_of = |line: &str| line.len() - line.trim_start().len();
    let mut inside: Option<usize> = None;
    let mut lines = Vec::new();
    for line in text.split('\n') {
        if inside.is_some_and(|indent| line.trim().is_empty() || indent_of(line) > indent) {
            lines.push(cover(line, 0, line.len()));
            continue;
        }
        let secret = secret_start(line);
        inside = secret.map(|_| indent_of(line));
        let line = secret.map_or_else(|| line.to_owned(), |start| cover(line, start, line.len()));
        lines.push(match credentials(&line) {
            Some((start, end)) => cover(&line, start, end),
            None => line,
        });
    }
    lines
}

/// The byte behind a key that means a secret, also a mistyped one.
fn secret_start(line: &str) -> Option<usize> {
    let code = line.split(" #").next().unwrap_or(line);
    let mut word_start = 0;
    for (byte, c) in code.char_indices() {
        if c == ':' {
            let word = code[word_start..byte].trim_end_matches(['"', '\'', ' ']).to_lowercase();
            let telling = ["token", "secret", "passw"].iter().any(|part| word.contains(part));
            let near = |name| strsim::osa_distance(&word, name) <= 2;
            if telling || !word.is_empty() && word.len() <= 8 && (near("token") || near("secret")) {
                return Some(byte + 1);
            }
        }
        if !(c.is_alphanumeric() || matches!(c, '_' | '-' | '"' | '\'' | ':' | ' '))
            || matches!(c, '"' | '\'' | ' ') && code[word_start..byte].is_empty()
        {
            word_start = byte + c.len_utf8();
        }
    }
    None
}

/// The user and password of a URL.
fn credentials(line: &str) -> Option<(usize, usize)> {
    let start = line.find("://")? + 3;
    let authority = line[start..].split(['/', ' ', '"', '\'', ',']).next()?;
    authority.rfind('@').map(|end| (start, start + end))
}

/// `line` with a star for every character between the bytes, so that columns stay where they are.
fn cover(line: &str, start: usize, end: usize) -> String {
    let star = |c: char| if c.is_whitespace() || matches!(c, '"' | '\'') { c } else { '*' };
    let covered = line[start..end].chars().map(star);
    line[..start].chars().chain(covered).chain(line[end..].chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_covered_and_columns_stay() {
        for line in [
            "  token: hunter2",
            "admin: { listen: 0.0.0.0:1, token: hunter2, x: 1 }",
            "admin: {token: \"hunter2\"}",
            "  \"token\": hunter2",
            "  tokn: hunter2",
            "  secrt: hunter2",
            "  api_token : hunter2",
            "  url: redis://:hunter2@host/0",
            "jwt: { secret: hunter2 }",
        ] {
            let covered = covered_lines(line);
            assert!(!covered[0].contains("hunter2"), "{}", covered[0]);
            assert_eq!(covered[0].chars().count(), line.chars().count());
        }
        let covered = covered_lines("admin:\n  token: >-\n    hunter2\n    more\n  listen: 127.0.0.1:1");
        assert_eq!(covered[2..], ["    *******", "    ****", "  listen: 127.0.0.1:1"]);
        let plain = "limits: { per-ip: { rate: 10/s } } # token: comment";
        assert_eq!(covered_lines(plain), [plain]);
    }
}
