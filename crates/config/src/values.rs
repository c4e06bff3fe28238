//! The values of a set of files by their paths, and what is different in another set.

use std::collections::HashMap;
use std::fmt;

use crate::yaml::tree::{Node, NodeContent, ScalarText};
use sluicegate_base::json_shape::json_object;
use sluicegate_model::diagnostics::redact::{may_hold_secret, redact_credentials};
use sluicegate_model::{ProblemSink, Secret};

/// Characters of a value that are shown.
const SHOWN_MAX: usize = 200;
/// Stands for a mapping.
const MAPPING: &str = "{…}";
/// Stands for a secret.
const MASKED: &str = "***";
/// The names of accounts, which logs may hide.
const MEMBERS: &str = "account.tier.members";

json_object! {
    /// A value that differs between two sets of files.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Change as "Change" {
        pub path: String = "The field, e.g. `limits.per-ip.rate` or `locations /a/`.",
        pub from: Option<String> = "The value before, *** for a secret; null: there was none.",
        pub to: Option<String> = "The value now, *** for a secret; null: there is none.",
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |mark: &str, text: &str| match text {
            MAPPING | MASKED => String::new(),
            text => format!(", {mark}{text}"),
        };
        match (&self.from, &self.to) {
            (Some(from), Some(to)) if from == to => write!(f, "{}: changed", self.path),
            (Some(from), Some(to)) => write!(f, "{}: {from} → {to}", self.path),
            (None, to) => write!(f, "{}: new{}", self.path, told("", to.as_deref().unwrap_or(MAPPING))),
            (Some(from), None) => write!(f, "{}: gone{}", self.path, told("was ", from)),
        }
    }
}

/// The values of a set of files, in the order of the files.
#[derive(Debug, Clone, Default)]
pub struct FileValues(Vec<FileValue>);

#[derive(Debug, Clone)]
struct FileValue {
    path: String,
    /// The mapping or list around it; `None` = the file.
    parent: Option<usize>,
    plain: Secret,
    shown: String,
}

impl FileValues {
    pub(crate) fn list_all(root: &Node, sink: &ProblemSink) -> FileValues {
        let mut values = FileValues::default();
        root.entries().iter().for_each(|(key, node)| values.add_all(key.name.clone(), None, node, sink));
        values
    }

    /// What is different in `new`: changed and new values, then those that are gone.
    pub fn changes_to(&self, new: &FileValues) -> Vec<Change> {
        let [before, after]: [HashMap<&str, &FileValue>; 2] =
            [self, new].map(|values| values.0.iter().map(|value| (value.path.as_str(), value)).collect());
        let change = |path: &str, from: Option<&FileValue>, to: Option<&FileValue>| {
            let shown = |value: &FileValue| value.shown.clone();
            Change { path: path.to_owned(), from: from.map(shown), to: to.map(shown) }
        };
        let changed = new.0.iter().filter_map(|value| match before.get(value.path.as_str()) {
            Some(old) => (old.plain != value.plain).then(|| change(&value.path, Some(old), Some(value))),
            None => new.is_first_of(value, &before).then(|| change(&value.path, None, Some(value))),
        });
        let is_gone =
            |value: &&FileValue| !after.contains_key(value.path.as_str()) && self.is_first_of(value, &after);
        let gone = self.0.iter().filter(is_gone).map(|value| change(&value.path, Some(value), None));
        changed.chain(gone).collect()
    }

    /// True unless a mapping around a value that `others` lack is told in its place. A section is told by its parts.
    fn is_first_of(&self, value: &FileValue, others: &HashMap<&str, &FileValue>) -> bool {
        match value.parent.map(|parent| &self.0[parent]) {
            None => value.shown != MAPPING,
            Some(parent) => parent.parent.is_none() || others.contains_key(parent.path.as_str()),
        }
    }

    fn push(&mut self, path: String, parent: Option<usize>, plain: String, shown: String) {
        self.0.push(FileValue { path, parent, plain: Secret(plain), shown });
    }

    fn add_all(&mut self, path: String, parent: Option<usize>, node: &Node, sink: &ProblemSink) {
        if path == MEMBERS {
            return self.push(path, parent, join_all(node), MASKED.into());
        }
        let around = parent.and_then(|index| self.0.get(index)).filter(|around| around.parent.is_none());
        let section = around.map_or("", |around| &around.path);
        // `10/s` is short for `{ rate: 10/s }`.
        let short = [("limits", ".rate"), ("upstreams", ".servers")];
        let short = short.into_iter().find(|(name, _)| *name == section).map(|(_, field)| field.to_owned());
        let is_owned = matches!(section, "limits" | "upstreams" | "locations");
        let source = sink.source_at(node.position).filter(|_| is_owned);
        let entries = node.entries().iter().map(|(key, inner)| (format!(".{}", key.name), inner));
        let mut parts: Vec<(String, &Node)> = entries.chain(name_items(node)).collect();
        if parts.is_empty() {
            let Some(field) = short else {
                let (plain, shown) = show_scalars(&path, node);
                return self.push(path, parent, plain, shown);
            };
            parts.push((field, node));
        }
        let own = Some(self.0.len());
        self.push(path.clone(), parent, MAPPING.into(), MAPPING.into());
        parts.into_iter().for_each(|(name, inner)| self.add_all(path.clone() + &name, own, inner, sink));
        if let Some(owner) = source.as_ref().and_then(|source| source.owner.get()) {
            self.push(path + ".owner", own, owner.to_string(), owner.to_string());
        }
    }
}

/// The items of a list of mappings, by their names, paths or addresses; nothing for other lists.
fn name_items(list: &Node) -> Vec<(String, &Node)> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let name_item = |(index, item): (usize, &'_ Node)| {
        let text = |field: &str| item.find_value(field).map(|value| show_scalars(field, value).1);
        // Locations of one path differ by the others.
        let path = ["listener", "scheme", "host", "methods", "path"].into_iter().filter_map(text);
        let when = item.find_value("when").filter(|when| !when.entries().is_empty()).map(join_shown);
        let path = text("path").map(|_| path.chain(when).collect::<Vec<_>>().join(" "));
        let name = ["name", "address", "url", "use"].into_iter().find_map(text);
        let mark = if path.is_some() { " " } else { "[" };
        let mut name = name.or(path).unwrap_or_else(|| index.to_string());
        let count = counts.entry(name.clone()).and_modify(|count| *count += 1).or_insert(1);
        if *count > 1 {
            name += &format!(" #{count}");
        }
        format!("{mark}{name}{}", if mark == "[" { "]" } else { "" })
    };
    match list.items().iter().any(|item| matches!(item.content, NodeContent::Map(_))) {
        true => list.items().iter().enumerate().map(name_item).zip(list.items()).collect(),
        false => Vec::new(),
    }
}

/// All that is in a value, for comparison alone.
fn join_all(node: &Node) -> String {
    let entries = node.entries().iter().map(|(key, inner)| format!("{:?}: {}", key.name, join_all(inner)));
    show_scalars("", node).0 + &entries.collect::<Vec<_>>().join(", ")
}

/// The conditions of a location, as they are shown.
fn join_shown(when: &Node) -> String {
    let shown = |name: &str, test: &Node| format!("{name}={}", show_scalars(&format!("when.{name}"), test).1);
    when.entries().iter().map(|(key, test)| shown(&key.name, test)).collect::<Vec<_>>().join(",")
}

/// The text of a scalar or of a list of them, and that which is shown.
fn show_scalars(path: &str, node: &Node) -> (String, String) {
    let texts = || [node].into_iter().chain(node.items()).filter_map(Node::text);
    let plain_text = |text: &ScalarText| text.as_plain().unwrap_or(&text.written).to_owned();
    let written_text =
        |text: &ScalarText| if text.replaced { text.written.clone() } else { plain_text(text) };
    let join = |mut texts: Vec<String>| match texts.len() {
        1 => texts.remove(0),
        _ => format!("[{}]", texts.join(", ")),
    };
    let (plain, written) =
        (join(texts().map(plain_text).collect()), join(texts().map(written_text).collect()));
    let field = path.rsplit('.').next().unwrap_or(path).to_ascii_lowercase();
    let is_secret = may_hold_secret(&field)
        || ["headers.", "when."].iter().any(|part| path.contains(part))
            && (field.contains("key") || field.contains("auth"))
        || ["tracing.headers.", "notify.url"].iter().any(|secret| path.starts_with(secret))
        || written.contains("-----BEGIN")
        || redact_credentials(&written) != written;
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let shown = || written.chars().take(SHOWN_MAX).map(printable).collect();
    (plain, if is_secret { MASKED.to_owned() } else { shown() })
}

#[cfg(test)]
mod tests;
