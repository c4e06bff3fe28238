//! Reads the fields of one mapping by the tables of [`crate::schema`].

use std::cell::RefCell;

use super::field_value::FieldValue;
use super::foreign_fields::{ForeignField, PERIODS};
use super::foreign_words::find_field_synonym;
use super::hints::find_misplaced;
use super::shown_text::{show_field, show_text};
use super::tree::{MapKey, Node};
use crate::schema::field::{Field, FieldSource, OneOrMore, ParseScalar, PlainValue, Section};
use crate::schema::kinds::{Nested, NestedOrNone, OneOrMoreOrWord};
use crate::schema::tables::root::root;
use crate::schema::{sections_with, show_nested};
use sluicegate_model::{Parsed, Position, ProblemSink, ValueError, codes, did_you_mean, find_nearest};

/// The fields of one mapping. [`FieldReader::report_unknown`] reports those that the section does not have.
pub struct FieldReader<'a> {
    entries: Vec<(&'a MapKey, FieldValue<'a>)>,
    section: &'static Section,
    /// The mapping itself; for a mapping that is not written, the one around it.
    pub whole: FieldValue<'a>,
    /// Missing fields that an unknown one seems to be meant as.
    missing: RefCell<Vec<&'static str>>,
}

impl FieldSource for FieldReader<'_> {
    fn read_scalar<S: ParseScalar>(&self, field: &Field<S>) -> S::Parsed {
        self.read_written(field).unwrap_or_else(|| field.parse_default())
    }

    fn read_list<S: ParseScalar>(&self, field: &Field<OneOrMore<S>>) -> Vec<S::Parsed> {
        match self.find(field) {
            Some(value) => value.parse_list(|text| field.value.0.parse_text(text)),
            None => field.parse_default_list(),
        }
    }
}

impl<'a> FieldValue<'a> {
    /// The fields of a mapping that is a `section`. Any other shape but null is reported, and has no fields.
    pub fn open_section(&self, section: &'static Section) -> FieldReader<'a> {
        FieldReader { entries: self.entries(), ..self.absent_section(section) }
    }

    /// [`FieldValue::open_section`] for a value that must be a mapping; `form` is e.g. "a mapping such as { a: 1 }".
    pub fn open_map(&self, section: &'static Section, form: &str) -> Option<FieldReader<'a>> {
        if !self.is_map() {
            self.report_shape(form);
            return None;
        }
        Some(self.open_section(section))
    }

    /// The fields of a `section` that is not written here: each has its default.
    pub fn absent_section(&self, section: &'static Section) -> FieldReader<'a> {
        FieldReader { entries: Vec::new(), section, whole: self.clone(), missing: RefCell::default() }
    }
}

impl<'a> FieldReader<'a> {
    /// The value of `field`, if it is written.
    pub fn find<S>(&self, field: &Field<S>) -> Option<FieldValue<'a>> {
        self.find_by_name(field.name)
    }

    pub(crate) fn find_by_name(&self, name: &str) -> Option<FieldValue<'a>> {
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, value)| value.clone())
    }

    /// A value without rules of its own; the default if it is absent, or a wrong scalar.
    pub fn read<S: PlainValue>(&self, field: &Field<S>) -> S::Value {
        S::read_from(field, self)
    }

    /// A scalar or its default; `None` if it is wrong.
    pub fn read_valid<S: ParseScalar>(&self, field: &Field<S>) -> Option<S::Parsed> {
        match self.find(field) {
            Some(value) => value.parse_with(|text| field.value.parse_text(text)),
            None => Some(field.parse_default()),
        }
    }

    /// A scalar; `None` if it is absent or wrong.
    pub fn read_written<S: ParseScalar>(&self, field: &Field<S>) -> Option<S::Parsed> {
        self.find(field)?.parse_with(|text| field.value.parse_text(text))
    }

    /// A scalar that `convert` converts; `None` if it is absent, or wrong for one of them.
    pub fn read_with<S: ParseScalar, T>(
        &self,
        field: &Field<S>,
        convert: impl FnOnce(S::Parsed) -> Parsed<T>,
    ) -> Option<T> {
        self.find(field)?.parse_with(|text| convert(field.value.parse_text(text)?))
    }

    /// The name of one of the `things`, reported with `help` if `take` finds that another one has it, and returns its
    /// place, or this one for one that it does not know; `None` if it is absent or wrong.
    pub(crate) fn read_unique_name<S: PlainValue<Value = Option<String>>>(
        &self,
        field: &Field<S>,
        things: &str,
        help: Option<&str>,
        take: impl FnOnce(&str, Position) -> Option<Position>,
    ) -> Option<String> {
        let (name, value) = (self.read(field)?, self.find(field)?);
        if let Some(first) = take(&name, value.node.position) {
            let line = value.sink.show_line(first, value.node.position);
            let other = if first == value.node.position {
                String::new()
            } else {
                format!(", the other in line {line}")
            };
            let message = format!("two {things} are named `{}`{other}", value.written_text());
            value.report_at_value(
                ValueError::new(codes::NAME, message).with_optional_help(help.map(str::to_owned)),
            );
        }
        Some(name)
    }

    /// A scalar; `None` if it is wrong, or absent, which is reported with the example of the field.
    pub fn read_required<S: ParseScalar>(&self, field: &Field<S>) -> Option<S::Parsed> {
        self.find_required(field)?.parse_with(|text| field.value.parse_text(text))
    }

    /// The value of a field that must be written.
    pub fn find_required<S>(&self, field: &Field<S>) -> Option<FieldValue<'a>> {
        let found = self.find(field);
        if found.is_none() {
            self.report_missing(field.name, &format!("write e.g. {}: {}", field.name, field.example));
        }
        found
    }

    /// One or more scalars; empty if the field is absent or holds its word. An empty list is reported.
    pub fn read_list_or_word<S: ParseScalar>(&self, field: &Field<OneOrMoreOrWord<S>>) -> Vec<S::Parsed> {
        let Some(value) = self.find(field).filter(|value| !value.is_word(field.value.0)) else {
            return Vec::new();
        };
        value.check_filled(&format!("write {}, or e.g. {}", field.value.0, field.example));
        value.parse_list(|text| field.value.1.parse_text(text))
    }

    /// The fields of a mapping, read by `read`; all absent if the mapping is.
    pub fn read_section<T>(&self, field: &Field<Nested>, read: impl FnOnce(&FieldReader<'a>) -> T) -> T {
        let section = field.value.0;
        let fields = match self.find(field) {
            Some(value) => value.open_section(section),
            None => self.whole.absent_section(section),
        };
        fields.read_all(read)
    }

    /// The same; `None` if `none` is written, or the default.
    pub fn read_section_or_none<T>(
        &self,
        field: &Field<NestedOrNone>,
        read: impl FnOnce(&FieldReader<'a>) -> T,
    ) -> Option<T> {
        let section = field.value.0;
        match self.find(field).filter(|value| !value.is_null()) {
            Some(value) if value.is_word("none") => None,
            Some(value) if !value.is_map() => {
                value.report_shape(&format!("a mapping such as {}, or none", field.example));
                None
            }
            Some(value) => Some(value.open_section(section).read_all(read)),
            None if field.default == Some("none") => None,
            None => Some(self.whole.absent_section(section).read_all(read)),
        }
    }

    /// Reads by `read`, and reports every field that the section does not have.
    pub fn read_all<T>(&self, read: impl FnOnce(&FieldReader<'a>) -> T) -> T {
        let value = read(self);
        self.report_unknown();
        value
    }

    /// True if a mapping in this one has the field `name`, which belongs here.
    pub fn is_nested(&self, name: &str) -> bool {
        self.entries.iter().any(|(_, value)| value.node.has_field(name))
    }

    /// True if the period of a rate is a field of its own, which is reported as unknown.
    pub fn has_separate_period(&self) -> bool {
        self.entries.iter().any(|(key, _)| PERIODS.contains(&key.name.as_str()))
    }

    /// These fields, with those that `over` has in their place; problems go to `sink`.
    pub fn overlay_fields<'b>(&self, over: &FieldReader<'b>, sink: &'b ProblemSink) -> FieldReader<'b>
    where
        'a: 'b,
    {
        let mut entries = over.entries.clone();
        entries.retain(|(key, _)| over.section.has_field(&key.name));
        let rest =
            self.entries.iter().filter(|(key, _)| !entries.iter().any(|(own, _)| own.name == key.name));
        let rest: Vec<(&MapKey, FieldValue<'_>)> = rest.cloned().collect();
        entries.extend(rest);
        entries.iter_mut().for_each(|(_, value)| value.sink = sink);
        let whole = FieldValue { sink, ..self.whole.clone() };
        FieldReader { entries, ..whole.absent_section(self.section) }
    }

    /// True if an unknown field seems to be meant as `name`, which is missing. The error about that field is then
    /// enough.
    pub fn is_misnamed(&self, name: &'static str) -> bool {
        let unknown = self.unknown_fields();
        let is_typo =
            |word: &str| find_field_synonym(word, [name]).is_some() || did_you_mean(word, [name]).is_some();
        let names_it = |help: &str| {
            [format!("`{name}`"), format!("write {name}: ")].iter().any(|mention| help.contains(mention))
        };
        let is_meant = |(key, node): &(&MapKey, &Node)| {
            is_typo(&key.name) || self.explain_unknown(key, node, &unknown).is_none_or(|help| names_it(&help))
        };
        let found = unknown.iter().any(is_meant);
        if found {
            self.missing.borrow_mut().push(name);
        }
        found
    }

    pub(crate) fn report_missing(&self, name: &'static str, help: &str) {
        if self.is_misnamed(name) {
            return;
        }
        let message = format!("`{name}` is missing");
        self.whole.refuse_name(codes::MISSING, message, help);
    }

    fn unknown_fields(&self) -> Vec<(&'a MapKey, &'a Node)> {
        let unknown = self.entries.iter().filter(|(key, _)| !self.section.has_field(&key.name));
        unknown.map(|(key, value)| (*key, value.node)).collect()
    }

    /// Reports every field that the section does not have.
    pub fn report_unknown(&self) {
        let unknown = self.unknown_fields();
        for (key, value) in &self.entries {
            if self.section.has_field(&key.name) || value.sink.is_full() {
                continue;
            }
            let is_first =
                find_misplaced(&self.whole.path, &key.name, &unknown).is_none_or(|(_, first)| first);
            if is_first && !self.foreign_field(key, value.node, &unknown).is_companion() {
                let help =
                    self.explain_unknown(key, value.node, &unknown).unwrap_or_else(|| self.list_fields());
                let message = format!("unknown field `{}`", key.name);
                value.refuse_name(codes::UNKNOWN_FIELD, message, help);
            }
        }
    }

    fn foreign_field<'u>(
        &'u self,
        key: &MapKey,
        node: &'u Node,
        unknown: &'u [(&'u MapKey, &'u Node)],
    ) -> ForeignField<'u> {
        let rate = self.find_by_name("rate").and_then(|value| value.as_text());
        ForeignField::new(self.section.path, key, node, rate, unknown)
    }

    /// The text to write instead of an unknown field, if its meaning is clear.
    fn explain_unknown(&self, key: &MapKey, node: &Node, unknown: &[(&MapKey, &Node)]) -> Option<String> {
        let name = key.name.as_str();
        if let Some((help, _)) = find_misplaced(&self.whole.path, name, unknown) {
            return Some(help);
        }
        if let Some((field, value)) = name.split_once(':').filter(|(field, _)| self.section.has_field(field))
        {
            let shown = show_field(field, &show_text(value));
            return Some(format!("the colon after `{field}` needs a space after it: write {shown}"));
        }
        let foreign = self.foreign_field(key, node, unknown);
        if let Some(help) = foreign.explain() {
            return Some(help);
        }
        let missing = self.missing.borrow();
        let own = || missing.iter().copied().chain(self.section.fields.iter().map(|field| field.name()));
        let near = find_field_synonym(name, own()).or_else(|| find_nearest(name, own()));
        if let Some(near) = near {
            let value = missing.contains(&near).then(|| foreign.translate_as(near)).flatten();
            let value = value.map_or_else(String::new, |value| format!(" write {near}: {value}"));
            return Some(format!("did you mean `{near}`?{value}"));
        }
        if root::SECTION.has_field(name) {
            return Some(format!("write `{name}` at the top of the file, without indentation"));
        }
        match sections_with(name).as_slice() {
            [] => None,
            [section] => {
                let example = section.find_field(name).map_or("…", |field| field.example);
                let whole = show_nested(section.path, name, example);
                Some(format!("`{name}` is a field of {}: write {whole}", section.path))
            }
            sections => {
                let paths: Vec<&str> = sections.iter().map(|section| section.path).collect();
                Some(format!("`{name}` is a field of {}", paths.join(" and of ")))
            }
        }
    }

    /// [`FieldReader::report_unknown`] for a file of another kind: only its own fields are suggested.
    pub fn report_unknown_here(&self) {
        for (key, value) in self.entries.iter().filter(|(key, _)| !self.section.has_field(&key.name)) {
            let own = self.section.fields.iter().map(|field| field.name());
            let help = did_you_mean(&key.name, own).unwrap_or_else(|| self.list_fields());
            let error = ValueError::new(codes::UNKNOWN_FIELD, format!("unknown field `{}`", key.name));
            value.report_at_name(error.with_help(help));
        }
    }

    fn list_fields(&self) -> String {
        let own: Vec<&str> = self.section.fields.iter().map(|field| field.name()).collect();
        match self.missing.borrow().first() {
            Some(missing) => format!("`{missing}` is missing; the fields here are {}", own.join(", ")),
            None => format!("the fields here are {}", own.join(", ")),
        }
    }
}
