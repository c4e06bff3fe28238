//! The YAML file as a bounded tree with positions: variables, and access field by field.

pub mod depth;
pub mod field_reader;
pub mod field_value;
mod foreign_fields;
pub mod foreign_text;
mod foreign_words;
pub(crate) mod hints;
pub(crate) mod shown_text;
pub mod substitution;
pub mod syntax_error;
pub mod tree;
