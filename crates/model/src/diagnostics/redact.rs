//! Masks secrets in the lines and messages of problems.

/// The lines of `text` with every value after a secret's key masked. The text of the line alone decides, because a
/// file with broken YAML must not show its secrets either.
pub fn redact_lines(text: &str) -> Vec<String> {
    let indent_of = |line: &str| line.len() - line.trim_start().len();
    let mut inside: Option<usize> = None;
    let mut in_pem = false;
    let mut lines: Vec<String> = Vec::new();
    let mut before = "";
    for line in text.split('\n') {
        if continues_credentials(before, line)
            && let Some(last) = lines.last_mut()
        {
            let start = last.rfind("://").map_or(0, |at| at + 3);
            *last = mask_range(last, start, last.len());
        }
        before = line;
        let pem = line.find("-----BEGIN").filter(|_| !in_pem).or(in_pem.then_some(0));
        in_pem = pem.is_some_and(|start| !line[start..].contains("-----END"));
        if let Some(start) = pem {
            lines.push(mask_range(line, start, line.len()));
            continue;
        }
        if inside.is_some_and(|indent| line.trim().is_empty() || indent_of(line) > indent) {
            lines.push(mask_range(line, 0, line.len()));
            continue;
        }
        let secret = find_secret_start(line);
        inside = secret.map(|_| indent_of(line));
        let line = secret
            .map_or_else(|| line.to_owned(), |start| mask_range(line, start, find_value_end(line, start)));
        lines.push(redact_credentials(&line));
    }
    lines
}

/// The byte after a key that names a secret, even a mistyped one.
fn find_secret_start(line: &str) -> Option<usize> {
    let code = line.split(" #").next().unwrap_or(line);
    let mut word_start = 0;
    for (byte, c) in code.char_indices() {
        if c == ':' {
            let word = code[word_start..byte].trim_end_matches(['"', '\'', ' ']).to_lowercase();
            if names_secret(&word) {
                return Some(byte + 1);
            }
            word_start = byte + 1;
        }
        if !(c.is_alphanumeric() || matches!(c, '_' | '-' | '"' | '\'' | ':' | ' '))
            || matches!(c, '"' | '\'' | ' ') && code[word_start..byte].is_empty()
        {
            word_start = byte + c.len_utf8();
        }
    }
    None
}

/// The end of the values behind `start`. If only the next fields of a mapping in braces follow one value, this is its
/// end; else the brackets at the end of the line that close those before it stay.
fn find_value_end(line: &str, start: usize) -> usize {
    let count = |brackets: [char; 2]| line[..start].matches(brackets).count();
    let mut open = count(['{', '[']).saturating_sub(count(['}', ']']));
    if let Some(end) = find_next_field(line, start).filter(|_| open > 0) {
        return end;
    }
    let mut end = line.len();
    for (at, c) in line[start..].char_indices().rev() {
        match c {
            '}' | ']' if open > 0 => (open, end) = (open - 1, start + at),
            ' ' | '\r' => {}
            _ => break,
        }
    }
    end
}

/// The comma behind the one value at `start`, if a field without a secret follows. A value that may go on behind the
/// comma has none.
fn find_next_field(line: &str, start: usize) -> Option<usize> {
    let value = line[start..].trim_start();
    let from = match value.chars().next()? {
        '[' | '{' => return None,
        quote @ ('"' | '\'') => {
            let end = 1 + value[1..].find(quote)?;
            let is_whole = !value[..end].contains('\\') && value[end + 1..].starts_with(", ");
            line.len() - value.len() + is_whole.then_some(end + 1)?
        }
        _ => start,
    };
    let comma = from + line[from..].find(", ")?;
    let rest = &line[comma + 2..];
    (begins_field(rest) && find_secret_start(rest).is_none()).then_some(comma)
}

/// True if `name: ` begins here.
fn begins_field(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name && text[name.len()..].starts_with(": ")
}

/// True if a key in lower case names a secret, even a mistyped one.
fn names_secret(word: &str) -> bool {
    let telling = ["token", "secret", "passw", "hmac"].iter().any(|part| word.contains(part));
    let near = |name| strsim::osa_distance(word, name) <= 2;
    telling || !word.is_empty() && word.len() <= 8 && (near("token") || near("secret"))
}

/// True if the value of the field or header `name` may be a secret, so that help does not repeat it.
pub fn may_hold_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    names_secret(&lower)
        || ["authorization", "cookie", "api-key", "api_key", "apikey"].iter().any(|part| lower.contains(part))
}

/// `text` with users and passwords of URLs masked, even if they are not escaped or the URL is invalid: everything
/// between `://` and the last `@` before the next `://`, and each word up to its `@`.
pub fn redact_credentials(text: &str) -> String {
    if !text.contains('@') {
        return text.to_owned();
    }
    let mut secret = vec![false; text.len()];
    let starts = text.match_indices("://").map(|(at, mark)| at + mark.len());
    let ends = text.match_indices("://").map(|(at, _)| at).skip(1).chain([text.len()]);
    for (start, end) in starts.zip(ends) {
        if let Some(at) = text[start..end].rfind('@') {
            secret[start..start + at].fill(true);
        }
    }
    let ends_word = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '[' | '{' | '@');
    for (at, _) in text.match_indices('@') {
        let start =
            text[..at].char_indices().rfind(|(_, c)| ends_word(*c)).map_or(0, |(b, c)| b + c.len_utf8());
        if !text[start..at].contains("://") {
            secret[start..at].fill(true);
        }
    }
    text.char_indices().map(|(byte, c)| if secret[byte] { mask_char(c) } else { c }).collect()
}

/// True if `line` may continue the user and password of a URL at the end of the line `before`.
fn continues_credentials(before: &str, line: &str) -> bool {
    let open = before.rfind("://").is_some_and(|at| !before[at..].contains('@'));
    let part = line.trim_start().split('@').next().filter(|_| line.contains('@'));
    open && part
        .is_some_and(|part| !part.starts_with(['-', '#']) && !part.contains("://") && !part.contains(": "))
}

/// `line` with a star for every character between the bytes, so that columns do not move.
fn mask_range(line: &str, start: usize, end: usize) -> String {
    let covered = line[start..end].chars().map(mask_char);
    line[..start].chars().chain(covered).chain(line[end..].chars()).collect()
}

fn mask_char(c: char) -> char {
    if c.is_whitespace() || matches!(c, '"' | '\'') { c } else { '*' }
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
            "  url: redis://:hunter2@one:6379,hunter2@two/0",
            "  url: [redis://:hunter2@a, \"redis://u:hunter2@b\", rediss://hunter2:x@c]",
            "  url: redis://:a/hunter2?#[hunter2 hunter2@host",
            "redis: {url:redis://ä:hunter2@host, prefix: sg}",
            "  url: redis:/:hunter2@host",
            "  url: :hunter2@host # the cache",
            "  url: ${REDIS_URL:-rediss+sentinel://u:hunter2@h1,h2/main}",
            "# url: redis://:hunter2@host",
            "jwt: { secret: hunter2 }",
            "tls: { kye: \"-----BEGIN PRIVATE KEY-----\\nhunter2\\n-----END PRIVATE KEY-----\", x: 1 }",
        ] {
            let covered = redact_lines(line);
            assert!(!covered[0].contains("hunter2"), "{}", covered[0]);
            assert_eq!(covered[0].chars().count(), line.chars().count());
        }
        let covered = redact_lines("admin:\n  token: >-\n    hunter2\n    more\n  listen: 127.0.0.1:1");
        assert_eq!(covered[2..], ["    *******", "    ****", "  listen: 127.0.0.1:1"]);
        let pem = "a:\n -----BEGIN X-----\n hunter2\n -----END X-----\n b: 1";
        assert_eq!(redact_lines(pem)[2..], [" *******", " ******** ******", " b: 1"]);
        let split = redact_lines("  url: \"redis://:hunter2\n    hunter2@host\"\n  prefix: sg");
        assert_eq!(split, ["  url: \"redis://********", "    *******@host\"", "  prefix: sg"]);
        let apart = "  - http://a.test\n  - b: x@c";
        assert_eq!(redact_lines(apart), ["  - http://a.test", "  - b: *@c"]);
        for (line, covered) in [
            ("admin: { token: hunter2, listen: :1 }", "admin: { token: *******, listen: :1 }"),
            ("admin: { token: \"hunter2\", listen: :1 }", "admin: { token: \"*******\", listen: :1 }"),
            ("jwt: { secret: a, b, x: 1 }", "jwt: { secret: ** ** ** * }"),
            ("a: { token: \"a, x: b }", "a: { token: \"** ** * }"),
            ("a: { token: 'a'', x: b' }", "a: { token: '*''* ** *' }"),
            ("a: { token: \"a\\\", x: b\" }", "a: { token: \"**\"* ** *\" }"),
            ("a: { tokens: [{ name: a, x: 1, token: b }] }", "a: { tokens: ** ***** ** ** ** ****** * ** }"),
        ] {
            assert_eq!(redact_lines(line), [covered]);
        }
        let closed = redact_lines("state: { x: [{ token: \"hunter2\" }] }\na: { b: 1, token: hunter2}}}");
        assert_eq!(closed, ["state: { x: [{ token: \"*******\" }] }", "a: { b: 1, token: *********}"]);
        let plain = "limits: { per-ip: { rate: 10/s } } # token: comment";
        assert_eq!(redact_lines(plain), [plain]);
    }
}
