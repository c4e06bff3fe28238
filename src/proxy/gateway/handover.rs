//! A gateway that takes the place of one in another process: what it is told, beside the counters, so that it goes on
//! as after a reload.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Gateway;
use crate::admission::ban::Bans;
use crate::base::clock::Now;
use crate::config::{self, LimitNumbers};
use crate::limit::Limit;
use crate::limit::snapshot::{SnapshotReader, SnapshotSource};
use crate::limit::table::persistent::SnapshotTable;
use crate::request::key::KeyHasher;
use crate::shared::StoreHandover;
use crate::upstream::SavedServer;

/// The numbers that counters are expressed in.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedNumbers {
    /// By the names of limits.
    limits: Vec<(String, LimitNumbers)>,
    bans: Option<config::BansConfig>,
}

/// A gateway whose counters go to another process, local shares of shared limits included.
pub struct HandoverCounters<'a> {
    gateway: &'a Gateway,
    shares: Vec<Arc<Limit>>,
}

/// The counters of a gateway, expressed in the numbers of the one before it.
struct PreviousCounters<'a> {
    gateway: &'a Gateway,
    /// For each limit; `None` = its numbers are the same.
    limits: Vec<Option<Limit>>,
    bans: Option<Bans>,
    shares: Vec<Arc<Limit>>,
}

// === impl Handover ===

impl<'a> HandoverCounters<'a> {
    pub fn for_gateway(gateway: &'a Gateway) -> HandoverCounters<'a> {
        HandoverCounters { gateway, shares: gateway.active_shares() }
    }
}

impl SnapshotSource for HandoverCounters<'_> {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        let mut kept = self.gateway.snapshot_tables();
        kept.extend(self.shares.iter().flat_map(|share| share.local_share_tables()));
        kept
    }
}

// === impl Gateway ===

impl Gateway {
    /// The numbers of its counters, for another process.
    pub fn known_numbers(&self) -> SavedNumbers {
        let limits = self.config.limits.iter().map(|limit| (limit.name.clone(), limit.numbers())).collect();
        SavedNumbers { limits, bans: self.config.bans.clone() }
    }

    /// What is known of shared limits, for another process, which charges what is owed from now on.
    pub fn known_store(&self) -> StoreHandover {
        let limits = self.shared.iter().flatten();
        self.store
            .as_ref()
            .map_or_else(StoreHandover::default, |store| StoreHandover::capture_from(store, limits))
    }

    /// Takes over what the process before knew of shared limits; [`Gateway::restore`] follows. Nobody uses the gateway
    /// yet.
    pub fn restore_store(&self, known: &StoreHandover) {
        if let Some(store) = &self.store {
            let limits: Vec<_> = self.shared.iter().flatten().collect();
            known.restore_into(store, &limits, self.server.timeouts.shutdown);
        }
    }

    fn active_shares(&self) -> Vec<Arc<Limit>> {
        self.shared.iter().flatten().filter_map(|limit| limit.existing_share()).collect()
    }

    /// What is known of all servers, for another process.
    pub fn known_servers(&self) -> Vec<SavedServer> {
        let now = Now::read_clock();
        self.upstreams.iter().flat_map(|upstream| upstream.save_servers(now)).collect()
    }

    /// Takes over what the process before knew of servers. Nobody uses the gateway yet.
    pub fn restore_servers(&self, known: &[SavedServer]) {
        let now = Now::read_clock();
        self.upstreams.iter().for_each(|upstream| upstream.restore_servers(known, now));
    }

    /// Takes over counters that were expressed in `known`, converted as by a reload; without, those whose numbers are
    /// the same. Nobody uses the gateway yet.
    pub fn restore_counters(&mut self, found: SnapshotReader, known: &SavedNumbers) {
        self.keys = KeyHasher::from_secret(found.secret);
        let before = PreviousCounters::in_previous_numbers(self, known);
        found.restore_into(&before);
        for (limit, before) in self.limits.iter().zip(&before.limits) {
            if before.is_some() {
                limit.apply_params(&Now::read_clock);
            }
        }
        if let Some(bans) = &self.bans {
            bans.count_restored(Now::read_clock());
        }
    }
}

// === impl CountersBefore ===

impl<'a> PreviousCounters<'a> {
    /// Counts in the tables of `gateway`, which are empty and expressed in the numbers before from now on.
    fn in_previous_numbers(gateway: &'a Gateway, known: &SavedNumbers) -> PreviousCounters<'a> {
        let max_keys = gateway.config.state.max_keys;
        let limit = |limit: &Limit| {
            let (_, numbers) = known.limits.iter().find(|(name, _)| *name == *limit.name)?;
            let config = limit.config.with_numbers(numbers);
            let has_changed = limit.config.numbers() != *numbers && !limit.rate_tables().is_empty();
            if !has_changed || !limit.is_continued_by(&config) {
                return None;
            }
            let before = Limit::continue_from(Some(limit), limit.id, &config, max_keys);
            before.apply_params(&Now::read_clock);
            Some(before)
        };
        let bans = gateway.bans.as_deref().zip(known.bans.as_ref()).map(|(bans, config)| {
            let shared = gateway.config.state.store == config::StoreConfig::Redis;
            Bans::adopt_from(Some(bans), config, max_keys, shared)
        });
        let limits = gateway.limits.iter().map(|one| limit(one)).collect();
        PreviousCounters { gateway, limits, bans, shares: gateway.active_shares() }
    }
}

impl SnapshotSource for PreviousCounters<'_> {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        let limits = self.gateway.limits.iter().zip(&self.limits);
        let mut kept: Vec<_> =
            limits.flat_map(|(limit, before)| before.as_ref().unwrap_or(limit).rate_tables()).collect();
        let bans = self.bans.as_ref().or(self.gateway.bans.as_deref());
        kept.extend(bans.and_then(Bans::saved_table));
        kept.extend(self.gateway.shared.iter().flatten().flat_map(|limit| limit.saved_tables()));
        kept.extend(self.shares.iter().flat_map(|share| share.local_share_tables()));
        kept
    }
}
