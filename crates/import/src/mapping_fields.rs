//! The fields of a mapping of YAML, and values of the types that imported files have.

use crate::source::SourceText;
use crate::{ImportFault, ImportedLine, ReadResult};
use sluicegate_config::yaml::tree::{MapKey, Node, NodeContent};

/// The most fields of a mapping: each one is compared with all others.
const FIELDS_MAX: usize = 10_000;

/// The fields of a mapping, each once, with those that `<<` merges into it.
#[derive(Debug)]
pub(super) struct MappingFields<'n> {
    file: &'n SourceText,
    /// The line where it begins, or of its name.
    pub at: ImportedLine,
    entries: Vec<(&'n MapKey, &'n Node)>,
}

impl<'n> MappingFields<'n> {
    /// The fields of `node`, which is `what` and has the fields `wanted`.
    pub(super) fn open(file: &'n SourceText, node: &'n Node, what: &str, wanted: &str) -> ReadResult<Self> {
        let NodeContent::Map(written) = &node.content else {
            return Err(file.fault_at(node.position, format!("{what} must be a mapping with {wanted}")));
        };
        let mut fields = MappingFields { file, at: file.line_at(node.position), entries: Vec::new() };
        if written.len() > FIELDS_MAX {
            return Err(ImportFault::new(&fields.at, format!("{what} has more than {FIELDS_MAX} fields")));
        }
        for (key, value) in written.iter().filter(|(key, _)| key.name != "<<") {
            if fields.find(&key.name).is_some() {
                return Err(file.fault_at(key.position, format!("the field `{}` is there twice", key.name)));
            }
            fields.entries.push((key, value));
        }
        for (key, value) in written.iter().filter(|(key, _)| key.name == "<<") {
            fields.merge(value).map_err(|()| file.fault_at(key.position, "`<<` needs a short mapping"))?;
        }
        Ok(fields)
    }

    pub(super) fn find(&self, name: &str) -> Option<(&'n MapKey, &'n Node)> {
        self.entries.iter().find(|(key, _)| key.name == name).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'n MapKey, &'n Node)> + '_ {
        self.entries.iter().copied()
    }

    /// A text; `None` if it is empty or missing.
    pub(super) fn text(&self, name: &str) -> ReadResult<Option<String>> {
        let Some((key, node)) = self.find(name) else { return Ok(None) };
        match &node.content {
            NodeContent::Null => Ok(None),
            NodeContent::Text(text) => Ok(Some(text.written.clone()).filter(|text| !text.is_empty())),
            _ => Err(self.file.fault_at(key.position, format!("`{name}` must be a text"))),
        }
    }

    /// A text that is not empty.
    pub(super) fn require(&self, name: &str) -> ReadResult<String> {
        self.text(name)?.ok_or_else(|| ImportFault::new(&self.at, format!("`{name}` is missing")))
    }

    /// The fields of the mapping in a field; none if it is missing.
    pub(super) fn mapping(&self, name: &str) -> ReadResult<MappingFields<'n>> {
        let Some((key, node)) = self.find(name) else {
            return Ok(MappingFields { file: self.file, at: self.at.clone(), entries: Vec::new() });
        };
        let fields = MappingFields::open(self.file, node, &format!("`{name}`"), "fields")?;
        Ok(MappingFields { at: self.line_of(key), ..fields })
    }

    /// The mappings of a list.
    pub(super) fn items(&self, name: &str) -> ReadResult<Vec<MappingFields<'n>>> {
        let items = self.list(name, " of mappings")?.map_or(&[][..], |(_, items)| items);
        items.iter().map(|item| MappingFields::open(self.file, item, "an item", "fields")).collect()
    }

    pub(super) fn line_of(&self, key: &MapKey) -> ImportedLine {
        self.file.line_at(key.position)
    }

    /// A truth value in one of the spellings of YAML 1.1, by default false.
    pub(super) fn flag(&self, name: &str) -> ReadResult<bool> {
        let Some((_, node)) = self.find(name) else { return Ok(false) };
        let text = self.text(name)?.unwrap_or_default();
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => Ok(true),
            "false" | "no" | "off" | "n" | "" => Ok(false),
            _ => Err(self
                .file
                .fault_at(node.position, format!("`{name}` must be true or false, not `{text}`"))),
        }
    }

    /// A number of 32 bits without a sign.
    pub(super) fn number(&self, name: &str) -> ReadResult<Option<u32>> {
        let Some((_, node)) = self.find(name) else { return Ok(None) };
        let text = self.text(name)?.unwrap_or_default();
        // YAML 1.1 reads a leading zero as octal.
        let is_decimal =
            text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        let number = if is_decimal { text.parse::<u32>().ok() } else { None };
        let message = || format!("`{name}` must be a whole number up to {}, not `{text}`", u32::MAX);
        number.map(Some).ok_or_else(|| self.file.fault_at(node.position, message()))
    }

    /// The items of a list, which is of the shape `shape`, and its key.
    pub(super) fn list(&self, name: &str, shape: &str) -> ReadResult<Option<(&'n MapKey, &'n [Node])>> {
        let Some((key, node)) = self.find(name) else { return Ok(None) };
        match &node.content {
            NodeContent::Null => Ok(None),
            NodeContent::List(items) => Ok(Some((key, items))),
            _ => Err(self.file.fault_at(key.position, format!("`{name}` must be a list{shape}"))),
        }
    }

    /// Adds the fields of a mapping, or of a list of mappings, that are not there yet.
    fn merge(&mut self, node: &'n Node) -> Result<(), ()> {
        match &node.content {
            NodeContent::Map(entries) => {
                for (key, value) in entries {
                    match key.name.as_str() {
                        "<<" => self.merge(value)?,
                        _ if self.entries.len() >= FIELDS_MAX => return Err(()),
                        name if self.find(name).is_none() => self.entries.push((key, value)),
                        _ => {}
                    }
                }
                Ok(())
            }
            NodeContent::List(items) => items.iter().try_for_each(|item| self.merge(item)),
            _ => Err(()),
        }
    }
}
