//! Reads the fields of one mapping by the tables of [`crate::config::schema`].

use super::field_hints::{explain_field, find_field_synonym, find_misplaced};
use super::field_value::FieldValue;
use super::tree::{MapKey, Node};
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{ProblemSink, ValueError, did_you_mean};
use crate::config::schema::field::{Field, FieldDefault, OneOrMore, ParseScalar, Section};
use crate::config::schema::kinds::{Nested, NestedOrNone, OneOrMoreOrWord};
use crate::config::schema::{is_planned, sections_with, show_nested};
use crate::config::value::scalars::Parsed;

/// The fields of one mapping. [`FieldReader::report_unknown`] reports those that the section does not have.
pub(crate) struct FieldReader<'a> {
    entries: Vec<(&'a MapKey, FieldValue<'a>)>,
    section: &'static Section,
    /// The mapping itself; for a mapping that is not written, the one around it.
    pub whole: FieldValue<'a>,
}

impl<'a> FieldValue<'a> {
    /// The fields of a mapping that is a `section`. Any other shape but null is reported, and has no fields.
    pub fn open_section(&self, section: &'static Section) -> FieldReader<'a> {
        FieldReader { entries: self.entries(), section, whole: self.clone() }
    }

    /// The fields of a `section` that is not written here: each has its default.
    pub fn absent_section(&self, section: &'static Section) -> FieldReader<'a> {
        FieldReader { entries: Vec::new(), section, whole: self.clone() }
    }
}

impl<'a> FieldReader<'a> {
    /// The value of `field`, if it is written.
    pub fn find<S>(&self, field: &Field<S>) -> Option<FieldValue<'a>> {
        self.find_by_name(field.name)
    }

    pub fn find_by_name(&self, name: &str) -> Option<FieldValue<'a>> {
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, value)| value.clone())
    }

    /// A scalar; the default if it is absent or wrong.
    pub fn read<S: ParseScalar>(&self, field: &Field<S>) -> S::Parsed {
        self.read_written(field).unwrap_or_else(|| field.parse_default())
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

    /// One or more scalars; the default if the field is absent.
    pub fn read_list<S: ParseScalar>(&self, field: &Field<OneOrMore<S>>) -> Vec<S::Parsed> {
        match self.find(field) {
            Some(value) => value.parse_list(|text| field.value.0.parse_text(text)),
            None => field.parse_default_list(),
        }
    }

    /// One or more scalars; empty if the field is absent or holds its word. An empty list is reported.
    pub fn read_list_or_word<S: ParseScalar>(&self, field: &Field<OneOrMoreOrWord<S>>) -> Vec<S::Parsed> {
        let Some(value) = self.find(field).filter(|value| !value.is_word(field.value.0)) else {
            return Vec::new();
        };
        if value.is_empty() {
            value.report_empty(&format!("write {}, or e.g. {}", field.value.0, field.example));
        }
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
            None if field.default == FieldDefault::Text("none") => None,
            None => Some(self.whole.absent_section(section).read_all(read)),
        }
    }

    /// Reads by `read`, and reports every field that the section does not have.
    pub fn read_all<T>(&self, read: impl FnOnce(&FieldReader<'a>) -> T) -> T {
        let value = read(self);
        self.report_unknown();
        value
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
        FieldReader { entries, section: self.section, whole: FieldValue { sink, ..self.whole.clone() } }
    }

    /// Whether a field looks like a typo of `name`. The error about the unknown field is then enough.
    pub fn has_typo_of(&self, name: &str) -> bool {
        let is_typo =
            |word: &str| find_field_synonym(word, [name]).is_some() || did_you_mean(word, [name]).is_some();
        self.entries
            .iter()
            .any(|(key, _)| key.name != name && !self.section.has_field(&key.name) && is_typo(&key.name))
    }

    /// Reports that `name` is missing.
    pub fn report_missing(&self, name: &str, help: &str) {
        if self.has_typo_of(name) {
            return;
        }
        let message = format!("`{name}` is missing");
        self.whole.report_at_name(ValueError::new(codes::MISSING, message).with_help(help));
    }

    /// Reports every field that the section does not have.
    pub fn report_unknown(&self) {
        let unknown: Vec<(&MapKey, &Node)> = self
            .entries
            .iter()
            .filter(|(key, _)| !self.section.has_field(&key.name))
            .map(|(key, value)| (*key, value.node))
            .collect();
        for (key, value) in &self.entries {
            if self.section.has_field(&key.name) || value.sink.is_full() {
                continue;
            }
            if is_planned(self.section, &key.name) {
                let message = format!("the field `{}` is not supported yet", key.name);
                value.report_at_name(ValueError::new(codes::UNSUPPORTED, message).with_help("remove it"));
                continue;
            }
            let error = ValueError::new(codes::UNKNOWN_FIELD, format!("unknown field `{}`", key.name));
            match find_misplaced(&self.whole.path, &key.name, &unknown) {
                Some(misplaced) if misplaced.first => value.report_at_name(error.with_help(misplaced.help)),
                Some(_) => {}
                None => value.report_at_name(error.with_help(self.suggest_field(&key.name))),
            }
        }
    }

    fn suggest_field(&self, name: &str) -> String {
        if let Some(help) = explain_field(&self.whole.path, name) {
            return help;
        }
        let own = || self.section.fields.iter().map(|field| field.name());
        if let Some(meant) = find_field_synonym(name, own()) {
            return format!("did you mean `{meant}`?");
        }
        if let Some(near) = did_you_mean(name, own()) {
            return near;
        }
        match sections_with(name).as_slice() {
            [] => format!("the fields here are {}", own().collect::<Vec<_>>().join(", ")),
            [section] => {
                let example = section.find_field(name).map_or("…", |field| field.example);
                let whole = show_nested(section.path, name, example);
                format!("`{name}` is a field of {}: write {whole}", section.path)
            }
            sections => {
                let paths: Vec<&str> = sections.iter().map(|section| section.path).collect();
                format!("`{name}` is a field of {}", paths.join(" and of "))
            }
        }
    }
}
