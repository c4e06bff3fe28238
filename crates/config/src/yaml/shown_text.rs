//! Writes parts of a file anew, for the help of messages.

use super::syntax_error::quote_value;
use super::tree::{Node, NodeContent};
use sluicegate_model::diagnostics::redact::{may_hold_secret, redact_credentials};

/// Longer texts and lists are shown as `…`.
const TEXT_MAX: usize = 80;
const ITEMS_MAX: usize = 8;

/// A short value as it is written in the file, or `…`.
pub(crate) fn show_node(node: &Node) -> String {
    match &node.content {
        NodeContent::Text(text) => show_text(&text.written),
        NodeContent::List(items) if (1..=ITEMS_MAX).contains(&items.len()) => {
            let items: Vec<String> = items.iter().map(show_node).collect();
            format!("[{}]", items.join(", "))
        }
        NodeContent::Map(entries) if (1..=ITEMS_MAX).contains(&entries.len()) => {
            let fields: Vec<String> =
                entries.iter().map(|(key, node)| show_field(&key.name, &show_node(node))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        _ => "…".to_owned(),
    }
}

/// A field with its value as shown, or with `…` if that may be a secret.
pub(crate) fn show_field(name: &str, value: &str) -> String {
    let value = if may_hold_secret(name) { "…" } else { value };
    format!("{}: {value}", show_text(name))
}

/// A short text as a value of the file, quoted where it must be.
pub(crate) fn show_text(text: &str) -> String {
    let text = redact_credentials(text);
    if text.is_empty() || text.len() > TEXT_MAX || text.contains(char::is_control) {
        return "…".to_owned();
    }
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '~' | '.'))
        && !text.ends_with([':', ' '])
        && !text.contains(['{', '}', '[', ']', ',', '"', '\'', '#'])
        && !text.contains(": ");
    if is_plain { text } else { quote_value(&text) }
}
