//! Facts about a request, read from its head, and its body on the way upstream.
//!
//! `client` finds the client's address behind trusted proxies, and `location` the location by host, path and method.
//! `access` applies the address rules. `account` reads the account and its tier; `source` reads one value for it, and a
//! claim only from a token with a valid signature. `key` hashes the values that a limit counts by. `descriptor` reads
//! the facts of calls of Envoy. `cors` knows which scripts may read the response. None of them charges a limit.

pub mod access;
pub mod account;
pub mod api_key;
pub mod body;
pub mod client;
pub mod cors;
pub mod descriptor;
pub mod headers;
pub mod key;
pub mod location;
pub mod priority;
pub mod request_id;
pub mod source;
