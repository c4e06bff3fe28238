//! A gateway that takes the place of one in another process: what it is told, beside the counters, so that it goes on
//! as after a reload.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Gateway;
use crate::admission::ban::Bans;
use crate::base::clock::Now;
use crate::config::{self, LimitNumbers};
use crate::limit::Limit;
use crate::limit::snapshot::{Found, Holds};
use crate::limit::table::saved::KeptTable;
use crate::request::key::Keys;
use crate::shared::KnownStore;
use crate::upstream::KnownServer;

/// The numbers that counters are expressed in.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownNumbers {
    /// By the names of limits.
    limits: Vec<(String, LimitNumbers)>,
    bans: Option<config::Bans>,
}

/// A gateway whose counters go to another process, local shares of shared limits included.
pub struct Handover<'a> {
    gateway: &'a Gateway,
    shares: Vec<Arc<Limit>>,
}

/// The counters of a gateway, expressed in the numbers of the one before it.
struct CountersBefore<'a> {
    gateway: &'a Gateway,
    /// For each limit; `None` = its numbers are the same.
    limits: Vec<Option<Limit>>,
    bans: Option<Bans>,
    shares: Vec<Arc<Limit>>,
}

// === impl Handover ===

impl<'a> Handover<'a> {
    pub fn of(gateway: &'a Gateway) -> Handover<'a> {
        Handover { gateway, shares: gateway.shares_begun() }
    }
}

impl Holds for Handover<'_> {
    fn kept(&self) -> Vec<KeptTable<'_>> {
        let mut kept = self.gateway.kept();
        kept.extend(self.shares.iter().flat_map(|share| share.kept_shares()));
        kept
    }
}

// === impl Gateway ===

impl Gateway {
    /// The numbers of its counters, for another process.
    pub fn known_numbers(&self) -> KnownNumbers {
        let limits = self.config.limits.iter().map(|limit| (limit.name.clone(), limit.numbers())).collect();
        KnownNumbers { limits, bans: self.config.bans.clone() }
    }

    /// What is known of shared limits, for another process, which charges what is owed from now on.
    pub fn known_store(&self) -> KnownStore {
        let limits = self.shared.iter().flatten();
        self.store.as_ref().map_or_else(KnownStore::default, |store| KnownStore::of(store, limits))
    }

    /// Takes over what the process before knew of shared limits; [`Gateway::restore`] follows. Nobody uses the gateway
    /// yet.
    pub fn meet_store(&self, known: &KnownStore) {
        if let Some(store) = &self.store {
            let limits: Vec<_> = self.shared.iter().flatten().collect();
            known.restore(store, &limits, self.server.timeouts.shutdown);
        }
    }

    fn shares_begun(&self) -> Vec<Arc<Limit>> {
        self.shared.iter().flatten().filter_map(|limit| limit.share_begun()).collect()
    }

    /// What is known of all servers, for another process.
    pub fn known_servers(&self) -> Vec<KnownServer> {
        let now = Now::read();
        self.upstreams.iter().flat_map(|upstream| upstream.known_servers(now)).collect()
    }

    /// Takes over what the process before knew of servers. Nobody uses the gateway yet.
    pub fn meet_servers(&self, known: &[KnownServer]) {
        let now = Now::read();
        self.upstreams.iter().for_each(|upstream| upstream.meet_servers(known, now));
    }

    /// Takes over counters that were expressed in `known`, converted as by a reload; without, those whose numbers are
    /// the same. Nobody uses the gateway yet.
    pub fn restore(&mut self, found: Found, known: &KnownNumbers) {
        self.keys = Keys::from_secret(found.secret);
        let before = CountersBefore::of(self, known);
        found.restore(&before);
        for (limit, before) in self.limits.iter().zip(&before.limits) {
            if before.is_some() {
                limit.apply(&Now::read);
            }
        }
        if let Some(bans) = &self.bans {
            bans.restored(Now::read());
        }
    }
}

// === impl CountersBefore ===

impl<'a> CountersBefore<'a> {
    /// Counts in the tables of `gateway`, which are empty and expressed in the numbers before from now on.
    fn of(gateway: &'a Gateway, known: &KnownNumbers) -> CountersBefore<'a> {
        let max_keys = gateway.config.state.max_keys;
        let limit = |limit: &Limit| {
            let (_, numbers) = known.limits.iter().find(|(name, _)| *name == *limit.name)?;
            let config = limit.config.with_numbers(numbers);
            let has_changed = limit.config.numbers() != *numbers && !limit.kept_rates().is_empty();
            if !has_changed || !limit.is_continued_by(&config) {
                return None;
            }
            let before = Limit::after(Some(limit), limit.index, &config, max_keys);
            before.apply(&Now::read);
            Some(before)
        };
        let bans = gateway.bans.as_deref().zip(known.bans.as_ref()).map(|(bans, config)| {
            let shared = gateway.config.state.store == config::Store::Redis;
            Bans::after(Some(bans), config, max_keys, shared)
        });
        let limits = gateway.limits.iter().map(|one| limit(one)).collect();
        CountersBefore { gateway, limits, bans, shares: gateway.shares_begun() }
    }
}

impl Holds for CountersBefore<'_> {
    fn kept(&self) -> Vec<KeptTable<'_>> {
        let limits = self.gateway.limits.iter().zip(&self.limits);
        let mut kept: Vec<_> =
            limits.flat_map(|(limit, before)| before.as_ref().unwrap_or(limit).kept_rates()).collect();
        let bans = self.bans.as_ref().or(self.gateway.bans.as_deref());
        kept.extend(bans.and_then(Bans::kept));
        kept.extend(self.gateway.shared.iter().flatten().flat_map(|limit| limit.kept()));
        kept.extend(self.shares.iter().flat_map(|share| share.kept_shares()));
        kept
    }
}
