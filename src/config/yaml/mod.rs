//! The YAML file as a bounded tree with positions: files, variables, and access field by field.

pub(crate) mod depth;
pub(crate) mod field_hints;
pub(crate) mod field_reader;
pub(crate) mod field_value;
pub(crate) mod file;
pub(crate) mod foreign_fields;
mod foreign_locations;
pub(crate) mod foreign_text;
pub(crate) mod foreign_words;
pub(crate) mod shown_text;
pub(crate) mod substitution;
pub(crate) mod syntax_error;
pub(crate) mod tree;
pub(crate) mod value_hints;
