//! Places with a check that the gateway cannot make: they answer 403 until it is written by hand.

use super::known::{find_check, is_other_handler};
use super::location_tree::{LocationMatch, LocationNode, MatchKind};
use super::parser::Directive;
use super::regex::is_usable_path;

/// True if a step inside an `if` refuses requests, or may do so. A redirect does: it forwards nothing.
pub(super) fn refuses(step: &Directive, root: &LocationNode<'_>) -> bool {
    match step.name.as_str() {
        "return" => !step.arg(0).starts_with('2'),
        "rewrite" => redirects(step) || leads_to_refusal(step.arg(1), root),
        name => is_other_handler(name) || find_check(name).is_some(),
    }
}

/// True if a `rewrite` answers.
pub(super) fn redirects(rewrite: &Directive) -> bool {
    let is_url = ["http://", "https://", "$scheme"].iter().any(|start| rewrite.arg(1).starts_with(start));
    is_url || matches!(rewrite.arg(2), "permanent" | "redirect")
}

/// True if a path with variables may lead to a location that does more than forward.
pub(super) fn leads_to_refusal(target: &str, root: &LocationNode<'_>) -> bool {
    let to = target.split(['$', '?']).next().unwrap_or_default();
    let mut is_covered = false;
    let forwards = |node: &LocationNode<'_>| match node.static_path() {
        Some(path) => {
            is_covered |= node.matching.is_prefix() && to.starts_with(path);
            node.only_forwards || !path.starts_with(to) && !to.starts_with(path)
        }
        None => node.only_forwards || node.matching.kind == MatchKind::Named,
    };
    !root.children.iter().all(forwards) || !is_covered
}

/// The path of a location that takes at least the requests of one the gateway cannot match. Its group tells it from
/// paths that are written in the file.
pub(super) fn widen_path(matching: &LocationMatch) -> String {
    let widened = match matching.is_regex() {
        true => format!("{} (?:{})", matching.mark(), without_lookarounds(&matching.path)),
        false => format!("~ ^(?:{})", regex_syntax::escape(&matching.path)),
    };
    if is_usable_path(&widened).is_ok() { widened } else { "~ ^(?:/)".to_owned() }
}

/// Lookarounds only narrow an expression.
fn without_lookarounds(pattern: &str) -> String {
    let (mut out, mut rest) = (String::new(), pattern);
    while !rest.is_empty() {
        let looks = ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|mark| rest.starts_with(mark));
        let (item, behind) = rest.split_at(if looks { group_len(rest) } else { item_len(rest) });
        out.push_str(if looks { "" } else { item });
        rest = behind;
    }
    out
}

/// The length of the group that a text begins with.
fn group_len(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < text.len() {
        match text.as_bytes()[at] {
            b'(' => depth += 1,
            b')' if depth <= 1 => return at + 1,
            b')' => depth -= 1,
            _ => {}
        }
        at += item_len(&text[at..]);
    }
    at
}

/// The length of the escape, class or character that a text begins with.
fn item_len(text: &str) -> usize {
    let char_len = |text: &str| text.chars().next().map_or(0, char::len_utf8);
    match text.as_bytes().first() {
        Some(b'\\') => 1 + char_len(&text[1..]),
        Some(b'[') => {
            // A bracket at the start of a class belongs to it.
            let mut at = text.len() - text[1..].trim_start_matches('^').len();
            at += usize::from(text[at..].starts_with(']'));
            while at < text.len() && !text[at..].starts_with(']') {
                at += if text[at..].starts_with('\\') {
                    1 + char_len(&text[at + 1..])
                } else {
                    char_len(&text[at..])
                };
            }
            (at + 1).min(text.len())
        }
        _ => char_len(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookarounds_are_left_out() {
        for (pattern, left) in [
            (r"/\.(?!well-known|(a))x", r"/\.x"),
            (r"^/(?=[)(](\)))a(?<!b)$", "^/a$"),
            (r"[(?!]\(?!x", r"[(?!]\(?!x"),
            (r"[]\](?=](?=é)é", r"[]\](?=]é"),
            (r"(?!", ""),
            (r"a\", r"a\"),
            ("[a", "[a"),
        ] {
            assert_eq!(without_lookarounds(pattern), left);
        }
    }
}
