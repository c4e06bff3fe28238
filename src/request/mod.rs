//! Facts about a request, read from its head, and its body on the way upstream.

pub mod access;
pub mod account;
pub mod body;
pub mod client;
pub mod headers;
pub mod key;
pub mod location;
pub mod request_id;
pub mod source;
