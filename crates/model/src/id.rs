//! Positions in the lists of a [`Config`](super::Config): one type for each list, so that none is taken for another.

/// The position of a limit in [`Config::limits`](super::Config::limits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub usize);

/// The position of other numbers for a limit in [`LimitConfig::views`](super::limit::LimitConfig::views).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId(pub usize);

/// The position of a location in [`Config::locations`](super::Config::locations).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocationId(pub usize);

/// The position of an upstream in [`Config::upstreams`](super::Config::upstreams).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamId(pub usize);

/// The position of a server in its upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub usize);
