//! Reading one mapping field by field: every problem is noted with its place, and reading goes on.

use std::collections::HashSet;

use super::tree::{MapKey, Node, NodeContent};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Mention, Position, ProblemSink, ValueError, did_you_mean};
use crate::config::model::limit::ValueSource;
use crate::config::value::scalars::Parsed;

/// A value of the file: its node, the words that name it, and where its problems go.
#[derive(Clone)]
pub(crate) struct FieldValue<'a> {
    pub node: &'a Node,
    /// E.g. `limits.per-ip.rate`.
    pub path: String,
    /// The key that names it, or its own place in a list: where "missing" and "not supported yet" point.
    pub named_at: Position,
    pub sink: &'a ProblemSink,
}

impl<'a> FieldValue<'a> {
    pub fn report_at_value(&self, complaint: ValueError) {
        self.sink.add_problem(self.node.position, &self.path, complaint);
    }

    pub fn report_at_name(&self, complaint: ValueError) {
        self.sink.add_problem(self.named_at, &self.path, complaint);
    }

    pub fn is_null(&self) -> bool {
        matches!(self.node.content, NodeContent::Null)
    }

    /// Nothing, or a list with nothing in it.
    pub fn is_empty(&self) -> bool {
        match &self.node.content {
            NodeContent::Null => true,
            NodeContent::List(items) => items.is_empty(),
            _ => false,
        }
    }

    /// Notes that at least one value is needed here.
    pub fn report_empty(&self, help: &str) {
        let message = format!("`{}` names nothing", self.field_name());
        self.report_at_name(ValueError::new(codes::MISSING, message).with_help(help));
    }

    /// The text of a scalar; `None` for anything else, without complaint.
    pub fn as_text(&self) -> Option<&'a str> {
        match &self.node.content {
            NodeContent::Text(text) => text.as_plain(),
            _ => None,
        }
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.as_text() == Some(word)
    }

    /// The text as it stands in the file, for messages: replaced text may be a secret.
    pub fn written_text(&self) -> &'a str {
        match &self.node.content {
            NodeContent::Text(text) => &text.written,
            _ => "",
        }
    }

    /// A scalar read by `parse`; `None` after a complaint.
    pub fn parse_with<T>(&self, parse: impl FnOnce(&str) -> Parsed<T>) -> Option<T> {
        let NodeContent::Text(text) = &self.node.content else {
            self.report_shape("one value");
            return None;
        };
        let Some(plain) = text.as_plain() else {
            self.report_at_value(
                ValueError::new(codes::TEMPLATE, "template variables have no meaning here").with_help(
                    "they belong to the bodies of on_reject and respond, and to redirect; \
                 write ${NAME} in capitals for the environment, $${ for a literal ${",
                ),
            );
            return None;
        };
        match parse(plain) {
            Ok(value) => Some(value),
            Err(complaint) if text.replaced => {
                let message =
                    format!("`{}` does not hold {}", text.written, describe_expected(complaint.code));
                self.report_at_value(ValueError::new(complaint.code, message));
                None
            }
            Err(complaint) => {
                self.report_at_value(complaint);
                None
            }
        }
    }

    /// Notes that the value has the wrong shape; `wanted` is e.g. "a list".
    pub fn report_shape(&self, wanted: &str) {
        let message = match self.node.content {
            NodeContent::Invalid => return,
            NodeContent::Null => {
                let complaint =
                    ValueError::new(codes::MISSING, format!("`{}` has no value", self.field_name()));
                return self
                    .report_at_name(complaint.with_help(format!("write {wanted}, or remove the key")));
            }
            NodeContent::Text(_) => format!("`{}` must be {wanted}, not a single value", self.field_name()),
            NodeContent::List(_) => format!("`{}` must be {wanted}, not a list", self.field_name()),
            NodeContent::Map(_) => format!("`{}` must be {wanted}, not a mapping", self.field_name()),
        };
        self.report_at_name(ValueError::new(codes::SHAPE, message));
    }

    fn field_name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or(&self.path)
    }

    /// One or more: the items of a list, or the value itself. Nothing at all counts as an empty list.
    pub fn one_or_more(&self) -> Vec<FieldValue<'a>> {
        match &self.node.content {
            NodeContent::Null | NodeContent::Invalid => Vec::new(),
            NodeContent::List(items) => items
                .iter()
                .enumerate()
                .map(|(index, node)| FieldValue {
                    node,
                    path: format!("{}[{index}]", self.path),
                    named_at: node.position,
                    sink: self.sink,
                })
                .collect(),
            NodeContent::Text(_) | NodeContent::Map(_) => vec![self.clone()],
        }
    }

    /// One or more scalars; wrong ones are noted and left out.
    pub fn parse_list<T>(&self, parse: impl Fn(&str) -> Parsed<T>) -> Vec<T> {
        self.one_or_more().iter().filter_map(|item| item.parse_with(&parse)).collect()
    }

    /// The entries of a mapping whose keys are the user's own. Anything else is noted.
    pub fn entries(&self) -> Vec<(&'a MapKey, FieldValue<'a>)> {
        let entries = match &self.node.content {
            NodeContent::Map(entries) => entries.as_slice(),
            NodeContent::Null => &[],
            _ => {
                self.report_shape("a mapping");
                &[]
            }
        };
        let named = |(key, node): &'a (MapKey, Node)| {
            let path =
                if self.path.is_empty() { key.name.clone() } else { format!("{}.{}", self.path, key.name) };
            (key, FieldValue { node, path, named_at: key.position, sink: self.sink })
        };
        entries.iter().map(named).collect()
    }

    /// Notes that a source was read here: a claim needs a way to verify tokens.
    pub fn mention_source(&self, source: &ValueSource) {
        if let ValueSource::Jwt(_) = source {
            self.sink.record_mention(self.node.position, &self.path, Mention::Claim);
        }
    }

    /// The mapping's fields, to be asked for by name.
    pub fn field_reader(&self) -> FieldReader<'a> {
        FieldReader { entries: self.entries(), known: Vec::new(), whole: self.clone() }
    }
}

/// What a problem of this code needed, for values that may not be shown.
fn describe_expected(code: &str) -> &'static str {
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
pub(crate) struct FieldReader<'a> {
    entries: Vec<(&'a MapKey, FieldValue<'a>)>,
    known: Vec<&'static str>,
    pub whole: FieldValue<'a>,
}

impl<'a> FieldReader<'a> {
    /// The field called `name`, if it is written.
    pub fn get_field(&mut self, name: &'static str) -> Option<FieldValue<'a>> {
        self.known.push(name);
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, value)| value.clone())
    }

    /// These fields, but those of `names` that `over` has are taken from there; problems go to `found`.
    pub fn overlay_fields<'b>(
        &self,
        over: &FieldValue<'b>,
        names: &[&str],
        found: &'b ProblemSink,
    ) -> FieldReader<'b>
    where
        'a: 'b,
    {
        let mut entries: Vec<_> = over.entries();
        entries.retain(|(key, _)| names.contains(&key.name.as_str()));
        let rest =
            self.entries.iter().filter(|(key, _)| !entries.iter().any(|(own, _)| own.name == key.name));
        let rest: Vec<(&MapKey, FieldValue<'_>)> = rest.cloned().collect();
        entries.extend(rest);
        entries.iter_mut().for_each(|(_, value)| value.sink = found);
        FieldReader { entries, known: Vec::new(), whole: FieldValue { sink: found, ..self.whole.clone() } }
    }

    /// A scalar field, or `default` if it is absent or wrong.
    pub fn read_scalar<T>(
        &mut self,
        name: &'static str,
        default: T,
        parse: impl FnOnce(&str) -> Parsed<T>,
    ) -> T {
        self.get_field(name).and_then(|value| value.parse_with(parse)).unwrap_or(default)
    }

    /// A list field; empty if it is absent.
    pub fn read_list<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Parsed<T>) -> Vec<T> {
        self.get_field(name).map(|value| value.parse_list(parse)).unwrap_or_default()
    }

    /// A field that is a mapping of its own.
    pub fn open_section(&mut self, name: &'static str) -> Option<FieldReader<'a>> {
        let value = self.get_field(name)?;
        match value.node.content {
            NodeContent::Map(_) => Some(value.field_reader()),
            NodeContent::Null => None,
            _ => {
                value.report_shape("a mapping");
                None
            }
        }
    }

    /// Whether a field looks like a slip of `name`: then one problem, the unknown field, tells enough.
    pub fn has_typo_of(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _)| key.name != name && did_you_mean(&key.name, [name]).is_some())
    }

    /// Notes that `name` is missing.
    pub fn report_missing(&self, name: &str, help: &str) {
        if self.has_typo_of(name) {
            return;
        }
        let message = format!("`{name}` is missing");
        self.whole.report_at_name(ValueError::new(codes::MISSING, message).with_help(help));
    }

    /// Notes every field that was never asked for.
    pub fn report_unknown(mut self) {
        let mut seen = HashSet::new();
        self.known.retain(|name| seen.insert(*name));
        for (key, value) in &self.entries {
            if self.known.contains(&key.name.as_str()) || value.sink.is_full() {
                continue;
            }
            let near = did_you_mean(&key.name, self.known.iter().copied());
            let help = match key.name.as_str() {
                "<<" => Some(
                    "merge keys are not read; an alias such as *name may stand for a whole value".to_owned(),
                ),
                _ => near.or_else(|| Some(format!("the fields here are {}", self.known.join(", ")))),
            };
            let complaint = ValueError::new(codes::UNKNOWN_FIELD, format!("unknown field `{}`", key.name));
            value.report_at_name(complaint.with_optional_help(help));
        }
    }
}

/// `none`, or what `parse` reads.
pub(crate) fn parse_or_none<T>(parse: impl Fn(&str) -> Parsed<T>) -> impl Fn(&str) -> Parsed<Option<T>> {
    move |text| match text {
        "none" => Ok(None),
        _ => parse(text).map(Some).map_err(|complaint| complaint.with_default_help("or write none")),
    }
}

/// One of a few words.
pub(crate) fn parse_word<T: Clone>(words: &[(&str, T)]) -> impl Fn(&str) -> Parsed<T> {
    move |text| {
        if let Some((_, meaning)) = words.iter().find(|(name, _)| *name == text) {
            return Ok(meaning.clone());
        }
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let help = did_you_mean(text, names.iter().copied())
            .unwrap_or_else(|| format!("write one of {}", names.join(", ")));
        Err(ValueError::new(codes::WORD, format!("`{text}` is not a word that fits here")).with_help(help))
    }
}
