//! The YAML file as a bounded tree with positions: variables, and access field by field.

pub mod depth;
pub mod field_hints;
pub mod field_reader;
pub mod field_value;
pub mod foreign_fields;
pub mod foreign_text;
pub mod foreign_words;
pub mod shown_text;
pub mod substitution;
pub mod syntax_error;
pub mod tree;
pub mod value_hints;
