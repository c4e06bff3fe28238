//! An incremental JSON scanner: it finds values at paths without collecting the document.
//!
//! [`JsonScanner`] reads a document in slices of any length, allocates nothing and keeps a bounded state. A
//! [`JsonVisitor`] receives the values at the paths of a [`JsonPaths`]. The scanner accepts the grammar of RFC 8259 to
//! a depth of [`DEPTH_MAX`], also behind a byte order mark: the grammar of `serde_json`, lone halves of surrogate
//! pairs, and numbers beyond a double.

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
