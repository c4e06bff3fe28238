//! Bans that gateways share.

mod announced;
mod gateways;
mod lifted;
mod script;
pub mod support;
