//! One request stays one request: random HTTP/2 connections against a model of RFC 9113.
//!
//! A script is the bytes of one client, with its streams, resets, pauses and departure. [`model`] reads from these bytes
//! the requests that exist.

#![allow(dead_code, clippy::disallowed_types, reason = "nothing plays the scripts yet")]

#[allow(unused_imports, reason = "shared by several test binaries")]
#[path = "../support/mod.rs"]
mod support;

#[path = "../ledger/random.rs"]
mod random;

mod model;
mod script;

/// Bytes of a body, shown as text.
#[derive(Clone, Default, PartialEq)]
pub struct Text(pub Vec<u8>);

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes `{}`", self.0.len(), self.0[..self.0.len().min(80)].escape_ascii())
    }
}
