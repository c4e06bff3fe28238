//! Every field of `gateway.yaml`, once: its name, kind, default, example and meaning.
//!
//! The [`tables`] describe the sections by the [`kinds`] of their [`field`]s. From them come reading
//! ([`super::yaml::field_reader`]), the JSON Schema ([`json_schema`]) and the reference ([`reference`]).

pub mod field;
pub mod json_schema;
pub mod kinds;
pub mod reference;
pub mod tables;

use field::{FieldDescription, Section, Shape};
use tables::root::root;

/// All sections, each once: those within a section follow it.
pub fn all_sections() -> Vec<&'static Section> {
    let mut sections = Vec::new();
    add_section(&root::SECTION, &mut sections);
    sections
}

fn add_section(section: &'static Section, sections: &mut Vec<&'static Section>) {
    if sections.iter().any(|known| std::ptr::eq(*known, section)) {
        return;
    }
    sections.push(section);
    for field in section.descriptions() {
        sections_of(&field.shape).into_iter().for_each(|inner| add_section(inner, sections));
    }
}

pub(crate) fn sections_with(name: &str) -> Vec<&'static Section> {
    let mut sections = all_sections();
    sections.retain(|section| !section.path.is_empty() && section.has_field(name));
    sections
}

/// The sections with the fields of a mapping at `path`, e.g. `limits.per-ip`.
fn is_path_of(section: &Section, path: &str) -> bool {
    let bare = |part: &str| part.split('[').next().unwrap_or_default().to_owned();
    let (pattern, parts) = (section.path.split('.'), path.split('.').collect::<Vec<_>>());
    let pattern: Vec<&str> = pattern.collect();
    let fits = |(pattern, part): (&&str, &&str)| {
        pattern.bytes().all(|byte| byte.is_ascii_uppercase()) && !pattern.is_empty()
            || bare(pattern) == bare(part)
    };
    pattern.len() == parts.len() && pattern.iter().zip(&parts).all(fits)
}

/// The example of the field at `path`, e.g. `limits.per-ip.rate`.
pub fn find_example(path: &str) -> Option<&'static str> {
    find_field_at(path).map(|field| field.example)
}

/// True if the value at `path` may be a list.
pub fn takes_list(path: &str) -> bool {
    any_shape_at(path, &|shape| matches!(shape, Shape::OneOrMore(_) | Shape::List(_)))
}

/// True if the value at `path` may be the word `none`.
pub fn takes_none(path: &str) -> bool {
    any_shape_at(path, &|shape| matches!(shape, Shape::Words(words) if words.contains(&"none")))
}

/// True if one of the forms that the value at `path` may have fits.
fn any_shape_at(path: &str, fits: &dyn Fn(&Shape) -> bool) -> bool {
    fn any_shape(shape: &Shape, fits: &dyn Fn(&Shape) -> bool) -> bool {
        match shape {
            Shape::Either(shapes) => shapes.iter().any(|shape| any_shape(shape, fits)),
            shape => fits(shape),
        }
    }
    if let Some(field) = find_field_at(path) {
        return any_shape(&field.shape, fits);
    }
    // A name that the user chooses, e.g. `upstreams.app`.
    let around = path.rsplit_once('.').and_then(|(outer, _)| find_field_at(outer));
    around.is_some_and(|field| matches!(&field.shape, Shape::Map(_, inner) if any_shape(inner, fits)))
}

fn find_field_at(path: &str) -> Option<FieldDescription> {
    let (outer, name) = path.rsplit_once('.').unwrap_or(("", path));
    let name = name.split('[').next()?;
    let sections = all_sections();
    let mut sections = sections.iter().filter(|section| is_path_of(section, outer));
    sections.find_map(|section| section.find_field(name))
}

/// A field of `section`, written from the top of the file.
pub fn show_nested(section: &str, name: &str, value: &str) -> String {
    let inner = format!("{name}: {value}");
    section.rsplit('.').fold(inner, |inner, part| match part.strip_suffix("[]") {
        Some(list) => format!("{list}: [{{ {inner} }}]"),
        None => format!("{part}: {{ {inner} }}"),
    })
}

fn sections_of(shape: &Shape) -> Vec<&'static Section> {
    match shape {
        Shape::Section(section) => vec![section],
        Shape::OneOrMore(inner) | Shape::List(inner) | Shape::Map(_, inner) => sections_of(inner),
        Shape::Either(shapes) => shapes.iter().flat_map(sections_of).collect(),
        Shape::Integer(..) | Shape::Boolean | Shape::Text(..) | Shape::Words(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
