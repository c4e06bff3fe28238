//! The connections to Redis: single servers, Sentinel, clusters, and servers that misbehave.

mod access;
mod cluster;
mod fake;
mod liar;
mod log;
mod sentinel;
mod single;
pub mod support;
mod unready;
