//! Limits that read bodies of requests.

mod dialects;
mod explain;
mod mcp;
mod memory;
mod peek;
mod refusals;
mod values;
