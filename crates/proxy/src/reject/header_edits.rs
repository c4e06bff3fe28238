//! Edits of header fields, compiled when the configuration is read. Only values with variables are rendered for a
//! request.

use std::collections::HashSet;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;

use super::template::{Escape, FixedValues};
use crate::reject::{CompiledTemplate, RejectContext};
use sluicegate_model::{HeaderEdits, HeaderText};

/// The edits of one or more sections, in the order they apply.
#[derive(Debug, Default)]
pub struct CompiledEdits {
    pub(super) edits: Box<[CompiledEdit]>,
    /// Values must be rendered for each request.
    pub has_variables: bool,
}

#[derive(Debug)]
pub(super) enum CompiledEdit {
    Set(HeaderName, EditValue),
    Add(HeaderName, EditValue),
    Remove(HeaderName),
}

/// A value; each request fills in the variables of a template.
#[derive(Debug)]
pub(super) enum EditValue {
    Fixed(HeaderValue),
    Template(CompiledTemplate),
}

/// The values with variables of one request, in the order of their edits; `None` = empty.
#[derive(Debug, Default)]
pub struct RenderedValues(Vec<Option<HeaderValue>>);

impl CompiledEdits {
    /// Compiles the sections: in each, `set` comes before `add` and `remove`.
    pub fn new<'c>(sections: impl IntoIterator<Item = &'c HeaderEdits>) -> CompiledEdits {
        let mut edits = Vec::new();
        for section in sections {
            let set = section.set.iter().map(|(name, text)| CompiledEdit::Set(name.clone(), text.into()));
            let add = section.add.iter().map(|(name, text)| CompiledEdit::Add(name.clone(), text.into()));
            edits.extend(set.chain(add).chain(section.remove.iter().cloned().map(CompiledEdit::Remove)));
        }
        CompiledEdits::of_edits(edits)
    }

    /// Compiles the headers of `on_reject`; names and fixed values are interned, which makes their copies cheap.
    pub(super) fn of_rejections(headers: &[(HeaderName, HeaderText)]) -> CompiledEdits {
        let edit = |(name, text): &(HeaderName, HeaderText)| {
            let value = match text {
                HeaderText::Fixed(value) => EditValue::Fixed(intern_value(value)),
                HeaderText::Template(_) => text.into(),
            };
            CompiledEdit::Set(HeaderName::from_static(intern_text(name.as_str())), value)
        };
        CompiledEdits::of_edits(headers.iter().map(edit).collect())
    }

    fn of_edits(edits: Vec<CompiledEdit>) -> CompiledEdits {
        let has_variables = edits.iter().any(|edit| edit.template().is_some());
        CompiledEdits { edits: edits.into(), has_variables }
    }

    /// True if the edits change nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// True if a value contains the target or the host of the request.
    pub fn uses_target(&self) -> bool {
        self.has_variables && self.templates().any(CompiledTemplate::uses_target)
    }

    /// Renders the values with variables for one request.
    pub fn render_values(&self, context: &RejectContext<'_>) -> RenderedValues {
        RenderedValues(self.templates().map(|template| template.render_header_value(context)).collect())
    }

    /// Applies the edits, with the `values` that [`CompiledEdits::render_values`] returned. An empty value is not
    /// sent, but replaces the value before.
    pub fn apply(&self, headers: &mut HeaderMap, values: &RenderedValues) {
        let mut rendered = values.0.iter();
        let mut value_of = |value: &EditValue| match value {
            EditValue::Fixed(value) => Some(value.clone()),
            EditValue::Template(_) => rendered.next().cloned().flatten(),
        };
        for edit in &self.edits {
            match edit {
                CompiledEdit::Set(name, value) => match value_of(value) {
                    Some(value) => drop(headers.insert(name.clone(), value)),
                    None => drop(headers.remove(name)),
                },
                CompiledEdit::Add(name, value) => {
                    if let Some(value) = value_of(value) {
                        headers.append(name.clone(), value);
                    }
                }
                CompiledEdit::Remove(name) => drop(headers.remove(name)),
            }
        }
    }

    fn templates(&self) -> impl Iterator<Item = &CompiledTemplate> {
        self.edits.iter().filter_map(CompiledEdit::template)
    }
}

impl CompiledEdit {
    fn template(&self) -> Option<&CompiledTemplate> {
        match self {
            CompiledEdit::Set(_, EditValue::Template(template))
            | CompiledEdit::Add(_, EditValue::Template(template)) => Some(template),
            _ => None,
        }
    }
}

impl From<&HeaderText> for EditValue {
    fn from(text: &HeaderText) -> EditValue {
        match text {
            HeaderText::Fixed(value) => EditValue::Fixed(value.clone()),
            HeaderText::Template(template) => {
                let fixed = FixedValues::default();
                EditValue::Template(CompiledTemplate::compile_with(template, Escape::Header, &fixed))
            }
        }
    }
}

/// Every interned text. It grows only with distinct configurations, which have a bounded number of texts each.
static INTERNED: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);

/// `value`, interned; a value that is not plain ASCII is only cloned.
pub(super) fn intern_value(value: &HeaderValue) -> HeaderValue {
    value.to_str().map_or_else(|_| value.clone(), |text| HeaderValue::from_static(intern_text(text)))
}

fn intern_text(text: &str) -> &'static str {
    let mut known = INTERNED.lock();
    if let Some(kept) = known.get(text) {
        return kept;
    }
    let kept: &'static str = Box::leak(text.into());
    known.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_config as config;

    const EDITS: &str = r#"
server: { headers: { set: { X-Set: server, X-Kept: "1" }, add: { Vary: A } } }
locations:
  - path: /
    upstream: demo
    response_headers:
      set: { X-Set: "<${account}>", X-Account: "${account}" }
      add: { Vary: "${host}, B", X-Path: "${path}${request_uri}" }
      remove: [X-Kept]
"#;

    #[test]
    fn equal_texts_are_kept_once() {
        let one = intern_text("equal-texts-are-kept-once");
        assert!(std::ptr::eq(one, intern_text("equal-texts-are-kept-once")));
    }

    fn edited(context: &RejectContext<'_>) -> Vec<String> {
        let config = config::parse(EDITS, "x.yaml").unwrap_or_else(|report| panic!("{report}")).config;
        let edits = CompiledEdits::new([&config.server.headers, &config.locations[0].response_headers]);
        assert!(edits.has_variables && edits.uses_target());
        let mut headers = HeaderMap::new();
        headers.insert("x-account", HeaderValue::from_static("forged"));
        edits.apply(&mut headers, &edits.render_values(context));
        let line =
            |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    #[test]
    fn edits_apply_in_order_and_empty_values_are_not_sent() {
        let context = RejectContext { account: "acme", host: "a.test", ..RejectContext::default() };
        let context = RejectContext { path: b"/a b", request_uri: "/a%20b?c=%41", ..context };
        assert_eq!(
            edited(&context),
            ["vary: A", "vary: a.test, B", "x-account: acme", "x-path: /a%20b/a%20b?c=%41", "x-set: <acme>",]
        );
        assert_eq!(edited(&RejectContext::default()), ["vary: , B", "vary: A", "x-set: <>"]);
    }

    #[test]
    fn a_value_of_a_client_stays_inside_its_line() {
        let account = "a\r\nX-Evil: 1\0\u{fc}\u{7f}\t%0d ";
        let context = RejectContext { account, path: b"/\r\n\xff%0a?#", ..RejectContext::default() };
        let context = RejectContext { request_uri: "/\u{fc}%0d%0a\r\n\0", host: "h", ..context };
        assert_eq!(
            edited(&context),
            [
                "vary: A",
                "vary: h, B",
                "x-account: a%0D%0AX-Evil:%201%00%C3%BC%7F%09%250d%20",
                "x-path: /%0D%0A%FF%250a%3F%23/%C3%BC%0d%0a%0D%0A%00",
                "x-set: <a%0D%0AX-Evil:%201%00%C3%BC%7F%09%250d%20>",
            ]
        );
    }

    #[test]
    fn a_long_value_is_cut() {
        let account = "\u{fc}".repeat(20_000);
        let lines = edited(&RejectContext { account: &account, ..RejectContext::default() });
        let longest = lines.iter().map(String::len).max().unwrap();
        assert_eq!(longest, "x-account: ".len() + 8 * 1024);
    }
}
