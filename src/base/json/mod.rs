//! JSON as it comes: values at paths, found without collecting the document.
//!
//! [`JsonScanner`] reads a document in slices of any length, allocates nothing and keeps a bounded state. A
//! [`JsonVisitor`] hears the values at the paths of a [`JsonPaths`]. The scanner accepts the documents that
//! `serde_json` accepts, and no others.

mod number;
mod paths;
mod scanner;
mod text_run;
mod token;

pub use paths::{JsonPaths, PATHS_MAX, PathSet};
pub use scanner::{DEPTH_MAX, JsonNumber, JsonScanner, JsonValue, JsonVisitor};
pub use token::TEXT_MAX;

#[cfg(test)]
mod tests;
