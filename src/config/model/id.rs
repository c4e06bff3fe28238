//! Positions in the lists of a [`Config`](super::Config): one type for each list, so that none is taken for another.

use std::ops::Index;

use super::{LocationConfig, UpstreamConfig};
use crate::config::LimitConfig;

/// The position of a limit in [`Config::limits`](super::Config::limits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub usize);

/// The position of a location in [`Config::locations`](super::Config::locations).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocationId(pub usize);

/// The position of an upstream in [`Config::upstreams`](super::Config::upstreams).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamId(pub usize);

/// The position of a server in its upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub usize);

impl Index<LimitId> for Vec<LimitConfig> {
    type Output = LimitConfig;

    fn index(&self, LimitId(position): LimitId) -> &LimitConfig {
        &self[position]
    }
}

impl Index<LocationId> for Vec<LocationConfig> {
    type Output = LocationConfig;

    fn index(&self, LocationId(position): LocationId) -> &LocationConfig {
        &self[position]
    }
}

impl Index<UpstreamId> for Vec<UpstreamConfig> {
    type Output = UpstreamConfig;

    fn index(&self, UpstreamId(position): UpstreamId) -> &UpstreamConfig {
        &self[position]
    }
}
