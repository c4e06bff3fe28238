//! Reads the sections of `gateway.yaml`, about one file per section.

pub(crate) mod access;
pub(crate) mod account;
pub(crate) mod algorithm;
pub(crate) mod bandwidth;
pub(crate) mod bans;
pub(crate) mod headers;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod listen_tls;
pub(crate) mod locations;
pub(crate) mod members;
pub(crate) mod operation;
pub(crate) mod patterns;
pub(crate) mod rates;
pub(crate) mod redis_range;
pub(crate) mod reject;
pub(crate) mod resilience;
pub(crate) mod same_location;
pub(crate) mod sections;
pub(crate) mod server;
pub(crate) mod state;
pub(crate) mod tiers;
pub(crate) mod token_keys;
pub(crate) mod upstream_tls;
pub(crate) mod upstreams;
pub(crate) mod windows;
