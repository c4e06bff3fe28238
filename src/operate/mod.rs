//! The tools of an operator: the admin listener, and explanations of decisions.

pub mod admin;
pub mod explain;
