//! Problems of a file: their codes, positions, and rendering without secrets.

pub mod codes;
pub mod problem;
pub mod redact;
