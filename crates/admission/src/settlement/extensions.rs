//! Units that limits take for a response while it streams, beyond those that its request reserved. Limits that cut
//! responses take them in parts; each part is settled like a reservation when the response is over.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{ChargeRecord, Limit, Units};
use sluicegate_store::{BackgroundTake, SharedKey, SharedLimit, StoreOutbox, StoreSettlement};

/// Most parts of a limit that are open at a time; beyond it the oldest is settled as used up.
const PARTS_MAX: usize = 128;
/// The part of a limit that a response takes ahead of its need, at most.
const PARTS_PER_LIMIT: u64 = 64;

/// The extensions of all reservations of one request.
#[derive(Default)]
pub(crate) struct Extensions(Vec<LimitExtension>);

/// The extension of a request's reservation of one limit.
#[derive(Default)]
pub(crate) struct LimitExtension {
    limit_index: u16,
    /// The oldest first.
    parts: VecDeque<ExtensionPart>,
    /// Units of all parts, those included that are settled already.
    pub held: u64,
    /// Units of parts that were settled as used up.
    closed: u64,
    /// Units that parts took without being charged: beyond a whole debt.
    pub forgiven: u64,
    /// The units that the store is asked for.
    pub asked: Option<BackgroundTake>,
    /// The request is for the rest that was left.
    pub takes_rest: bool,
    /// Nothing was left; until then nobody asks again.
    pub refused_until: Option<Now>,
    /// Units up to which the response goes on without being charged before its end.
    pub free_until: u64,
    /// Units that the reservation itself is settled to, once the parts are.
    base_used: Option<u64>,
}

/// Units that an extension takes at a time.
pub(crate) struct ExtensionPart {
    pub units: u64,
    pub source: PartSource,
}

/// The charges of a part, by rate.
pub(crate) type PartCharges = SmallVec<[(usize, ChargeRecord); 1]>;

/// The counters of the units of a part.
pub(crate) enum PartSource {
    /// Counters here; `debt`: those of a local share, which owes the units to the store.
    Counted { limit: Arc<Limit>, charges: PartCharges, debt: Option<OwedPart> },
    /// Counters in the store: the settlement of the part, whose units are set when they are known.
    Stored(StoreSettlement, Arc<StoreOutbox>),
}

/// The debt of a local share to the store.
#[derive(Clone)]
pub(crate) struct OwedPart {
    pub limit: Arc<SharedLimit>,
    pub key: SharedKey,
    pub units: Units,
    pub outbox: Arc<StoreOutbox>,
}

/// The units to take ahead of the need of a response that has used `used`: as many again, at most a 64th of
/// the limit.
pub(crate) fn part_size(used: u64, capacity: u64) -> u64 {
    used.min(capacity / PARTS_PER_LIMIT).max(1)
}

// === impl Extensions ===

impl Extensions {
    pub(crate) fn find(&mut self, limit_index: u16) -> Option<&mut LimitExtension> {
        self.0.iter_mut().find(|extension| extension.limit_index == limit_index)
    }

    pub(crate) fn find_or_add(&mut self, limit_index: u16) -> &mut LimitExtension {
        let found = self.0.iter().position(|extension| extension.limit_index == limit_index);
        let index = found.unwrap_or_else(|| {
            self.0.push(LimitExtension { limit_index, ..LimitExtension::default() });
            self.0.len() - 1
        });
        &mut self.0[index]
    }
}

// === impl LimitExtension ===

impl LimitExtension {
    /// Adds a part of the counter `key`.
    pub(crate) fn add_part(&mut self, part: ExtensionPart, key: &CounterKey, now: Now) {
        self.held = self.held.saturating_add(part.units);
        match self.parts.back_mut().filter(|last| last.source.is_same(&part.source)) {
            Some(last) => last.units = last.units.saturating_add(part.units),
            None => self.parts.push_back(part),
        }
        if self.parts.len() > PARTS_MAX
            && let Some(oldest) = self.parts.pop_front()
        {
            self.closed = self.closed.saturating_add(oldest.units);
            let units = oldest.units;
            oldest.settle(key, units, now);
        }
    }

    /// Settles all parts of a response that used `used` units, the newest first, and returns the units that are left
    /// for the reservation of `reserved` units.
    pub(crate) fn settle_parts(&mut self, key: &CounterKey, reserved: u64, used: u64, now: Now) -> u64 {
        // Units that the store still grants are given back.
        self.asked = None;
        if let Some(base_used) = self.base_used {
            return base_used;
        }
        let mut rest = used.saturating_sub(self.closed);
        if self.parts.is_empty() {
            return *self.base_used.insert(rest);
        }
        let base_used = rest.min(reserved);
        rest -= base_used;
        let mut settled: Vec<(ExtensionPart, u64)> = Vec::with_capacity(self.parts.len());
        for part in self.parts.drain(..) {
            let own = rest.min(part.units);
            rest -= own;
            settled.push((part, own));
        }
        if let Some((_, newest)) = settled.last_mut() {
            *newest = newest.saturating_add(rest);
        }
        for (part, own) in settled.into_iter().rev() {
            self.forgiven = self.forgiven.saturating_add(part.settle(key, own, now));
        }
        *self.base_used.insert(base_used)
    }
}

// === impl ExtensionPart ===

impl ExtensionPart {
    /// Corrects the part to the units that were used; returns those beyond a whole debt, where they are known.
    fn settle(self, key: &CounterKey, used: u64, now: Now) -> u64 {
        match self.source {
            PartSource::Counted { limit, charges, debt } => {
                let settle = |(rate, charge): &(usize, ChargeRecord)| {
                    let settle_debt =
                        || debt.iter().for_each(|debt| debt.settle_units(*rate, (self.units, used)));
                    // The share never counts less than the debt, as for the charge that it extends.
                    if used <= self.units {
                        settle_debt();
                    }
                    let overrun = limit.settle_charge(*rate, key, (self.units, used), charge, now);
                    if used > self.units {
                        settle_debt();
                    }
                    overrun
                };
                charges.iter().map(settle).max().unwrap_or(0)
            }
            PartSource::Stored(settlement, outbox) => {
                let settlement = StoreSettlement { reserved: self.units, used, ..settlement };
                outbox.settlements.queue_settlement(settlement);
                0
            }
        }
    }
}

// === impl PartSource ===

impl PartSource {
    /// True if both are settled as one charge.
    fn is_same(&self, other: &PartSource) -> bool {
        match (self, other) {
            (
                PartSource::Counted { limit, charges, .. },
                PartSource::Counted { limit: other, charges: others, .. },
            ) => {
                let mut pairs = charges.iter().zip(others);
                Arc::ptr_eq(limit, other)
                    && charges.len() == others.len()
                    && pairs.all(|(one, other)| one.0 == other.0 && one.1.is_settled_with(&other.1))
            }
            (PartSource::Stored(one, _), PartSource::Stored(other, _)) => {
                Arc::ptr_eq(&one.limit, &other.limit) && one.marks == other.marks
            }
            _ => false,
        }
    }
}

// === impl OwedPart ===

impl OwedPart {
    /// Owes so many more units of a rate.
    pub(crate) fn add_units(&self, rate: usize, cost: u64) {
        self.outbox.debts.open_debt(&self.limit, rate, self.key, &Units { cost, ..self.units });
    }

    fn settle_units(&self, rate: usize, corrected: (u64, u64)) {
        self.outbox.settle_debt(&self.limit, rate, self.key, &self.units, corrected);
    }
}
