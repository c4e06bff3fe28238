//! A request from its head to its last byte: accepted, judged, queued, then rejected or forwarded.
//!
//! Each room stands on those below it.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

// The client's side of a connection: accepting, connection limits, handshake, HTTP/1 and HTTP/2.
pub mod downstream;

// The phases of a request, one after the other; the calls of the rate-limit service.
pub mod service;

// Admitted requests to upstreams and back.
pub mod forward;

// The decision about a request, from its head alone; its state until its last byte.
pub mod judge;

// The immutable snapshot of one configuration, and the state that a worker thread keeps for it.
pub mod gateway;

// Answers to requests that are not forwarded.
pub mod reject;
