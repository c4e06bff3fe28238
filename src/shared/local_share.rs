//! One gateway's share of a limit: what judges while the store does not, and goes on counting afterwards.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::base::clock::Now;
use crate::config;
use crate::config::LimitId;
use crate::limit::{Limit, Units};

/// The share, once it was needed. Its counters are kept until their windows end: another outage goes on where the one
/// before ended.
#[derive(Default)]
pub(super) struct LocalShare {
    portion: ArcSwapOption<SharePortion>,
    building: Mutex<()>,
}

/// The limit's numbers divided by so many gateways.
struct SharePortion {
    nodes: u64,
    limit: Arc<Limit>,
}

// === impl Share ===

impl LocalShare {
    /// The share of one of `nodes` gateways, whose numbers are `config`.
    pub(super) fn limit_for(
        &self,
        nodes: u64,
        config: impl FnOnce() -> config::LimitConfig,
        id: LimitId,
        keys_max: usize,
    ) -> Arc<Limit> {
        let is_same = |portion: &Arc<SharePortion>| portion.nodes == nodes;
        if let Some(portion) = self.portion.load_full().filter(is_same) {
            return portion.limit.clone();
        }
        let _building = self.building.lock();
        let before = self.portion.load_full();
        if let Some(portion) = before.clone().filter(is_same) {
            return portion.limit.clone();
        }
        let counted = before.as_ref().map(|before| &*before.limit);
        let limit = Arc::new(Limit::continue_from(counted, id, &config(), keys_max));
        limit.apply_params(&Now::read_clock);
        self.portion.store(Some(Arc::new(SharePortion { nodes, limit: limit.clone() })));
        limit
    }

    /// Units of a key that it counts now.
    pub(super) fn used_units(&self, rate: usize, units: &Units, now: Now) -> u64 {
        // Not while its numbers change.
        let _building = self.building.lock();
        let portion = self.portion.load();
        let Some(SharePortion { limit, .. }) = portion.as_deref() else { return 0 };
        let remaining = limit.peek_units(rate, &Units { cost: 1, ..*units }, now).remaining;
        limit.idle_capacity(rate).saturating_sub(remaining)
    }

    pub(super) fn current_limit(&self) -> Option<Arc<Limit>> {
        self.portion.load().as_ref().map(|portion| portion.limit.clone())
    }

    /// The gateways that it is divided by; `None` = it was not needed yet.
    pub(super) fn nodes(&self) -> Option<u64> {
        self.portion.load().as_ref().map(|portion| portion.nodes)
    }

    /// The share of a limit whose numbers have changed: it goes on counting where this one does. [`Share::apply`] must
    /// follow.
    pub(super) fn adopt_numbers(
        &self,
        id: LimitId,
        config: &config::LimitConfig,
        keys_max: usize,
    ) -> LocalShare {
        let share = LocalShare::default();
        if let Some(before) = self.portion.load_full() {
            let config = config.divide_among(before.nodes);
            let limit = Arc::new(Limit::continue_from(Some(&before.limit), id, &config, keys_max));
            share.portion.store(Some(Arc::new(SharePortion { nodes: before.nodes, limit })));
        }
        share
    }

    /// From now on its numbers count.
    pub(super) fn apply_numbers(&self, clock: &dyn Fn() -> Now) {
        if let Some(portion) = self.portion.load_full() {
            portion.limit.apply_params(clock);
        }
    }
}
