//! Problems of a file: their codes, positions, and rendering without secrets.

pub mod codes;
pub(crate) mod problem;
pub(crate) mod redact;
