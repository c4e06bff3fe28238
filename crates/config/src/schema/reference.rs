//! The reference of every field, in Markdown.

use std::fmt::Write as _;

use super::all_sections;
use super::field::{Section, Shape};

const HEAD: &str = "\
# gateway.yaml: every field

`sluicegate schema --format markdown` writes this page, and `sluicegate schema` the JSON Schema for editors. A part of
a section's name in capitals stands for a name of your choice. `${NAME}`, `${NAME:-DEFAULT}` and `${file:PATH}` are
replaced in every value. [Concepts](concepts.md) explains how the sections work together.
";

/// The page `docs/gateway-yaml.md`.
pub fn markdown_reference() -> String {
    let mut page = HEAD.to_owned();
    for section in all_sections() {
        write_section(&mut page, section);
    }
    page
}

fn write_section(page: &mut String, section: &Section) {
    let title = if section.path.is_empty() { "The file" } else { section.path };
    // Writing to a text cannot fail.
    let _ = writeln!(page, "\n## {title}\n\n{}\n", section.sentence.trim());
    page.push_str("| field | value | default | meaning | example |\n|---|---|---|---|---|\n");
    for field in section.descriptions() {
        let default = match field.default {
            None => "required".to_owned(),
            Some(text) => format!("`{text}`"),
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | {default} | {} | `{}` |",
            field.name,
            escape_cell(&shape_text(&field.shape)),
            escape_cell(field.sentence),
            escape_cell(field.example)
        );
    }
}

/// The form of a value, in a few words.
fn shape_text(shape: &Shape) -> String {
    match shape {
        Shape::Integer(least, u64::MAX | 0xFFFF_FFFF) => format!("a number from {least}"),
        Shape::Integer(least, most) => format!("a number from {least} to {most}"),
        Shape::Boolean => "`true` or `false`".to_owned(),
        Shape::Text(says, _) => says.clone(),
        Shape::Words(words) => join_words(words.iter().map(|word| format!("`{word}`")).collect()),
        Shape::OneOrMore(item) => format!("{}, or a list", shape_text(item)),
        Shape::List(item) => format!("a list: {}", shape_text(item)),
        Shape::Map(keys, value) => format!("a mapping of {keys} to: {}", shape_text(value)),
        Shape::Section(section) => format!("[{0}](#{1})", section.path, anchor(section.path)),
        Shape::Either(shapes) => join_words(shapes.iter().map(shape_text).collect()),
    }
}

fn join_words(mut words: Vec<String>) -> String {
    match words.pop() {
        Some(last) if !words.is_empty() => format!("{} or {last}", words.join(", ")),
        last => last.unwrap_or_default(),
    }
}

/// The anchor that Markdown renderers give to a heading.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    kept.collect::<String>().to_lowercase()
}

fn escape_cell(text: &str) -> String {
    text.replace('|', "\\|")
}
