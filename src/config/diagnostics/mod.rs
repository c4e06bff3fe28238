//! Problems of a file: their codes, their places, and how they are shown without secrets.

pub mod codes;
pub(crate) mod problem;
pub(crate) mod redact;
