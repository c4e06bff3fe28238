//! The tools of operators: the admin listener and `explain`.

pub mod admin;
pub mod explain;
