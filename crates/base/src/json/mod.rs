//! JSON as it comes: values at paths, found without collecting the document.
//!
//! [`JsonScanner`] reads a document in slices of any length, allocates nothing and keeps a bounded state. A
//! [`JsonVisitor`] hears the values at the paths of a [`JsonPaths`]. The scanner accepts the grammar of
//! RFC 8259 to a depth of [`DEPTH_MAX`], behind a byte order mark as well: what `serde_json` accepts, lone halves of
//! surrogate pairs, and numbers beyond a double.

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
