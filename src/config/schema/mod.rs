//! Every field of `gateway.yaml`, once: its name, kind, default, example and meaning.
//!
//! The [`tables`] describe the sections by the [`kinds`] of their [`field`]s. From them come reading
//! ([`super::yaml::field_reader`]), the JSON Schema ([`json_schema`]) and the reference ([`reference`]).

pub(crate) mod field;
pub(crate) mod json_schema;
pub(crate) mod kinds;
pub(crate) mod reference;
pub(crate) mod tables;

use field::{Section, Shape};
use tables::root::root;

/// Fields that a later version will have, with the paths of their sections.
const PLANNED: [(&str, &str); 13] = [
    ("", "tracing"),
    ("server.timeouts", "drain"),
    ("upstreams.NAME", "obey"),
    ("upstreams.NAME", "queue"),
    ("locations[]", "body_peek"),
    ("limits.NAME", "charge"),
    ("limits.NAME", "enforce"),
    ("limits.NAME", "shadow"),
    ("bans", "strikes"),
    ("state", "heavy_hitters"),
    ("state.redis", "tls"),
    ("admin", "tokens"),
    ("access_log", "hash_secret"),
];

/// Whether a later version will have this field.
pub(crate) fn is_planned(section: &Section, name: &str) -> bool {
    PLANNED.contains(&(section.path, name))
}

/// All sections, each once, in the order of the file.
pub(crate) fn all_sections() -> Vec<&'static Section> {
    let mut sections = vec![&root::SECTION];
    let mut next = 0;
    while let Some(section) = sections.get(next) {
        let inner = section.descriptions().flat_map(|field| sections_of(&field.shape)).collect::<Vec<_>>();
        for section in inner {
            if !sections.iter().any(|known| std::ptr::eq(*known, section)) {
                sections.push(section);
            }
        }
        next += 1;
    }
    sections
}

/// The paths of the sections that have a field of this name.
pub(crate) fn sections_with(name: &str) -> Vec<&'static str> {
    all_sections()
        .iter()
        .filter(|section| section.has_field(name))
        .map(|section| section.path)
        .filter(|path| !path.is_empty())
        .collect()
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
