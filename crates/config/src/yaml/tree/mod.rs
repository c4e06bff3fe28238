//! Parses the file into a tree of nodes with their positions.
//!
//! The YAML crate gives positions only in its errors. So the text is read twice: first for its shape, then, guided by
//! the shape, with a visitor that fails on every scalar on purpose and takes the position from the error.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Visitor};

use super::depth;
use super::foreign_text::find_forbidden_character;
use super::syntax_error::explain_syntax_error;
use sluicegate_model::{Position, ValueError, codes};

/// One value of the file.
#[derive(Debug)]
pub struct Node {
    /// The position in the file, with the width to underline.
    pub position: Position,
    /// The content, which tells the shape of the value.
    pub content: NodeContent,
}

/// The content of a value, by its shape.
#[derive(Debug)]
pub enum NodeContent {
    /// Empty, `~` or `null`.
    Null,
    /// Already reported as a problem.
    Invalid,
    /// A scalar; numbers and switches are texts until a field parses them.
    Text(ScalarText),
    /// A list, perhaps empty.
    List(Vec<Node>),
    /// A mapping, in the order of the file; equal keys are not merged.
    Map(Vec<(MapKey, Node)>),
}

/// A scalar: its text as written, and its pieces once `${NAME}` is replaced.
#[derive(Debug)]
pub struct ScalarText {
    /// The text of the file, without quotes and before `${NAME}` is replaced.
    pub written: String,
    pub(crate) pieces: Vec<TextPiece>,
    /// Part of the text came from outside the file and must not be shown.
    pub replaced: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextPiece {
    Plain(String),
    /// A template variable, `${name}`.
    Variable(String),
}

impl ScalarText {
    pub(crate) fn new(written: String) -> ScalarText {
        ScalarText { pieces: vec![TextPiece::Plain(written.clone())], written, replaced: false }
    }

    /// The whole text, unless it has template variables.
    pub fn as_plain(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [TextPiece::Plain(plain)] => Some(plain),
            _ => None,
        }
    }
}

/// A key of a mapping.
#[derive(Debug)]
pub struct MapKey {
    /// The position of the key in the file.
    pub position: Position,
    /// The text of the key; `${NAME}` in it is replaced with that of the values.
    pub name: String,
}

impl Node {
    /// The scalar, if this is one.
    pub fn text(&self) -> Option<&ScalarText> {
        if let NodeContent::Text(text) = &self.content { Some(text) } else { None }
    }

    /// The items of a list; none if this is no list.
    pub fn items(&self) -> &[Node] {
        if let NodeContent::List(items) = &self.content { items } else { &[] }
    }

    /// The entries of a mapping; none if this is no mapping.
    pub fn entries(&self) -> &[(MapKey, Node)] {
        if let NodeContent::Map(entries) = &self.content { entries } else { &[] }
    }

    /// True if this is a mapping with this field.
    pub fn has_field(&self, name: &str) -> bool {
        self.entries().iter().any(|(key, _)| key.name == name)
    }

    /// The value of a field, if this is a mapping that has it.
    pub fn find_value(&self, name: &str) -> Option<&Node> {
        self.entries().iter().find(|(key, _)| key.name == name).map(|(_, node)| node)
    }

    /// Moves all positions down by a number of lines.
    pub fn shift_lines(&mut self, lines: usize) {
        self.position.line += lines;
        match &mut self.content {
            NodeContent::List(items) => items.iter_mut().for_each(|item| item.shift_lines(lines)),
            NodeContent::Map(entries) => entries.iter_mut().for_each(|(key, node)| {
                key.position.line += lines;
                node.shift_lines(lines);
            }),
            NodeContent::Null | NodeContent::Invalid | NodeContent::Text(_) => {}
        }
    }

    /// The scalar of a field, if this is a mapping that has it.
    pub fn find_field(&self, name: &str) -> Option<&ScalarText> {
        self.find_value(name)?.text()
    }
}

/// Nodes that aliases may add; without aliases, a text never has more nodes than bytes.
const ALIASED_NODES_MAX: usize = 20_000;

/// Parses `text` into a tree, or returns the first syntax error with its position.
pub fn parse_document(text: &str) -> Result<Node, (Position, ValueError)> {
    if let Some(found) = find_forbidden_character(text) {
        return Err(found);
    }
    if let Some(position) = depth::find_too_deep(text) {
        return Err((position, ValueError::new(codes::SYNTAX, TOO_DEEP)));
    }
    let left = Cell::new(text.len() + ALIASED_NODES_MAX);
    let shape = ShapeSeed { left: &left }
        .deserialize(serde_yaml::Deserializer::from_str(text))
        .map_err(|error| describe_syntax_error(text, &error))?;
    if matches!(shape, NodeShape::Null) {
        return Ok(Node { position: Position::START, content: NodeContent::Null });
    }
    let lines: Vec<SourceLine<'_>> =
        text.split('\n').map(|text| SourceLine { text, ascii: text.is_ascii() }).collect();
    NodeSeed { shape: &shape, lines: &lines, outer: Position::START }
        .deserialize(serde_yaml::Deserializer::from_str(text))
        .map_err(|error| describe_syntax_error(text, &error))
}

fn describe_syntax_error(text: &str, error: &serde_yaml::Error) -> (Position, ValueError) {
    let full = error.to_string();
    let position = match error.location() {
        Some(location) => Position { line: location.line(), column: location.column(), width: 1 },
        None if full.contains("more than one document") => find_second_document(text),
        None => Position::START,
    };
    let message = full.split(" at line ").next().unwrap_or(&full);
    let message = message.rsplit_once(": ").map_or(message, |(_, last)| last);
    let message = match message {
        "recursion limit exceeded" => TOO_DEEP.to_owned(),
        "repetition limit exceeded" => TOO_MANY_NODES.to_owned(),
        other if other.contains("more than one document") && position != Position::START => {
            "more than one document in the file".to_owned()
        }
        TOO_MANY_NODES | TAG_UNSUPPORTED | KEY_NOT_PLAIN => message.to_owned(),
        other => {
            let last = if position == Position::START { usize::MAX } else { position.line };
            if let Some(found) = explain_syntax_error(text, last) {
                return found;
            }
            format!("not valid YAML: {other}")
        }
    };
    let for_anchor = "put it in quotes; only after &name does *name repeat a value";
    let help = full.contains("unknown anchor").then_some(for_anchor);
    let second =
        full.contains("more than one document").then_some("remove the second one, from this line on");
    (position, ValueError::new(codes::SYNTAX, message).with_optional_help(help.or(second).map(str::to_owned)))
}

fn find_second_document(text: &str) -> Position {
    let mut seen_content = false;
    for (index, line) in text.lines().enumerate() {
        let marker = line.starts_with("---");
        if marker && seen_content {
            return Position { line: index + 1, column: 1, width: 3 };
        }
        seen_content |= !marker && !line.trim().is_empty() && !line.starts_with('#');
    }
    Position::START
}

// === First reading: the shape ===

const TOO_DEEP: &str = "nested too deeply";
const TOO_MANY_NODES: &str = "aliases make the file too large";
const TAG_UNSUPPORTED: &str = "tags such as `!name` have no meaning in this file";
const KEY_NOT_PLAIN: &str = "a key must be a plain word";

enum NodeShape {
    Null,
    Text,
    List(Vec<NodeShape>),
    Map(Vec<(NodeShape, NodeShape)>),
}

#[derive(Clone, Copy)]
struct ShapeSeed<'a> {
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for ShapeSeed<'_> {
    type Value = NodeShape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<NodeShape, D::Error> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| D::Error::custom(TOO_MANY_NODES))?;
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ShapeSeed<'_> {
    type Value = NodeShape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<NodeShape, E> {
        Ok(NodeShape::Text)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<NodeShape, E> {
        Ok(NodeShape::Text)
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<NodeShape, E> {
        Ok(NodeShape::Text)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<NodeShape, E> {
        Ok(NodeShape::Text)
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<NodeShape, E> {
        Ok(NodeShape::Text)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<NodeShape, E> {
        Ok(NodeShape::Text)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<NodeShape, E> {
        Ok(NodeShape::Text)
    }

    fn visit_unit<E: Error>(self) -> Result<NodeShape, E> {
        Ok(NodeShape::Null)
    }

    fn visit_none<E: Error>(self) -> Result<NodeShape, E> {
        Ok(NodeShape::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NodeShape, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(self)? {
            items.push(item);
        }
        Ok(NodeShape::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NodeShape, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key_seed(self)? {
            if matches!(key, NodeShape::List(_) | NodeShape::Map(_)) {
                return Err(A::Error::custom(KEY_NOT_PLAIN));
            }
            entries.push((key, map.next_value_seed(self)?));
        }
        Ok(NodeShape::Map(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<NodeShape, A::Error> {
        Err(A::Error::custom(TAG_UNSUPPORTED))
    }
}

// === Second reading: texts and positions ===

#[derive(Clone, Copy)]
struct NodeSeed<'a> {
    shape: &'a NodeShape,
    lines: &'a [SourceLine<'a>],
    /// The position of the key that leads here, used for an empty list or mapping.
    outer: Position,
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        match self.shape {
            NodeShape::Null | NodeShape::Text => {
                let (position, text) = read_scalar(deserializer, self.lines)?;
                let null = matches!(self.shape, NodeShape::Null);
                let content = if null { NodeContent::Null } else { NodeContent::Text(ScalarText::new(text)) };
                Ok(Node { position: if null { self.outer } else { position }, content })
            }
            NodeShape::List(_) => deserializer.deserialize_seq(self),
            NodeShape::Map(_) => deserializer.deserialize_map(self),
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
        if let NodeShape::List(shapes) = self.shape {
            for shape in shapes {
                items.extend(list.next_element_seed(NodeSeed { shape, ..self })?);
            }
        }
        let position = items.first().map_or(self.outer, |first| first.position);
        Ok(Node { position, content: NodeContent::List(items) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(MapKey, Node)> = Vec::new();
        if let NodeShape::Map(shapes) = self.shape {
            for (_, shape) in shapes {
                let Some(key) = map.next_key_seed(KeySeed { lines: self.lines })? else { break };
                let value = map.next_value_seed(NodeSeed { shape, outer: key.position, ..self })?;
                entries.push((key, value));
            }
        }
        let position = entries.first().map_or(self.outer, |(key, _)| key.position);
        Ok(Node { position, content: NodeContent::Map(entries) })
    }
}

struct KeySeed<'a> {
    lines: &'a [SourceLine<'a>],
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = MapKey;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<MapKey, D::Error> {
        let (position, name) = read_scalar(deserializer, self.lines)?;
        Ok(MapKey { position, name })
    }
}

/// Reads one scalar of any type as text, with its position.
fn read_scalar<'de, D: Deserializer<'de>>(
    deserializer: D,
    lines: &[SourceLine<'_>],
) -> Result<(Position, String), D::Error> {
    let mut text = None;
    let Err(error) = deserializer.deserialize_str(ScalarProbe { text: &mut text }) else {
        return Err(D::Error::custom("a scalar gave no error"));
    };
    match text {
        Some(text) => Ok((locate_scalar(&error.to_string(), &text, lines), text)),
        None => Err(error),
    }
}

struct SourceLine<'a> {
    text: &'a str,
    ascii: bool,
}

/// The longest line with counted characters: beyond, each scalar would take too long; their carets are one wide.
const COUNTED_LINE_MAX: usize = 4096;

impl<'a> SourceLine<'a> {
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

/// Takes the text, then fails, because only errors carry a position.
struct ScalarProbe<'a> {
    text: &'a mut Option<String>,
}

impl Visitor<'_> for ScalarProbe<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        *self.text = Some(text.to_owned());
        Err(E::custom("here"))
    }
}

/// `error` ends with "at line 3 column 9", except for the first character of the file.
fn locate_scalar(error: &str, text: &str, lines: &[SourceLine<'_>]) -> Position {
    let words = error.rsplit_once(" at line ").and_then(|(_, words)| words.split_once(" column "));
    let numbers = words.and_then(|(line, column)| Some((line.parse().ok()?, column.parse().ok()?)));
    let (line, column): (usize, usize) = numbers.unwrap_or((1, 1));
    let rest = lines.get(line.saturating_sub(1)).map_or("", |found| found.text_at(column));
    let width = match rest.chars().next() {
        Some('"' | '\'') if rest[1..].starts_with(text) => text.chars().count() + 2,
        _ if rest.starts_with(text) => text.chars().count(),
        _ => 1,
    };
    Position { line, column, width: width.max(1) }
}

#[cfg(test)]
mod tests;
