//! The header fields that the gateway removes, adds or rejects.

pub mod added_fields;
pub mod copied_headers;
pub mod forwarded;
pub mod grpc;
pub mod hop_by_hop;
pub mod summary;
pub mod underscores;
