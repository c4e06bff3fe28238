//! The tools of operators: the admin API, `explain`, and the traffic that they show.

pub mod admin;
pub mod explain;
pub mod history;
pub mod text_table;
pub mod traffic;
