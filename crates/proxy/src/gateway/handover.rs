//! Handover of a gateway to another process: counters, the numbers they are expressed in, and the knowledge of servers
//! and shared limits, so that the successor continues as after a reload.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Gateway, adopt};
use sluicegate_admission::ban::Bans;
use sluicegate_base::clock::Now;
use sluicegate_http::request::key::KeyHasher;
use sluicegate_http::upstream::SavedServer;
use sluicegate_limit::Limit;
use sluicegate_limit::snapshot::{SnapshotReader, SnapshotSource};
use sluicegate_limit::table::persistent::SnapshotTable;
use sluicegate_model::{self as model, LimitNumbers};
use sluicegate_store::StoreHandover;

/// The numbers that counters are expressed in.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedNumbers {
    /// The numbers by the names of limits.
    limits: Vec<(String, LimitNumbers)>,
    bans: Option<model::BansConfig>,
}

/// The counters that another process takes over, local shares of shared limits included.
pub struct HandoverCounters<'a> {
    gateway: &'a Gateway,
    shares: Vec<Arc<Limit>>,
}

/// The counters of a gateway, expressed in the numbers of the previous one.
struct PreviousCounters<'a> {
    gateway: &'a Gateway,
    /// One for each limit; `None` = its numbers are the same.
    limits: Vec<Option<Limit>>,
    bans: Option<Bans>,
    shares: Vec<Arc<Limit>>,
}

// === impl HandoverCounters ===

impl<'a> HandoverCounters<'a> {
    /// The counters of `gateway`, with the local shares that exist now.
    pub fn for_gateway(gateway: &'a Gateway) -> HandoverCounters<'a> {
        HandoverCounters { gateway, shares: gateway.active_shares() }
    }
}

impl SnapshotSource for HandoverCounters<'_> {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        let mut tables = self.gateway.snapshot_tables();
        tables.extend(self.shares.iter().flat_map(|share| share.local_share_tables()));
        tables
    }
}

// === impl Gateway ===

impl Gateway {
    /// The parameters of limits and bans that the counters are expressed in, for another process.
    pub fn save_limit_params(&self) -> SavedNumbers {
        let limits = self.config.limits.iter().map(|limit| (limit.name.clone(), limit.numbers())).collect();
        SavedNumbers { limits, bans: self.config.bans.clone() }
    }

    /// The knowledge of shared limits, for another process, which charges the debts from then on.
    pub fn known_store(&self) -> StoreHandover {
        let limits = self.shared.iter().flatten();
        self.store
            .as_ref()
            .map_or_else(StoreHandover::default, |store| StoreHandover::capture_from(store, limits))
    }

    /// Adopts the previous process's knowledge of shared limits, before the gateway is used;
    /// [`Gateway::restore_counters`] follows.
    pub fn restore_store(&self, saved: &StoreHandover) {
        if let Some(store) = &self.store {
            let limits: Vec<_> = self.shared.iter().flatten().collect();
            saved.restore_into(store, &limits, self.config.server.timeouts.shutdown);
        }
    }

    fn active_shares(&self) -> Vec<Arc<Limit>> {
        self.shared.iter().flatten().filter_map(|limit| limit.existing_share()).collect()
    }

    /// The knowledge of all servers, for another process.
    pub fn known_servers(&self) -> Vec<SavedServer> {
        let now = Now::read_clock();
        self.upstreams.iter().flat_map(|upstream| upstream.save_servers(now)).collect()
    }

    /// Adopts the previous process's knowledge of servers, before the gateway is used.
    pub fn restore_servers(&self, saved: &[SavedServer]) {
        let now = Now::read_clock();
        self.upstreams.iter().for_each(|upstream| upstream.restore_servers(saved, now));
    }

    /// Adopts counters that are expressed in the numbers `saved`, and converts them as a reload does, before the
    /// gateway is used. Of limits without saved numbers, only counters with unchanged numbers are adopted.
    pub fn restore_counters(&mut self, snapshot: SnapshotReader, saved: &SavedNumbers) {
        self.keys = KeyHasher::from_secret(snapshot.secret);
        // Names of keys are the same hashes as before the restart, and cookies are known.
        self.secret = adopt::find_secret(self.store.as_deref(), &self.keys);
        self.sticky = adopt::build_sticky(&self.config, self.secret);
        if let Ok(log) = adopt::open_access_log(&self.config, Some(self), self.secret) {
            self.tracer = adopt::build_tracer(&self.config, &log, Some(self));
            self.access_log = log;
        }
        let previous = PreviousCounters::in_previous_numbers(self, saved);
        snapshot.restore_into(&previous);
        for (limit, previous) in self.limits.iter().zip(&previous.limits) {
            if previous.is_some() {
                limit.apply_numbers(&Now::read_clock);
            }
        }
        if let Some(bans) = &self.bans {
            bans.count_restored(Now::read_clock());
        }
        for pushback in self.upstreams.iter().filter_map(|upstream| upstream.pushback.as_ref()) {
            pushback.pauses().count_restored();
        }
    }
}

// === impl PreviousCounters ===

impl<'a> PreviousCounters<'a> {
    /// Uses the tables of `gateway`, which are still empty, and expresses them in the numbers `saved`.
    fn in_previous_numbers(gateway: &'a Gateway, saved: &SavedNumbers) -> PreviousCounters<'a> {
        let max_keys = gateway.config.state.max_keys;
        let limit = |limit: &Limit| {
            let (_, numbers) = saved.limits.iter().find(|(name, _)| *name == *limit.name)?;
            let config = limit.config.with_numbers(numbers);
            let has_changed = limit.config.numbers() != *numbers && !limit.rate_tables().is_empty();
            if !has_changed || !limit.is_continued_by(&config) {
                return None;
            }
            let previous = Limit::continue_from(Some(limit), limit.id, &config, max_keys);
            previous.apply_numbers(&Now::read_clock);
            Some(previous)
        };
        let bans = gateway.bans.as_deref().zip(saved.bans.as_ref()).map(|(bans, config)| {
            let shared = gateway.config.state.store != model::StoreConfig::Local;
            Bans::adopt_from(Some(bans), config, max_keys, shared)
        });
        let limits = gateway.limits.iter().map(|own| limit(own)).collect();
        PreviousCounters { gateway, limits, bans, shares: gateway.active_shares() }
    }
}

impl SnapshotSource for PreviousCounters<'_> {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        let limits = self.gateway.limits.iter().zip(&self.limits);
        let mut tables: Vec<_> =
            limits.flat_map(|(limit, previous)| previous.as_ref().unwrap_or(limit).rate_tables()).collect();
        let bans = self.bans.as_ref().or(self.gateway.bans.as_deref());
        tables.extend(bans.and_then(Bans::saved_table));
        tables.extend(self.gateway.shared.iter().flatten().flat_map(|limit| limit.saved_tables()));
        tables.extend(self.gateway.upstreams.iter().filter_map(|upstream| upstream.saved_pauses()));
        tables.push(self.gateway.calls.throttles.saved_table());
        tables.extend(self.shares.iter().flat_map(|share| share.local_share_tables()));
        tables
    }
}
