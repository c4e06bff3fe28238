//! The file as a tree whose every node knows its place.
//!
//! The YAML crate tells places in its errors only. So the text is read twice: first for its shape, then, led by
//! the shape, with a visitor that refuses every scalar on purpose and takes the place out of the refusal.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Visitor};

use super::depth;
use crate::config::diagnostics::codes;
use crate::config::diagnostics::problem::{Complaint, Place};

/// One value of the file.
#[derive(Debug)]
pub(crate) struct Node {
    pub place: Place,
    pub content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// Nothing, `~` or `null`.
    Null,
    /// Already complained about.
    Broken,
    Text(Text),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A scalar: its text as written, and what it says once `${NAME}` is replaced.
#[derive(Debug)]
pub(crate) struct Text {
    pub written: String,
    pub pieces: Vec<TextPiece>,
    /// Something came from outside the file and must not be shown.
    pub replaced: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextPiece {
    Plain(String),
    /// A template variable, `${name}`.
    Variable(String),
}

impl Text {
    pub fn new(written: String) -> Text {
        Text { pieces: vec![TextPiece::Plain(written.clone())], written, replaced: false }
    }

    /// The whole text, unless it has template variables.
    pub fn plain(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [TextPiece::Plain(plain)] => Some(plain),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Key {
    pub place: Place,
    pub name: String,
}

/// Nodes that aliases may add: without them a text never has more nodes than bytes.
const ALIASED_NODES_MAX: usize = 20_000;

/// Reads `text` into a tree, or tells the one thing that makes it no YAML.
pub(crate) fn parse(text: &str) -> Result<Node, (Place, Complaint)> {
    if let Some(found) = forbidden_character(text) {
        return Err(found);
    }
    if let Some(place) = depth::too_deep(text) {
        return Err((place, Complaint::new(codes::SYNTAX, TOO_DEEP)));
    }
    let left = Cell::new(text.len() + ALIASED_NODES_MAX);
    let shape = ShapeSeed { left: &left }
        .deserialize(serde_yaml::Deserializer::from_str(text))
        .map_err(|error| syntax_problem(text, &error))?;
    if matches!(shape, Shape::Null) {
        return Ok(Node { place: Place::START, content: Content::Null });
    }
    let lines: Vec<Line<'_>> = text.split('\n').map(|text| Line { text, ascii: text.is_ascii() }).collect();
    NodeSeed { shape: &shape, lines: &lines, outer: Place::START }
        .deserialize(serde_yaml::Deserializer::from_str(text))
        .map_err(|error| syntax_problem(text, &error))
}

fn syntax_problem(text: &str, error: &serde_yaml::Error) -> (Place, Complaint) {
    let full = error.to_string();
    let place = match error.location() {
        Some(location) => Place { line: location.line(), column: location.column(), width: 1 },
        None if full.contains("more than one document") => second_document(text),
        None => Place::START,
    };
    let message = full.split(" at line ").next().unwrap_or(&full);
    let message = message.rsplit_once(": ").map_or(message, |(_, last)| last);
    let message = match message {
        "recursion limit exceeded" => TOO_DEEP.to_owned(),
        "repetition limit exceeded" => TOO_MANY_NODES.to_owned(),
        other if other.contains("more than one document") => "more than one document in the file".to_owned(),
        TOO_MANY_NODES | TAG_REFUSED | KEY_REFUSED => message.to_owned(),
        other => format!("not valid YAML: {other}"),
    };
    (place, Complaint::new(codes::SYNTAX, message))
}

fn second_document(text: &str) -> Place {
    let mut seen_content = false;
    for (index, line) in text.lines().enumerate() {
        let marker = line.starts_with("---");
        if marker && seen_content {
            return Place { line: index + 1, column: 1, width: 3 };
        }
        seen_content |= !marker && !line.trim().is_empty() && !line.starts_with('#');
    }
    Place::START
}

/// The parser below names no place for these, or takes them for ends of lines where an editor shows none.
fn forbidden_character(text: &str) -> Option<(Place, Complaint)> {
    let forbidden = |c: char| {
        (c.is_control() && c != '\t')
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
            || c > '\u{fffd}' && c < '\u{10000}'
    };
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let (line, found) = lines.enumerate().find(|(_, line)| line.contains(forbidden))?;
    let column = found.chars().position(forbidden)?;
    let character = found.chars().nth(column)?;
    let message = format!("the character U+{:04X} may not stand in the file", u32::from(character));
    Some((Place { line: line + 1, column: column + 1, width: 1 }, Complaint::new(codes::SYNTAX, message)))
}

// === First reading: the shape ===

const TOO_DEEP: &str = "nested too deeply";
const TOO_MANY_NODES: &str = "aliases make the file too large";
const TAG_REFUSED: &str = "tags such as `!name` have no meaning in this file";
const KEY_REFUSED: &str = "a key must be a plain word";

enum Shape {
    Null,
    Text,
    List(Vec<Shape>),
    Map(Vec<(Shape, Shape)>),
}

#[derive(Clone, Copy)]
struct ShapeSeed<'a> {
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for ShapeSeed<'_> {
    type Value = Shape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| D::Error::custom(TOO_MANY_NODES))?;
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ShapeSeed<'_> {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_unit<E: Error>(self) -> Result<Shape, E> {
        Ok(Shape::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Shape, E> {
        Ok(Shape::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Shape::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key_seed(self)? {
            if matches!(key, Shape::List(_) | Shape::Map(_)) {
                return Err(A::Error::custom(KEY_REFUSED));
            }
            entries.push((key, map.next_value_seed(self)?));
        }
        Ok(Shape::Map(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Shape, A::Error> {
        Err(A::Error::custom(TAG_REFUSED))
    }
}

// === Second reading: texts and places ===

#[derive(Clone, Copy)]
struct NodeSeed<'a> {
    shape: &'a Shape,
    lines: &'a [Line<'a>],
    /// The key that leads here: the place of a list or mapping that has nothing in it.
    outer: Place,
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        match self.shape {
            Shape::Null | Shape::Text => {
                let (place, text) = scalar(deserializer, self.lines)?;
                let null = matches!(self.shape, Shape::Null);
                let content = if null { Content::Null } else { Content::Text(Text::new(text)) };
                Ok(Node { place: if null { self.outer } else { place }, content })
            }
            Shape::List(_) => deserializer.deserialize_seq(self),
            Shape::Map(_) => deserializer.deserialize_map(self),
        }
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the same value as before")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items: Vec<Node> = Vec::new();
        if let Shape::List(shapes) = self.shape {
            for shape in shapes {
                items.extend(list.next_element_seed(NodeSeed { shape, ..self })?);
            }
        }
        let place = items.first().map_or(self.outer, |first| first.place);
        Ok(Node { place, content: Content::List(items) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        if let Shape::Map(shapes) = self.shape {
            for (_, shape) in shapes {
                let Some(key) = map.next_key_seed(KeySeed { lines: self.lines })? else { break };
                let value = map.next_value_seed(NodeSeed { shape, outer: key.place, ..self })?;
                entries.push((key, value));
            }
        }
        let place = entries.first().map_or(self.outer, |(key, _)| key.place);
        Ok(Node { place, content: Content::Map(entries) })
    }
}

struct KeySeed<'a> {
    lines: &'a [Line<'a>],
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        let (place, name) = scalar(deserializer, self.lines)?;
        Ok(Key { place, name })
    }
}

/// Reads one scalar as text, whatever it looks like, with its place.
fn scalar<'de, D: Deserializer<'de>>(
    deserializer: D,
    lines: &[Line<'_>],
) -> Result<(Place, String), D::Error> {
    let mut text = None;
    let Err(refusal) = deserializer.deserialize_str(Refuse { text: &mut text }) else {
        return Err(D::Error::custom("a scalar was not refused"));
    };
    match text {
        Some(text) => Ok((place_in(&refusal.to_string(), &text, lines), text)),
        None => Err(refusal),
    }
}

struct Line<'a> {
    text: &'a str,
    ascii: bool,
}

/// Counting characters for every scalar of a longer line would take too long; its carets are one wide.
const COUNTED_LINE_MAX: usize = 4096;

impl<'a> Line<'a> {
    fn text_at(&self, column: usize) -> &'a str {
        let chars = column.saturating_sub(1);
        let byte = match self.ascii {
            true => Some(chars),
            false if self.text.len() > COUNTED_LINE_MAX => None,
            false => self.text.char_indices().nth(chars).map(|(byte, _)| byte),
        };
        byte.and_then(|byte| self.text.get(byte..)).unwrap_or("")
    }
}

/// Takes the text, then fails, because only a failure is told its place.
struct Refuse<'a> {
    text: &'a mut Option<String>,
}

impl Visitor<'_> for Refuse<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        *self.text = Some(text.to_owned());
        Err(E::custom("here"))
    }
}

/// The refusal ends in "at line 3 column 9", or in nothing for the very first character.
fn place_in(refusal: &str, text: &str, lines: &[Line<'_>]) -> Place {
    let words = refusal.rsplit_once(" at line ").and_then(|(_, words)| words.split_once(" column "));
    let numbers = words.and_then(|(line, column)| Some((line.parse().ok()?, column.parse().ok()?)));
    let (line, column): (usize, usize) = numbers.unwrap_or((1, 1));
    let rest = lines.get(line.saturating_sub(1)).map_or("", |found| found.text_at(column));
    let width = match rest.chars().next() {
        Some('"' | '\'') if rest[1..].starts_with(text) => text.chars().count() + 2,
        _ if rest.starts_with(text) => text.chars().count(),
        _ => 1,
    };
    Place { line, column, width: width.max(1) }
}

#[cfg(test)]
mod tests;
