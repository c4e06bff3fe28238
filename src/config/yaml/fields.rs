//! Reading one mapping field by field: every problem is noted with its place, and reading goes on.

use std::collections::HashSet;

use super::tree::{Content, Key, Node};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Complaint, Findings, Mentioned, Place, did_you_mean};
use crate::config::model::limit::Source;
use crate::config::value::scalars::Read;

/// A value of the file: its node, the words that name it, and where its problems go.
#[derive(Clone)]
pub(crate) struct Value<'a> {
    pub node: &'a Node,
    /// E.g. `limits.per-ip.rate`.
    pub path: String,
    /// The key that names it, or its own place in a list: where "missing" and "not supported yet" point.
    pub named_at: Place,
    pub found: &'a Findings,
}

impl<'a> Value<'a> {
    pub fn complain(&self, complaint: Complaint) {
        self.found.add(self.node.place, &self.path, complaint);
    }

    pub fn complain_at_name(&self, complaint: Complaint) {
        self.found.add(self.named_at, &self.path, complaint);
    }

    pub fn is_null(&self) -> bool {
        matches!(self.node.content, Content::Null)
    }

    /// Nothing, or a list with nothing in it.
    pub fn is_empty(&self) -> bool {
        match &self.node.content {
            Content::Null => true,
            Content::List(items) => items.is_empty(),
            _ => false,
        }
    }

    /// Notes that at least one value is needed here.
    pub fn complain_of_nothing(&self, help: &str) {
        let message = format!("`{}` names nothing", self.last_name());
        self.complain_at_name(Complaint::new(codes::MISSING, message).help(help));
    }

    /// The text of a scalar; `None` for anything else, without complaint.
    pub fn as_text(&self) -> Option<&'a str> {
        match &self.node.content {
            Content::Text(text) => text.plain(),
            _ => None,
        }
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.as_text() == Some(word)
    }

    /// The text as it stands in the file, for messages: replaced text may be a secret.
    pub fn shown(&self) -> &'a str {
        match &self.node.content {
            Content::Text(text) => &text.written,
            _ => "",
        }
    }

    /// A scalar read by `parse`; `None` after a complaint.
    pub fn read<T>(&self, parse: impl FnOnce(&str) -> Read<T>) -> Option<T> {
        let Content::Text(text) = &self.node.content else {
            self.complain_of_shape("one value");
            return None;
        };
        let Some(plain) = text.plain() else {
            self.complain(Complaint::new(codes::TEMPLATE, "template variables have no meaning here").help(
                "they belong to the bodies of on_reject and respond, and to redirect; \
                 write ${NAME} in capitals for the environment, $${ for a literal ${",
            ));
            return None;
        };
        match parse(plain) {
            Ok(value) => Some(value),
            Err(complaint) if text.replaced => {
                let message = format!("`{}` does not hold {}", text.written, needed(complaint.code));
                self.complain(Complaint::new(complaint.code, message));
                None
            }
            Err(complaint) => {
                self.complain(complaint);
                None
            }
        }
    }

    /// Notes that the value has the wrong shape; `wanted` is e.g. "a list".
    pub fn complain_of_shape(&self, wanted: &str) {
        let message = match self.node.content {
            Content::Broken => return,
            Content::Null => {
                let complaint =
                    Complaint::new(codes::MISSING, format!("`{}` has no value", self.last_name()));
                return self.complain_at_name(complaint.help(format!("write {wanted}, or remove the key")));
            }
            Content::Text(_) => format!("`{}` must be {wanted}, not a single value", self.last_name()),
            Content::List(_) => format!("`{}` must be {wanted}, not a list", self.last_name()),
            Content::Map(_) => format!("`{}` must be {wanted}, not a mapping", self.last_name()),
        };
        self.complain_at_name(Complaint::new(codes::SHAPE, message));
    }

    fn last_name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or(&self.path)
    }

    /// One or more: the items of a list, or the value itself. Nothing at all counts as an empty list.
    pub fn one_or_more(&self) -> Vec<Value<'a>> {
        match &self.node.content {
            Content::Null | Content::Broken => Vec::new(),
            Content::List(items) => items
                .iter()
                .enumerate()
                .map(|(index, node)| Value {
                    node,
                    path: format!("{}[{index}]", self.path),
                    named_at: node.place,
                    found: self.found,
                })
                .collect(),
            Content::Text(_) | Content::Map(_) => vec![self.clone()],
        }
    }

    /// One or more scalars; wrong ones are noted and left out.
    pub fn read_list<T>(&self, parse: impl Fn(&str) -> Read<T>) -> Vec<T> {
        self.one_or_more().iter().filter_map(|item| item.read(&parse)).collect()
    }

    /// The entries of a mapping whose keys are the user's own. Anything else is noted.
    pub fn entries(&self) -> Vec<(&'a Key, Value<'a>)> {
        let entries = match &self.node.content {
            Content::Map(entries) => entries.as_slice(),
            Content::Null => &[],
            _ => {
                self.complain_of_shape("a mapping");
                &[]
            }
        };
        let named = |(key, node): &'a (Key, Node)| {
            let path =
                if self.path.is_empty() { key.name.clone() } else { format!("{}.{}", self.path, key.name) };
            (key, Value { node, path, named_at: key.place, found: self.found })
        };
        entries.iter().map(named).collect()
    }

    /// Notes that a source was read here: a claim needs a way to verify tokens.
    pub fn mention_source(&self, source: &Source) {
        if let Source::Jwt(_) = source {
            self.found.mention(self.node.place, &self.path, Mentioned::Claim);
        }
    }

    /// The mapping's fields, to be asked for by name.
    pub fn fields(&self) -> Fields<'a> {
        Fields { entries: self.entries(), known: Vec::new(), whole: self.clone() }
    }
}

/// What a problem of this code needed, for values that may not be shown.
fn needed(code: &str) -> &'static str {
    match code {
        codes::NUMBER => "a number that fits here",
        codes::DURATION => "a duration such as 5s",
        codes::SIZE => "a size such as 64KiB",
        codes::PERCENT => "a percentage such as 20%",
        codes::RATE => "a rate such as 10/s",
        codes::ADDRESS => "an address",
        codes::NETWORK => "an address or network",
        codes::HEADER | codes::PROTECTED_HEADER => "a header that fits here",
        codes::HOST => "a host name",
        codes::METHOD => "a request method",
        codes::STATUS => "a status code that fits here",
        codes::PATH => "a path",
        codes::REDIS => "the URL of a Redis or Valkey",
        codes::TLS => "a file that fits here",
        codes::REGEX => "a regular expression",
        _ => "a word that fits here",
    }
}

/// The fields of one mapping. [`Fields::close`] notes those that nobody asked for.
pub(crate) struct Fields<'a> {
    entries: Vec<(&'a Key, Value<'a>)>,
    known: Vec<&'static str>,
    pub whole: Value<'a>,
}

impl<'a> Fields<'a> {
    /// The field called `name`, if it is written.
    pub fn get(&mut self, name: &'static str) -> Option<Value<'a>> {
        self.known.push(name);
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, value)| value.clone())
    }

    /// These fields, but those of `names` that `over` has are taken from there; problems go to `found`.
    pub fn under<'b>(&self, over: &Value<'b>, names: &[&str], found: &'b Findings) -> Fields<'b>
    where
        'a: 'b,
    {
        let mut entries: Vec<_> = over.entries();
        entries.retain(|(key, _)| names.contains(&key.name.as_str()));
        let rest =
            self.entries.iter().filter(|(key, _)| !entries.iter().any(|(own, _)| own.name == key.name));
        let rest: Vec<(&Key, Value<'_>)> = rest.cloned().collect();
        entries.extend(rest);
        entries.iter_mut().for_each(|(_, value)| value.found = found);
        Fields { entries, known: Vec::new(), whole: Value { found, ..self.whole.clone() } }
    }

    /// A scalar field, or `default` if it is absent or wrong.
    pub fn read<T>(&mut self, name: &'static str, default: T, parse: impl FnOnce(&str) -> Read<T>) -> T {
        self.get(name).and_then(|value| value.read(parse)).unwrap_or(default)
    }

    /// A list field; empty if it is absent.
    pub fn read_list<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Read<T>) -> Vec<T> {
        self.get(name).map(|value| value.read_list(parse)).unwrap_or_default()
    }

    /// A field that is a mapping of its own.
    pub fn section(&mut self, name: &'static str) -> Option<Fields<'a>> {
        let value = self.get(name)?;
        match value.node.content {
            Content::Map(_) => Some(value.fields()),
            Content::Null => None,
            _ => {
                value.complain_of_shape("a mapping");
                None
            }
        }
    }

    /// Whether a field looks like a slip of `name`: then one problem, the unknown field, tells enough.
    pub fn mistyped(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _)| key.name != name && did_you_mean(&key.name, [name]).is_some())
    }

    /// Notes that `name` is missing.
    pub fn missing(&self, name: &str, help: &str) {
        if self.mistyped(name) {
            return;
        }
        let message = format!("`{name}` is missing");
        self.whole.complain_at_name(Complaint::new(codes::MISSING, message).help(help));
    }

    /// Notes every field that was never asked for.
    pub fn close(mut self) {
        let mut seen = HashSet::new();
        self.known.retain(|name| seen.insert(*name));
        for (key, value) in &self.entries {
            if self.known.contains(&key.name.as_str()) || value.found.is_full() {
                continue;
            }
            let near = did_you_mean(&key.name, self.known.iter().copied());
            let help = match key.name.as_str() {
                "<<" => Some(
                    "merge keys are not read; an alias such as *name may stand for a whole value".to_owned(),
                ),
                _ => near.or_else(|| Some(format!("the fields here are {}", self.known.join(", ")))),
            };
            let complaint = Complaint::new(codes::UNKNOWN_FIELD, format!("unknown field `{}`", key.name));
            value.complain_at_name(complaint.maybe_help(help));
        }
    }
}

/// `none`, or what `parse` reads.
pub(crate) fn or_none<T>(parse: impl Fn(&str) -> Read<T>) -> impl Fn(&str) -> Read<Option<T>> {
    move |text| match text {
        "none" => Ok(None),
        _ => parse(text).map(Some).map_err(|complaint| complaint.or_help("or write none")),
    }
}

/// One of a few words.
pub(crate) fn word<T: Clone>(words: &[(&str, T)]) -> impl Fn(&str) -> Read<T> {
    move |text| {
        if let Some((_, meaning)) = words.iter().find(|(name, _)| *name == text) {
            return Ok(meaning.clone());
        }
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let help = did_you_mean(text, names.iter().copied())
            .unwrap_or_else(|| format!("write one of {}", names.join(", ")));
        Err(Complaint::new(codes::WORD, format!("`{text}` is not a word that fits here")).help(help))
    }
}
