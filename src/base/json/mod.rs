//! JSON as it comes: values at paths, found without collecting the document.
//!
//! [`JsonScanner`] reads a document in slices of any length, allocates nothing and keeps a bounded state. A
//! [`JsonVisitor`] hears the values at the paths of a [`JsonPaths`]. The scanner accepts the documents that
//! `serde_json` accepts, and no others. [`JsonValues`] keeps the values of a whole document, and [`JsonTextTally`]
//! counts the bytes of texts while they come.

mod number;
mod paths;
mod scanner;
mod tally;
mod text_run;
mod token;
mod values;

pub use paths::{JsonPaths, PATHS_MAX, PathSet};
pub use scanner::{DEPTH_MAX, JsonNumber, JsonScanner, JsonValue, JsonVisitor};
pub use tally::JsonTextTally;
pub use token::TEXT_MAX;
pub use values::{FoundJson, JsonValues};

#[cfg(test)]
mod tests;
