//! Places that let in whom the gateway cannot tell from others: they answer 403 until the check is written by hand.

use super::known::find_check;
use super::location_tree::{LocationMatch, LocationNode};
use super::parser::Directive;
use super::regex_check::is_usable_path;
use super::scope::FindingLedger;
use crate::import::FindingKind;

pub(super) fn tell_closed(directive: &Directive, why: &str, ledger: &FindingLedger) {
    ledger.tell(FindingKind::Closed, directive, format!("answers 403: {why}"));
}

/// Whether a location refuses some of its requests, or may do so; `root` has the locations that a rewrite may lead to.
pub(super) fn may_refuse(node: &LocationNode<'_>, root: Option<&LocationNode<'_>>) -> bool {
    node.scope.checks().next().is_some()
        || node.scope.nearest_of(&["allow", "deny"]).iter().any(|rule| rule.name == "deny")
        || node.scope.own_level().iter().any(|inner| refuses(inner, root))
}

/// Whether a directive refuses requests, or may do so. A redirect does: it forwards nothing.
pub(super) fn refuses(directive: &Directive, root: Option<&LocationNode<'_>>) -> bool {
    match directive.name.as_str() {
        "deny" | "internal" => true,
        "return" => !directive.arg(0).starts_with('2'),
        "rewrite" => {
            redirects(directive) || root.is_some_and(|root| leads_to_refusal(directive.arg(1), root))
        }
        "try_files" => directive.args.last().is_some_and(|last| last.starts_with("=4")),
        "if" | "limit_except" | "location" => directive.children().iter().any(|inner| refuses(inner, root)),
        name => find_check(name).is_some() && directive.arg(0) != "off",
    }
}

/// Whether a `rewrite` answers.
pub(super) fn redirects(rewrite: &Directive) -> bool {
    matches!(rewrite.arg(2), "permanent" | "redirect") || rewrite.arg(1).contains("://")
}

/// Whether one of the locations refuses that a path with variables may lead to.
pub(super) fn leads_to_refusal(target: &str, root: &LocationNode<'_>) -> bool {
    let to = target.split(['$', '?']).next().unwrap_or_default();
    let may_lead = |node: &&LocationNode<'_>| match &node.matching {
        LocationMatch::Exact(path) | LocationMatch::Prefix { path, .. } => {
            path.starts_with(to) || to.starts_with(path)
        }
        LocationMatch::Regex { .. } => true,
        LocationMatch::Named(_) => false,
    };
    root.children.iter().filter(may_lead).any(|node| *node.may_refuse.get_or_init(|| may_refuse(node, None)))
}

/// The path of a location that takes at least the requests of one the gateway cannot match. Its group tells it from
/// paths that are written in the file.
pub(super) fn widen_path(matching: &LocationMatch) -> String {
    let widened = match matching {
        LocationMatch::Regex { pattern, any_case } => {
            format!("{} (?:{})", if *any_case { "~*" } else { "~" }, without_lookarounds(pattern))
        }
        LocationMatch::Exact(path) | LocationMatch::Prefix { path, .. } | LocationMatch::Named(path) => {
            format!("~ ^(?:{})", regex_syntax::escape(path))
        }
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
