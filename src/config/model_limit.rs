//! The typed model of limits: algorithms with their numbers, keys and costs.

use std::time::Duration;

use http::{HeaderName, Method};
use ipnet::IpNet;

use super::model_reject::OnRejectPatch;
use super::words::Rate;

/// A named limit, or one written inline in a location.
#[derive(Debug, Clone)]
pub struct Limit {
    pub name: String,
    /// One or more parts; several make one compound key.
    pub key: Vec<KeyPart>,
    pub missing_key: MissingKey,
    pub algorithm: Algorithm,
    pub cost: Cost,
    /// Empty = any.
    pub methods: Vec<Method>,
    pub bypass: Vec<IpNet>,
    pub dry_run: bool,
    pub on_reject: OnRejectPatch,
}

/// The numbers of one limit. `rates` are judged together; there is at least one.
#[derive(Debug, Clone)]
pub enum Algorithm {
    TokenBucket { rates: Vec<TokenBucketRate> },
    LeakyBucket { rates: Vec<LeakyBucketRate>, max_wait: Option<Duration> },
    Concurrency { max: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucketRate {
    pub rate: Rate,
    /// Tokens the bucket holds, at least 1.
    pub burst: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucketRate {
    pub rate: Rate,
    /// Requests that leave at once from idle, at least 1.
    pub burst: u64,
    /// Requests that may wait.
    pub queue: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    Ip,
    Account,
    Uri,
    Location,
    Host,
    Method,
    Global,
    Source(Source),
}

/// A place in a request's head that carries a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Header(HeaderName),
    Cookie(String),
    Query(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingKey {
    Ip,
    Shared,
    Reject,
    Skip,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// At least 1.
    Units(u64),
    /// Counts only from trusted proxies, else 1.
    Header(HeaderName),
}
