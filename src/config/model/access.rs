//! The typed model of who may come in, and of bans.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::config::value::scalars::Rate;

/// One of `ip_sets`.
#[derive(Debug, Clone)]
pub struct IpSetConfig {
    pub name: String,
    pub networks: Arc<[IpNet]>,
}

/// Networks written into a field, and sets named there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkList {
    pub written: Vec<IpNet>,
    /// Indices into [`crate::config::Config::ip_sets`].
    pub sets: Vec<usize>,
}

/// The `access` section: deny beats allow beats bypass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// `None` = any.
    pub allow: Option<NetworkList>,
    pub deny: NetworkList,
    /// No limits and no bans.
    pub bypass: NetworkList,
}

impl NetworkList {
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.sets.is_empty()
    }
}

/// The `bans` section, unless it is off.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BansConfig {
    /// Strikes within the period that start a ban; at most 10,000.
    pub after: Rate,
    /// `for`: what the first ban lasts, at most `longest`.
    pub first: Duration,
    /// `max`: what no ban exceeds, and after what time without one it begins with `first` again.
    pub longest: Duration,
    pub key: BanKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BanKey {
    Ip,
    /// The client's address where a request has no account.
    Account,
}
