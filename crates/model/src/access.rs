//! The typed model of IP sets, access rules and bans.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::upstream::StatusRanges;
use crate::value::scalars::Rate;

/// One of `ip_sets`.
#[derive(Debug, Clone)]
pub struct IpSetConfig {
    /// The name that lists of networks use; unique.
    pub name: String,
    /// The networks written in the file, and those of its list files.
    pub networks: Arc<[IpNet]>,
}

/// The networks and named sets of one field.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct NetworkList {
    /// The networks written in the field itself.
    pub written: Vec<IpNet>,
    /// Indices into [`crate::Config::ip_sets`].
    pub sets: Vec<usize>,
}

/// The `access` section: deny beats allow beats bypass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct AccessConfig {
    /// `None` = every address.
    pub allow: Option<NetworkList>,
    /// Addresses that get 403.
    pub deny: NetworkList,
    /// Addresses without limits and bans.
    pub bypass: NetworkList,
}

impl NetworkList {
    /// True if the list has neither networks nor sets, and so contains no address.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.sets.is_empty()
    }
}

/// The `bans` section, unless it is off.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BansConfig {
    /// Strikes within the period that start a ban; at most 10,000.
    pub after: Rate,
    /// `for`: the length of the first ban, at most `longest`.
    pub first: Duration,
    /// `max`: the length of the longest ban. After this time without a ban, the next one lasts `first` again.
    pub longest: Duration,
    /// The kind of caller that a ban stops.
    pub key: BanKey,
    /// The events that count as strikes.
    #[serde(default)]
    pub strikes: StrikeRules,
}

/// The events that count towards a ban.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrikeRules {
    /// Rejections by rates and queues.
    pub rejections: bool,
    /// Other responses, and rejections unless they count already.
    pub statuses: StatusRanges,
}

/// The callers that strikes are counted by, and that a ban stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BanKey {
    /// The client's address, by the prefix lengths of [`crate::ServerConfig`].
    Ip,
    /// Falls back to the client's address if a request has no account.
    Account,
}

// === impl StrikeRules ===

/// Rejections alone.
impl Default for StrikeRules {
    fn default() -> StrikeRules {
        StrikeRules { rejections: true, statuses: StatusRanges::default() }
    }
}
