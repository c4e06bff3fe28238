//! The YAML text as a tree: bounded, with the place of every node, variables substituted, read field by field.

pub(crate) mod depth;
pub(crate) mod fields;
pub(crate) mod file;
pub(crate) mod substitution;
pub(crate) mod tree;
