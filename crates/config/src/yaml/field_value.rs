//! A value of the file with its position. Every problem is reported, and reading goes on.

use std::path::PathBuf;
use std::sync::Arc;

use super::hints::{field_name, suggest_example, suggest_form, suggest_template, suggest_value};
use super::tree::{MapKey, Node, NodeContent, ScalarText};
use sluicegate_model::diagnostics::redact::may_hold_secret;
use sluicegate_model::{Mention, Parsed, Position, ProblemSink, ValueError, codes};

/// A value of the file: its node, its path, and the sink of its problems.
#[derive(Clone)]
pub struct FieldValue<'a> {
    /// The value itself in the tree.
    pub node: &'a Node,
    /// E.g. `limits.per-ip.rate`.
    pub path: String,
    /// The position of its key, or its own in a list; errors such as "missing" point here.
    pub named_at: Position,
    /// The collector of the problems of the file.
    pub sink: &'a ProblemSink,
}

impl<'a> FieldValue<'a> {
    /// Reports an error at the position of the value.
    pub fn report_at_value(&self, error: ValueError) {
        self.sink.add_problem(self.node.position, &self.path, error);
    }

    /// The folder at which relative paths in the file of this value start.
    pub fn folder(&self) -> PathBuf {
        self.sink.source_at(self.named_at).map(|source| source.folder.clone()).unwrap_or_default()
    }

    /// The team that owns the file of this value.
    pub fn owner(&self) -> Option<Arc<str>> {
        self.sink.source_at(self.named_at)?.owner.get().cloned()
    }

    /// Reports an error at the key of the value, or in a list at the value itself.
    pub fn report_at_name(&self, error: ValueError) {
        self.sink.add_problem(self.named_at, &self.path, error);
    }

    /// The result of reading a name; `None` after an error in it.
    pub fn accept_name<T>(&self, parsed: Parsed<T>) -> Option<T> {
        parsed.map_err(|error| self.report_at_name(error)).ok()
    }

    /// Reports that the value is wrong.
    pub fn refuse(&self, code: &'static str, message: impl Into<String>, help: impl Into<String>) {
        self.report_at_value(ValueError::new(code, message).with_help(help));
    }

    /// Reports that the field is wrong, or missing inside it.
    pub fn refuse_name(&self, code: &'static str, message: impl Into<String>, help: impl Into<String>) {
        self.report_at_name(ValueError::new(code, message).with_help(help));
    }

    /// Warns at a scalar value, or else at its key.
    pub fn warn(&self, code: &'static str, message: impl Into<String>, help: impl Into<String>) {
        self.warn_at(ValueError::new(code, message).with_help(help));
    }

    pub(crate) fn warn_at(&self, error: ValueError) {
        match self.node.content {
            NodeContent::Text(_) => self.sink.add_warning(self.node.position, &self.path, error),
            _ => self.warn_at_name(error),
        }
    }

    pub(crate) fn warn_at_name(&self, error: ValueError) {
        self.sink.add_warning(self.named_at, &self.path, error);
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.node.content, NodeContent::Null)
    }

    /// True if the value is null or an empty list.
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

    /// Reports a value that is null or an empty list.
    pub fn check_filled(&self, help: &str) {
        if self.is_empty() {
            self.report_empty(help);
        }
    }

    /// The text of a scalar; `None` for anything else, without an error.
    pub fn as_text(&self) -> Option<&'a str> {
        self.node.text()?.as_plain()
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.as_text() == Some(word)
    }

    /// The text as written, for messages: the replaced text may be a secret.
    pub fn written_text(&self) -> &'a str {
        self.node.text().map_or("", |text| &text.written)
    }

    /// A scalar parsed by `parse`; `None` after an error.
    pub fn parse_with<T>(&self, parse: impl FnOnce(&str) -> Parsed<T>) -> Option<T> {
        let NodeContent::Text(text) = &self.node.content else {
            self.report_shape("one value");
            return None;
        };
        let Some(plain) = text.as_plain() else {
            let error = ValueError::new(codes::TEMPLATE, "template variables are not allowed here");
            let help = suggest_template(&self.path, &text.written);
            self.report_at_value(error.with_optional_help(help).with_default_help(
                "they belong to request_headers, response_headers and server.headers, to headers and bodies of \
                 on_reject, to the body of respond, and to redirect; write ${NAME} in capitals for the \
                 environment, $${ for a literal ${",
            ));
            return None;
        };
        match parse(plain) {
            Ok(value) => Some(value),
            Err(error) if text.replaced => {
                let message = format!("`{}` does not hold {}", text.written, describe_expected(error.code));
                // Messages about a Redis never quote the value, and the name of a file is no secret.
                let shown = error.code == codes::REDIS
                    || error.code == codes::UNREADABLE
                        && is_file_name(plain)
                        && !may_hold_secret(field_name(&self.path));
                let message = if shown { format!("{message}: {}", error.message) } else { message };
                let help = error.suggestion.filter(|_| shown).or_else(|| suggest_example(&self.path));
                self.report_at_value(ValueError::new(error.code, message).with_optional_help(help));
                None
            }
            Err(error) => {
                let help = suggest_value(&self.path, field_name(&self.path), plain);
                let error = if help.is_some() { error.with_optional_help(help) } else { error };
                let position = self.locate_part(&error, plain);
                self.sink.add_problem(position, &self.path, error);
                None
            }
        }
    }

    /// The position of the part that an error is about; that of the whole value if it names none.
    fn locate_part(&self, error: &ValueError, text: &str) -> Position {
        let whole = self.node.position;
        let quotes = match whole.width.checked_sub(text.chars().count()) {
            Some(quotes @ (0 | 2)) => quotes / 2,
            _ => return whole,
        };
        match error.part {
            Some((start, width)) => {
                Position { column: whole.column + quotes + start, width: width.max(1), ..whole }
            }
            None => whole,
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
        let help = suggest_form(&self.path, &self.node.content);
        self.report_at_name(ValueError::new(codes::SHAPE, message).with_optional_help(help));
    }

    fn field_name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or(&self.path)
    }

    /// The items of a list, or the value itself as the only item. Null counts as an empty list.
    pub fn one_or_more(&self) -> Vec<FieldValue<'a>> {
        match &self.node.content {
            NodeContent::Null | NodeContent::Invalid => Vec::new(),
            NodeContent::List(items) => {
                items.iter().enumerate().map(|(index, node)| self.item(index, node)).collect()
            }
            NodeContent::Text(_) | NodeContent::Map(_) => vec![self.clone()],
        }
    }

    /// One or more scalars; wrong ones are reported and skipped.
    pub fn parse_list<T>(&self, parse: impl Fn(&str) -> Parsed<T>) -> Vec<T> {
        self.one_or_more().iter().filter_map(|item| item.parse_with(&parse)).collect()
    }

    /// The entries of a mapping with arbitrary keys. Any other shape is reported.
    pub fn entries(&self) -> Vec<(&'a MapKey, FieldValue<'a>)> {
        if !self.is_map() && !self.is_null() {
            self.report_shape("a mapping");
        }
        self.node.entries().iter().map(|(key, node)| (key, self.field(key, node))).collect()
    }

    /// Calls `visit` with each scalar of the file, without variables of the environment, that this value is or holds.
    pub(crate) fn visit_written(&self, visit: &mut impl FnMut(&FieldValue<'a>, &'a ScalarText)) {
        match &self.node.content {
            NodeContent::Text(text) if !text.replaced => visit(self, text),
            NodeContent::List(_) => self.one_or_more().iter().for_each(|item| item.visit_written(visit)),
            NodeContent::Map(_) => self.entries().iter().for_each(|(_, inner)| inner.visit_written(visit)),
            NodeContent::Text(_) | NodeContent::Null | NodeContent::Invalid => {}
        }
    }

    /// The value of a field of this mapping.
    pub fn field(&self, key: &MapKey, node: &'a Node) -> FieldValue<'a> {
        let path = match self.path.as_str() {
            "" => key.name.clone(),
            path => format!("{path}.{}", key.name),
        };
        FieldValue { node, path, named_at: key.position, sink: self.sink }
    }

    /// An item of this list.
    pub fn item(&self, index: usize, node: &'a Node) -> FieldValue<'a> {
        FieldValue { node, path: format!("{}[{index}]", self.path), named_at: node.position, sink: self.sink }
    }

    /// Records what was read here, for a check once the whole file is known.
    pub fn mention(&self, mention: Mention) {
        self.sink.record_mention(self.node.position, &self.path, mention);
    }

    /// True for a mapping, also an empty one.
    pub fn is_map(&self) -> bool {
        matches!(self.node.content, NodeContent::Map(_))
    }
}

/// True if a text is certainly the name of a file and not its content: short, with an extension, or an absolute path
/// without the capitals of encoded bytes.
fn is_file_name(text: &str) -> bool {
    let extension = text.rsplit_once('.').map_or("", |(_, extension)| extension);
    let has_extension =
        (1..=5).contains(&extension.len()) && extension.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_of_path = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"/._-".contains(&byte);
    let is_absolute = text.starts_with('/') && text.bytes().all(is_of_path);
    text.len() <= 200 && !text.contains(char::is_whitespace) && (has_extension || is_absolute)
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
        codes::TLS | codes::UNREADABLE => "a usable file",
        codes::REGEX => "a regular expression",
        _ => "a valid word",
    }
}
