//! Limits that read bodies of requests.

mod explain;
mod memory;
mod peek;
mod refusals;
mod values;
