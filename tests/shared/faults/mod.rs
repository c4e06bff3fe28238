//! Faults of the network and of Redis while gateways decide.

mod groups;
mod network;
mod server;
mod support;
