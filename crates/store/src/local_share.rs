//! This gateway's share of a limit, which judges while the store does not answer and keeps counting afterwards.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use sluicegate_base::clock::Now;
use sluicegate_limit::steps::StepNotes;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{self as model, LimitId};

/// The share, built when first needed. Its counters last until their windows end, so that another outage continues
/// where the previous one ended.
#[derive(Default)]
pub(super) struct LocalShare {
    portion: ArcSwapOption<SharePortion>,
    building: Mutex<()>,
}

/// A limit with its numbers divided among `nodes` gateways.
struct SharePortion {
    nodes: u64,
    limit: Arc<Limit>,
}

// === impl LocalShare ===

impl LocalShare {
    /// The share of one of `nodes` gateways, with the numbers of `config`.
    pub(super) fn limit_for(
        &self,
        nodes: u64,
        config: impl FnOnce() -> model::LimitConfig,
        (id, keys_max): (LimitId, usize),
        notes: &Arc<StepNotes>,
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
        let mut limit = Limit::continue_from(counted, id, &config(), keys_max);
        limit.step_notes = notes.clone();
        let limit = Arc::new(limit);
        limit.apply_numbers(&Now::read_clock);
        self.portion.store(Some(Arc::new(SharePortion { nodes, limit: limit.clone() })));
        limit
    }

    /// Units that it counts for a key now, those seeded from the store's answers included; the greatest number if it
    /// may have debt.
    pub(super) fn used_units(&self, rate: usize, units: &Units, now: Now) -> u64 {
        // Its numbers must not change meanwhile.
        let _building = self.building.lock();
        let portion = self.portion.load();
        let Some(SharePortion { limit, .. }) = portion.as_deref() else { return 0 };
        let remaining = limit.peek_units(rate, &Units { cost: 1, ..*units }, now).remaining;
        if remaining == 0 && limit.config.charge.is_some() {
            // There may be debt, too.
            return u64::MAX;
        }
        limit.idle_capacity(rate, units.key.class).saturating_sub(remaining)
    }

    pub(super) fn current_limit(&self) -> Option<Arc<Limit>> {
        self.portion.load().as_ref().map(|portion| portion.limit.clone())
    }

    /// The number of gateways that it is divided among; `None` before it was needed.
    pub(super) fn nodes(&self) -> Option<u64> {
        self.portion.load().as_ref().map(|portion| portion.nodes)
    }

    /// The share of the same limit after its numbers changed; it continues this one's counts.
    /// [`LocalShare::apply_numbers`] must follow.
    pub(super) fn with_numbers(
        &self,
        id: LimitId,
        config: &model::LimitConfig,
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

    /// Puts its numbers into force.
    pub(super) fn apply_numbers(&self, clock: &dyn Fn() -> Now) {
        if let Some(portion) = self.portion.load_full() {
            portion.limit.apply_numbers(clock);
        }
    }
}
