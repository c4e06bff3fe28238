//! Reads mappings field by field. Every problem is reported with its position, and reading goes on.

use std::collections::HashSet;

use super::tree::{MapKey, Node, NodeContent};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Mention, Position, ProblemSink, ValueError, did_you_mean};
use crate::config::model::limit::ValueSource;
use crate::config::value::scalars::Parsed;

/// A value of the file: its node, its path, and the sink of its problems.
#[derive(Clone)]
pub(crate) struct FieldValue<'a> {
    pub node: &'a Node,
    /// E.g. `limits.per-ip.rate`.
    pub path: String,
    /// The position of its key, or its own in a list; errors such as "missing" point here.
    pub named_at: Position,
    pub sink: &'a ProblemSink,
}

impl<'a> FieldValue<'a> {
    pub fn report_at_value(&self, error: ValueError) {
        self.sink.add_problem(self.node.position, &self.path, error);
    }

    pub fn report_at_name(&self, error: ValueError) {
        self.sink.add_problem(self.named_at, &self.path, error);
    }

    pub fn is_null(&self) -> bool {
        matches!(self.node.content, NodeContent::Null)
    }

    /// Whether the value is null or an empty list.
    pub fn is_empty(&self) -> bool {
        match &self.node.content {
            NodeContent::Null => true,
            NodeContent::List(items) => items.is_empty(),
            _ => false,
        }
    }

    /// Reports that at least one value is needed here.
    pub fn report_empty(&self, help: &str) {
        let message = format!("`{}` is empty", self.field_name());
        self.report_at_name(ValueError::new(codes::MISSING, message).with_help(help));
    }

    /// The text of a scalar; `None` for anything else, without an error.
    pub fn as_text(&self) -> Option<&'a str> {
        match &self.node.content {
            NodeContent::Text(text) => text.as_plain(),
            _ => None,
        }
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.as_text() == Some(word)
    }

    /// The text as written, for messages: the replaced text may be a secret.
    pub fn written_text(&self) -> &'a str {
        match &self.node.content {
            NodeContent::Text(text) => &text.written,
            _ => "",
        }
    }

    /// A scalar parsed by `parse`; `None` after an error.
    pub fn parse_with<T>(&self, parse: impl FnOnce(&str) -> Parsed<T>) -> Option<T> {
        let NodeContent::Text(text) = &self.node.content else {
            self.report_shape("one value");
            return None;
        };
        let Some(plain) = text.as_plain() else {
            self.report_at_value(
                ValueError::new(codes::TEMPLATE, "template variables are not allowed here").with_help(
                    "they belong to request_headers, response_headers and server.headers, to the bodies of on_reject \
                     and respond, and to redirect; write ${NAME} in capitals for the environment, $${ for a literal ${",
                ),
            );
            return None;
        };
        match parse(plain) {
            Ok(value) => Some(value),
            Err(error) if text.replaced => {
                let message = format!("`{}` does not hold {}", text.written, describe_expected(error.code));
                self.report_at_value(ValueError::new(error.code, message));
                None
            }
            Err(error) => {
                self.report_at_value(error);
                None
            }
        }
    }

    /// Reports that the value has the wrong shape; `wanted` is e.g. "a list".
    pub fn report_shape(&self, wanted: &str) {
        let message = match self.node.content {
            NodeContent::Invalid => return,
            NodeContent::Null => {
                let error = ValueError::new(codes::MISSING, format!("`{}` has no value", self.field_name()));
                return self.report_at_name(error.with_help(format!("write {wanted}, or remove the key")));
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

    /// The items of a list, or the value itself as the only item. Null counts as an empty list.
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

    /// One or more scalars; wrong ones are reported and skipped.
    pub fn parse_list<T>(&self, parse: impl Fn(&str) -> Parsed<T>) -> Vec<T> {
        self.one_or_more().iter().filter_map(|item| item.parse_with(&parse)).collect()
    }

    /// The entries of a mapping with arbitrary keys. Any other shape is reported.
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

    /// Records a source that was read here: a claim needs a way to verify tokens.
    pub fn mention_source(&self, source: &ValueSource) {
        if let ValueSource::Jwt(_) = source {
            self.sink.record_mention(self.node.position, &self.path, Mention::Claim);
        }
    }

    /// A reader of the mapping's fields by name.
    pub fn field_reader(&self) -> FieldReader<'a> {
        FieldReader { entries: self.entries(), known: Vec::new(), whole: self.clone() }
    }
}

/// The expected value for an error code, for messages that must not quote the value.
fn describe_expected(code: &str) -> &'static str {
    match code {
        codes::NUMBER => "a number in range",
        codes::DURATION => "a duration such as 5s",
        codes::SIZE => "a size such as 64KiB",
        codes::PERCENT => "a percentage such as 20%",
        codes::RATE => "a rate such as 10/s",
        codes::ADDRESS => "an address",
        codes::NETWORK => "an address or network",
        codes::HEADER | codes::PROTECTED_HEADER => "a valid header",
        codes::HOST => "a host name",
        codes::METHOD => "a request method",
        codes::STATUS => "a valid status code",
        codes::PATH => "a path",
        codes::REDIS => "the URL of a Redis or Valkey",
        codes::TLS => "a usable file",
        codes::REGEX => "a regular expression",
        _ => "a valid word",
    }
}

/// The fields of one mapping. [`FieldReader::report_unknown`] reports those that were not read.
pub(crate) struct FieldReader<'a> {
    entries: Vec<(&'a MapKey, FieldValue<'a>)>,
    known: Vec<&'static str>,
    pub whole: FieldValue<'a>,
}

impl<'a> FieldReader<'a> {
    /// The field `name`, if it is written.
    pub fn get_field(&mut self, name: &'static str) -> Option<FieldValue<'a>> {
        self.known.push(name);
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, value)| value.clone())
    }

    /// These fields, with those of `names` that `over` has taken from there; problems go to `sink`.
    pub fn overlay_fields<'b>(
        &self,
        over: &FieldValue<'b>,
        names: &[&str],
        sink: &'b ProblemSink,
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
        entries.iter_mut().for_each(|(_, value)| value.sink = sink);
        FieldReader { entries, known: Vec::new(), whole: FieldValue { sink, ..self.whole.clone() } }
    }

    /// A scalar field; `default` if it is absent or wrong.
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

    /// A field that is a mapping itself.
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

    /// Whether a field looks like a typo of `name`. The error about the unknown field is then enough.
    pub fn has_typo_of(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _)| key.name != name && did_you_mean(&key.name, [name]).is_some())
    }

    /// Reports that `name` is missing.
    pub fn report_missing(&self, name: &str, help: &str) {
        if self.has_typo_of(name) {
            return;
        }
        let message = format!("`{name}` is missing");
        self.whole.report_at_name(ValueError::new(codes::MISSING, message).with_help(help));
    }

    /// Reports every field that was not read.
    pub fn report_unknown(mut self) {
        let is_known = |(key, _): &(&MapKey, FieldValue<'_>)| self.known.contains(&key.name.as_str());
        if self.entries.iter().all(is_known) {
            return;
        }
        let mut seen = HashSet::new();
        self.known.retain(|name| seen.insert(*name));
        for (key, value) in &self.entries {
            if self.known.contains(&key.name.as_str()) || value.sink.is_full() {
                continue;
            }
            let near = did_you_mean(&key.name, self.known.iter().copied());
            let help = match key.name.as_str() {
                "<<" => Some(
                    "merge keys are not supported; an alias such as *name can replace a whole value"
                        .to_owned(),
                ),
                _ => near.or_else(|| Some(format!("the fields here are {}", self.known.join(", ")))),
            };
            let error = ValueError::new(codes::UNKNOWN_FIELD, format!("unknown field `{}`", key.name));
            value.report_at_name(error.with_optional_help(help));
        }
    }
}

/// `none`, or a value of `parse`.
pub(crate) fn parse_or_none<T>(parse: impl Fn(&str) -> Parsed<T>) -> impl Fn(&str) -> Parsed<Option<T>> {
    move |text| match text {
        "none" => Ok(None),
        _ => parse(text).map(Some).map_err(|error| error.with_default_help("or write none")),
    }
}

/// One of `words`.
pub(crate) fn parse_word<T: Clone>(words: &[(&str, T)]) -> impl Fn(&str) -> Parsed<T> {
    move |text| {
        if let Some((_, meaning)) = words.iter().find(|(name, _)| *name == text) {
            return Ok(meaning.clone());
        }
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let help = did_you_mean(text, names.iter().copied())
            .unwrap_or_else(|| format!("write one of {}", names.join(", ")));
        Err(ValueError::new(codes::WORD, format!("`{text}` is not a valid word here")).with_help(help))
    }
}
