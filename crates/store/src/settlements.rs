//! Charges in the store that still have to be corrected there, after their responses are over.
//!
//! A key has one call on its way at a time, under a sequence number: it is sent again until the store acknowledges it,
//! and the store runs each number once. While the store is away settlements wait here, up to a maximum.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::shared_limit::SharedLimit;
use super::{CallItem, SettleItem, SettledKey, SharedKey};
use sluicegate_base::calendar::Anchor;

/// Maximum number of settlements that wait in a worker; further ones are lost.
const SETTLEMENTS_MAX: usize = 65_536;

/// The settlements of one worker.
#[derive(Default)]
pub struct SettlementQueue {
    inner: Mutex<SettlementsInner>,
    /// All that are not acknowledged.
    count: AtomicUsize,
    /// Notified when there is something to send.
    pub(super) changed: Notify,
    /// Notified when a call has ended.
    progress: Notify,
}

#[derive(Default)]
struct SettlementsInner {
    by_key: HashMap<SharedKey, KeySettlements>,
    /// Keys to be settled that have no call on its way.
    due: VecDeque<SharedKey>,
    sequence: u64,
    /// The store answers, so that settlements that wait are sent at once.
    is_sending: bool,
}

#[derive(Default)]
struct KeySettlements {
    waiting: VecDeque<Arc<StoreSettlement>>,
    /// Settlements in the call on its way, until the store acknowledges it.
    sent: Vec<Arc<StoreSettlement>>,
    /// Sequence number of that call.
    sequence: u64,
}

/// A charge of one limit in the store, corrected from the reserved units to those that the response used.
pub struct StoreSettlement {
    /// The limit that was charged.
    pub limit: Arc<SharedLimit>,
    /// The key that was charged.
    pub key: SharedKey,
    /// The charged rates with the marks of their charges.
    pub marks: SmallVec<[(usize, u64); 2]>,
    /// Units that were charged before the response.
    pub reserved: u64,
    /// Units that the response used.
    pub used: u64,
    /// The response resets the used units of the key.
    pub forgets: bool,
    /// The date by which windows of its account begin.
    pub anchor: Option<Anchor>,
    /// The class of the request, where the limit has shares.
    pub class: u8,
}

/// Units of one rate to correct in the store: a refund of those that a request took and did not use, or a charge of
/// debts.
pub struct StoreUnits {
    /// The limit that counts the units.
    pub limit: Arc<SharedLimit>,
    /// The index of the rate in [`SharedLimit::rules`].
    pub rate: usize,
    /// The key that the units are counted under.
    pub key: SharedKey,
    /// The units to give back or to charge.
    pub cost: u64,
    /// The mark of the charge that is refunded; the sequence number of a charge of debts.
    pub mark: u64,
    /// The date by which windows of its account begin.
    pub anchor: Option<Anchor>,
    /// The class of the request, where the limit has shares.
    pub class: u8,
}

/// The settlements of one key in a call.
pub(super) struct SettlingKey {
    pub key: SharedKey,
    sequence: u64,
    settlements: Vec<Arc<StoreSettlement>>,
}

/// Something that sends calls about keys.
pub(super) trait KeyCalls {
    /// Ends the call about `key`, which the store acknowledged or else may not have run.
    fn end_call(&self, key: &SharedKey, acknowledged: bool);
}

/// Keys with a call on its way; on drop, the calls about the remaining ones end unacknowledged.
pub(super) struct KeysInFlight<'a, C: KeyCalls> {
    pub calls: &'a C,
    keys: Vec<SharedKey>,
}

// === impl SettlementQueue ===

impl SettlementQueue {
    /// Queues a settlement; if too many wait, it is lost. Those of leases need no call of their own.
    pub fn queue_settlement(&self, mut settlement: StoreSettlement) {
        let StoreSettlement { limit, key, marks, reserved, used, .. } = &mut settlement;
        marks.retain(|(rate, mark)| !limit.settle_leased(*rate, *key, *mark, (*reserved, *used)));
        if marks.is_empty() {
            return;
        }
        if self.count.load(Relaxed) >= SETTLEMENTS_MAX {
            return settlement.limit.count_lost();
        }
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let key = settlement.key;
        let own = inner.by_key.entry(key).or_insert_with(|| {
            inner.due.push_back(key);
            KeySettlements::default()
        });
        own.waiting.push_back(Arc::new(settlement));
        inner.is_sending = true;
        self.count.fetch_add(1, Relaxed);
        self.changed.notify_one();
    }

    /// True if all are acknowledged.
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Waits until nothing about `key` waits for another call to end, so that a question that follows on the same
    /// connection finds it settled. Returns at once while the store does not answer.
    pub async fn wait_sent(&self, key: &SharedKey) {
        while !self.is_empty() {
            let progress = self.progress.notified();
            let is_sent = {
                let inner = self.inner.lock();
                !inner.is_sending || inner.by_key.get(key).is_none_or(|own| own.waiting.is_empty())
            };
            if is_sent {
                return;
            }
            progress.await;
        }
    }

    /// About `most` settlements, less than twice as many. Their keys return to the queue only through
    /// [`KeysInFlight`], which must hold them.
    pub(super) fn take_due(&self, most: usize) -> Vec<SettlingKey> {
        let inner = &mut *self.inner.lock();
        let (mut taken, mut count) = (Vec::new(), 0);
        while count < most
            && let Some(key) = inner.due.pop_front()
        {
            let Some(own) = inner.by_key.get_mut(&key) else { continue };
            if own.sent.is_empty() {
                // Settlements that were sent before are repeated unchanged: the store may have run them.
                own.sent = own.waiting.drain(..own.waiting.len().min(most)).collect();
                inner.sequence += 1;
                own.sequence = inner.sequence;
            }
            count += own.sent.len();
            taken.push(SettlingKey { key, sequence: own.sequence, settlements: own.sent.clone() });
        }
        taken
    }

    /// A round of calls is over: tells those that wait for it. `answers`: the store does.
    pub(super) fn finish_round(&self, answers: bool) {
        let mut inner = self.inner.lock();
        inner.is_sending = answers && !inner.due.is_empty();
        drop(inner);
        self.progress.notify_waiters();
    }
}

impl KeyCalls for SettlementQueue {
    fn end_call(&self, key: &SharedKey, acknowledged: bool) {
        let inner = &mut *self.inner.lock();
        let Some(own) = inner.by_key.get_mut(key) else { return };
        if acknowledged {
            self.count.fetch_sub(own.sent.len(), Relaxed);
            own.sent.clear();
        }
        if own.sent.is_empty() && own.waiting.is_empty() {
            inner.by_key.remove(key);
        } else {
            inner.due.push_back(*key);
        }
    }
}

// === impl KeysInFlight ===

impl<C: KeyCalls> KeysInFlight<'_, C> {
    /// Equal keys stand in a row.
    pub(super) fn new(calls: &C, keys: impl Iterator<Item = SharedKey>) -> KeysInFlight<'_, C> {
        let mut keys: Vec<SharedKey> = keys.collect();
        keys.dedup();
        KeysInFlight { calls, keys }
    }

    /// Takes a key out; false if the call about it has ended.
    pub(super) fn take_key(&mut self, key: &SharedKey) -> bool {
        let index = self.keys.iter().position(|other| other == key);
        index.map(|index| self.keys.swap_remove(index)).is_some()
    }

    /// Ends the call about a key; a second time nothing happens.
    pub(super) fn finish_key(&mut self, key: &SharedKey, acknowledged: bool) {
        if self.take_key(key) {
            self.calls.end_call(key, acknowledged);
        }
    }
}

impl<C: KeyCalls> Drop for KeysInFlight<'_, C> {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.calls.end_call(key, false));
    }
}

// === impl SettlingKey ===

impl SettlingKey {
    pub(super) fn to_call(&self) -> SettledKey<'_> {
        let items = self.settlements.iter().flat_map(|settlement| {
            let StoreSettlement { limit, marks, reserved, used, forgets, anchor, class, .. } = &**settlement;
            marks.iter().map(move |(rate, mark)| SettleItem {
                rule: &limit.rules[*rate],
                mark: *mark,
                reserved: *reserved,
                used: *used,
                forgets: *forgets,
                anchor: *anchor,
                class: *class,
            })
        });
        SettledKey { key: self.key, sequence: self.sequence, items: items.collect() }
    }

    /// Counts the units that the store has forgiven: of the rates of a limit, those of the rate with most. `forgiven`
    /// comes from [`SettledKey::parse_reply`].
    pub(super) fn count_forgiven(&self, forgiven: &[Option<u64>]) {
        let mut rest = forgiven;
        for settlement in &self.settlements {
            let (own, later) = rest.split_at(settlement.marks.len().min(rest.len()));
            rest = later;
            let overrun = own.iter().flatten().copied().max().unwrap_or(0);
            settlement.limit.counts.overrun.fetch_add(overrun, Relaxed);
        }
    }
}

// === impl StoreUnits ===

impl StoreUnits {
    pub(super) fn entry_key(&self) -> ([u8; 16], u32) {
        (self.key.0, self.limit.rules[self.rate].id)
    }

    pub(super) fn to_item(&self) -> CallItem<'_> {
        let rule = &self.limit.rules[self.rate];
        let (mark, anchor, class) = (self.mark, self.anchor, self.class);
        CallItem { mark, anchor, class, ..CallItem::new(rule, self.key, self.cost) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_limit;
    use sluicegate_model::{Algorithm, LimitId, OnFailure, Rate, WindowAlign};

    fn limit() -> Arc<SharedLimit> {
        let rate = Rate::new(5.try_into().unwrap(), std::time::Duration::from_secs(60));
        let config = test_limit("a", Algorithm::FixedWindow { rates: vec![rate], align: WindowAlign::First });
        Arc::new(SharedLimit::new(LimitId(0), &config, OnFailure::Local, 10))
    }

    fn settlement(limit: &Arc<SharedLimit>, key: u8, used: u64) -> StoreSettlement {
        let marks = SmallVec::from_iter([(0, 7)]);
        StoreSettlement {
            limit: limit.clone(),
            key: SharedKey([key; 16]),
            marks,
            reserved: 1,
            used,
            forgets: false,
            anchor: None,
            class: 0,
        }
    }

    fn used(taken: &[SettlingKey]) -> Vec<(u8, u64, Vec<u64>)> {
        let units = |one: &SettlingKey| one.to_call().items.iter().map(|item| item.used).collect();
        taken.iter().map(|one| (one.key.0[0], one.sequence, units(one))).collect()
    }

    #[test]
    fn a_call_is_repeated_unchanged_until_it_is_acknowledged() {
        let (settlements, limit) = (SettlementQueue::default(), limit());
        settlements.queue_settlement(settlement(&limit, 1, 3));
        let first = settlements.take_due(9);
        assert_eq!(used(&first), [(1, 1, vec![3])]);
        settlements.queue_settlement(settlement(&limit, 1, 4));
        settlements.queue_settlement(settlement(&limit, 2, 5));
        let other = settlements.take_due(9);
        assert_eq!(used(&other), [(2, 2, vec![5])], "the first key has a call on its way");
        let hold = |taken: &[SettlingKey]| KeysInFlight::new(&settlements, taken.iter().map(|one| one.key));
        drop(hold(&first));
        let mut again = hold(&other);
        again.finish_key(&SharedKey([2; 16]), true);
        let repeated = settlements.take_due(9);
        assert_eq!(used(&repeated), used(&first));
        hold(&repeated).finish_key(&SharedKey([1; 16]), true);
        let second = settlements.take_due(9);
        assert_eq!(used(&second), [(1, 3, vec![4])]);
        assert!(!settlements.is_empty());
        hold(&second).finish_key(&SharedKey([1; 16]), true);
        assert!(settlements.is_empty() && settlements.take_due(9).is_empty());
    }

    #[test]
    fn too_many_are_lost_and_counted() {
        let (settlements, limit) = (SettlementQueue::default(), limit());
        for _ in 0..SETTLEMENTS_MAX + 3 {
            settlements.queue_settlement(settlement(&limit, 1, 1));
        }
        assert_eq!((settlements.count.load(Relaxed), limit.lost_count()), (SETTLEMENTS_MAX, 3));
    }
}
