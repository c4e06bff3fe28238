//! One gateway's share of a limit: what judges while the store does not, and goes on counting afterwards.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::base::clock::Now;
use crate::config;
use crate::limit::{Limit, Units};

/// The share, once it was needed. Its counters are kept until their windows end: another outage goes on where the one
/// before ended.
#[derive(Default)]
pub(super) struct Share {
    now: ArcSwapOption<Portion>,
    building: Mutex<()>,
}

/// The limit's numbers divided by so many gateways.
struct Portion {
    nodes: u64,
    limit: Arc<Limit>,
}

// === impl Share ===

impl Share {
    /// The share of one of `nodes` gateways, whose numbers are `config`.
    pub(super) fn of(
        &self,
        nodes: u64,
        config: impl FnOnce() -> config::Limit,
        index: usize,
        keys_max: usize,
    ) -> Arc<Limit> {
        let is_same = |portion: &Arc<Portion>| portion.nodes == nodes;
        if let Some(portion) = self.now.load_full().filter(is_same) {
            return portion.limit.clone();
        }
        let _building = self.building.lock();
        let before = self.now.load_full();
        if let Some(portion) = before.clone().filter(is_same) {
            return portion.limit.clone();
        }
        let counted = before.as_ref().map(|before| &*before.limit);
        let limit = Arc::new(Limit::after(counted, index, &config(), keys_max));
        limit.apply(&Now::read);
        self.now.store(Some(Arc::new(Portion { nodes, limit: limit.clone() })));
        limit
    }

    /// Units of a key that it counts now.
    pub(super) fn used(&self, rate: usize, units: &Units, now: Now) -> u64 {
        // Not while its numbers change.
        let _building = self.building.lock();
        let portion = self.now.load();
        let Some(Portion { limit, .. }) = portion.as_deref() else { return 0 };
        let remaining = limit.peek(rate, &Units { cost: 1, ..*units }, now).remaining;
        limit.room(rate).saturating_sub(remaining)
    }

    pub(super) fn now(&self) -> Option<Arc<Limit>> {
        self.now.load().as_ref().map(|portion| portion.limit.clone())
    }

    /// The gateways that it is divided by; `None` = it was not needed yet.
    pub(super) fn nodes(&self) -> Option<u64> {
        self.now.load().as_ref().map(|portion| portion.nodes)
    }

    /// The share of a limit whose numbers have changed: it goes on counting where this one does. [`Share::apply`] must
    /// follow.
    pub(super) fn after(&self, index: usize, config: &config::Limit, keys_max: usize) -> Share {
        let share = Share::default();
        if let Some(before) = self.now.load_full() {
            let config = config.share_of(before.nodes);
            let limit = Arc::new(Limit::after(Some(&before.limit), index, &config, keys_max));
            share.now.store(Some(Arc::new(Portion { nodes: before.nodes, limit })));
        }
        share
    }

    /// From now on its numbers count.
    pub(super) fn apply(&self, clock: &dyn Fn() -> Now) {
        if let Some(portion) = self.now.load_full() {
            portion.limit.apply(clock);
        }
    }
}
