//! The concurrency slots that one worker holds in the store.
//!
//! Reports carry absolute numbers and a sequence number: a report may be lost, repeated or reordered, and the next
//! one corrects it. The numbers of a worker that is gone expire in the store. A worker that was paused for longer
//! reports them again when it resumes; until those requests end, more may be in flight than the limit allows.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::shared_limit::SharedLimit;
use super::{CallItem, SlotCount, SlotKey};

/// The slots of this worker by key; an entry exists while slots are held or a release is still to be reported.
#[derive(Default)]
pub struct WorkerSlots {
    inner: Mutex<WorkerSlotsInner>,
    /// Notified when there is a change to report.
    pub changed: Notify,
}

#[derive(Default)]
struct WorkerSlotsInner {
    by_key: HashMap<SlotKey, KeySlots>,
    /// Keys with a change that no report covers yet.
    unreported: Vec<SlotKey>,
    sequence: u64,
}

struct KeySlots {
    limit: Arc<SharedLimit>,
    rate: usize,
    /// Includes slots that are being asked for.
    slots: u64,
    /// The questions without an answer, by sequence number, and their slots.
    asked: SmallVec<[(u64, u64); 2]>,
    /// The number that the store may count.
    reported: u64,
    /// The sequence number of the report with that number.
    reported_sequence: u64,
    /// Reports in flight; until they are answered, the store may count their numbers.
    reports_in_flight: u32,
    is_unreported: bool,
}

/// A report of the slots that this worker holds of one key.
pub struct SlotReport {
    pub limit: Arc<SharedLimit>,
    pub rate: usize,
    pub slot_key: SlotKey,
    pub count: SlotCount,
}

// === impl WorkerSlots ===

impl WorkerSlots {
    /// Counts slots of a rate that are about to be asked for. Returns this worker's count and the slots that all
    /// workers of the process then hold.
    pub fn request_slots(
        &self,
        limit: &Arc<SharedLimit>,
        rate: usize,
        slot_key: SlotKey,
        slots: u64,
    ) -> (SlotCount, u64) {
        let in_process = limit.in_flight.add_slots(&slot_key, slots);
        let mut inner = self.inner.lock();
        let sequence = inner.next_sequence();
        let entry = inner.by_key.entry(slot_key).or_insert_with(|| KeySlots {
            limit: limit.clone(),
            rate,
            slots: 0,
            asked: SmallVec::new(),
            reported: 0,
            reported_sequence: 0,
            reports_in_flight: 0,
            is_unreported: false,
        });
        // After a reload its classes may have other places.
        (entry.limit, entry.rate) = (limit.clone(), rate);
        entry.slots = entry.slots.saturating_add(slots);
        entry.asked.push((sequence, slots));
        (entry.count(sequence), in_process)
    }

    /// The question with this sequence number is answered, or its answer is not waited for.
    pub fn end_asking(&self, slot_key: &SlotKey, sequence: u64) {
        if let Some(entry) = self.inner.lock().by_key.get_mut(slot_key) {
            entry.asked.retain(|(asked, _)| *asked != sequence);
        }
    }

    /// Notes that the store counts, or may count, `count`.
    pub fn mark_reported(&self, slot_key: &SlotKey, count: SlotCount) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.by_key.get_mut(slot_key) else { return };
        entry.apply_report(count);
        self.report_excess(inner, slot_key);
    }

    /// Ends a report that the store acknowledged, or else may not have received.
    pub fn finish_report(&self, report: &SlotReport, acknowledged: bool) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.by_key.get_mut(&report.slot_key) else { return };
        entry.reports_in_flight = entry.reports_in_flight.saturating_sub(1);
        if !acknowledged {
            // Reported again with the next heartbeat, and not forgotten before. Nobody knows whether slots are free,
            // and a waiter that asked at once would cause the next report at once: the next poll finds them.
            entry.reported = entry.reported.max(report.count.slots);
            return;
        }
        let frees = report.count.slots < entry.reported;
        entry.apply_report(report.count);
        self.report_excess(inner, &report.slot_key);
        if frees {
            report.limit.note_freed_slots(&report.slot_key);
        }
    }

    /// Tells the store soon of slots that it did not grant.
    pub fn report_held(&self, slot_key: &SlotKey) {
        self.queue_report(self.inner.lock(), slot_key);
    }

    /// Frees slots that a request gave back or did not get; the next report tells the store.
    pub fn release_slots(&self, slot_key: &SlotKey, slots: u64) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.by_key.get_mut(slot_key) else { return };
        entry.slots = entry.slots.saturating_sub(slots);
        entry.limit.in_flight.remove_slots(slot_key, slots);
        if entry.slots == entry.reported {
            return inner.forget_unless_held(slot_key);
        }
        self.queue_report(inner, slot_key);
    }

    /// Reports again after an answer, if the store counts slots that were released meanwhile.
    fn report_excess(&self, mut inner: MutexGuard<'_, WorkerSlotsInner>, slot_key: &SlotKey) {
        let counts_too_many = |entry: &KeySlots| entry.reported > entry.slots;
        if inner.by_key.get(slot_key).is_some_and(counts_too_many) {
            return self.queue_report(inner, slot_key);
        }
        inner.forget_unless_held(slot_key);
    }

    fn queue_report(&self, mut inner: MutexGuard<'_, WorkerSlotsInner>, slot_key: &SlotKey) {
        let Some(entry) = inner.by_key.get_mut(slot_key) else { return };
        if !std::mem::replace(&mut entry.is_unreported, true) {
            inner.unreported.push(*slot_key);
            drop(inner);
            self.changed.notify_one();
        }
    }

    /// The count of a question about so many more slots, which are not asked for yet.
    pub fn peek_slots(&self, slot_key: &SlotKey, slots: u64) -> SlotCount {
        let inner = self.inner.lock();
        let sequence = inner.sequence.saturating_add(1);
        let held = inner.by_key.get(slot_key).map(|entry| entry.count(sequence));
        let held = held.unwrap_or(SlotCount { oldest: sequence, sequence, ..SlotCount::default() });
        let more = |number: u64| number.saturating_add(slots);
        SlotCount { slots: more(held.slots), asked: more(held.asked), ..held }
    }

    /// Reports of changes, `max` at most.
    pub fn take_changes(&self, max: usize) -> Vec<SlotReport> {
        let mut inner = self.inner.lock();
        let from = inner.unreported.len().saturating_sub(max);
        let slot_keys: Vec<SlotKey> = inner.unreported.drain(from..).collect();
        slot_keys.iter().filter_map(|slot_key| inner.make_report(slot_key)).collect()
    }

    /// True if the store knows of every release.
    pub fn are_reported(&self) -> bool {
        self.inner.lock().by_key.values().all(|entry| entry.slots == entry.reported)
    }

    /// Reports of all slots that are held.
    pub fn report_all(&self) -> Vec<SlotReport> {
        let mut inner = self.inner.lock();
        inner.unreported.clear();
        let slot_keys: Vec<SlotKey> = inner.by_key.keys().copied().collect();
        slot_keys.iter().filter_map(|slot_key| inner.make_report(slot_key)).collect()
    }
}

// === impl WorkerSlotsInner ===

impl WorkerSlotsInner {
    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn make_report(&mut self, slot_key: &SlotKey) -> Option<SlotReport> {
        let sequence = self.next_sequence();
        let entry = self.by_key.get_mut(slot_key)?;
        entry.is_unreported = false;
        entry.reports_in_flight += 1;
        let count = entry.count(sequence);
        Some(SlotReport { limit: entry.limit.clone(), rate: entry.rate, slot_key: *slot_key, count })
    }

    fn forget_unless_held(&mut self, slot_key: &SlotKey) {
        let is_over = |entry: &KeySlots| {
            entry.slots == 0 && entry.reported == 0 && entry.reports_in_flight == 0 && !entry.is_unreported
        };
        if self.by_key.get(slot_key).is_some_and(is_over) {
            self.by_key.remove(slot_key);
        }
    }
}

// === impl KeySlots ===

impl KeySlots {
    fn count(&self, sequence: u64) -> SlotCount {
        let asked = self.asked.iter().map(|(_, slots)| slots).sum();
        let oldest = self.asked.first().map_or(sequence, |(oldest, _)| *oldest);
        SlotCount { slots: self.slots, asked, oldest, sequence, turn: None }
    }

    fn apply_report(&mut self, count: SlotCount) {
        // Reports may be answered out of order; the store goes by the latest.
        if count.sequence > self.reported_sequence {
            (self.reported, self.reported_sequence) = (count.slots, count.sequence);
        }
    }
}

// === impl SlotReport ===

impl SlotReport {
    pub fn to_item(&self) -> CallItem<'_> {
        let (rule, SlotKey { key, class, .. }) = (&self.limit.rules[self.rate], self.slot_key);
        CallItem { slot_count: self.count, class, ..CallItem::new(rule, key, 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedKey;
    use sluicegate_config as config;
    use sluicegate_model::{self as model, LimitId};

    fn limit() -> Arc<SharedLimit> {
        let text = "limits: { slots: { algorithm: concurrency, max_concurrent: 5 } }
locations: [{ path: /, limits: slots, respond: { status: 200 } }]";
        let config = config::parse(text, "test").unwrap().config;
        Arc::new(SharedLimit::new(LimitId(0), &config.limits[0], model::OnFailure::Local, 10))
    }

    const KEY: SlotKey = SlotKey { rule: 0, key: SharedKey([1; 16]), class: 0 };

    fn slots_of(reports: &[SlotReport]) -> Vec<u64> {
        reports.iter().map(|report| report.count.slots).collect()
    }

    #[test]
    fn held_slots_are_reported_until_none_is_left() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (first, second) =
            (slots.request_slots(&limit, 0, KEY, 1).0, slots.request_slots(&limit, 0, KEY, 2).0);
        assert_eq!((first.slots, second.slots), (1, 3));
        assert!(second.sequence > first.sequence);
        slots.mark_reported(&KEY, first);
        slots.mark_reported(&KEY, second);
        assert!(slots.take_changes(10).is_empty());
        slots.release_slots(&KEY, 1);
        slots.release_slots(&KEY, 1);
        let reports = slots.take_changes(10);
        assert_eq!(slots_of(&reports), [1]);
        assert_eq!(slots_of(&slots.report_all()), [1]);
        slots.release_slots(&KEY, 1);
        let reports = slots.take_changes(10);
        assert_eq!(slots_of(&reports), [0]);
        assert_eq!(slots_of(&slots.report_all()), [0], "as long as the store may count some");
        slots.finish_report(&reports[0], true);
        assert_eq!(slots_of(&slots.report_all()), [0], "as long as another report is in flight");
    }

    #[test]
    fn rejected_or_cancelled_slots_need_no_report() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        slots.request_slots(&limit, 0, KEY, 1);
        slots.release_slots(&KEY, 1);
        assert!(slots.take_changes(10).is_empty() && slots.report_all().is_empty());
    }

    #[test]
    fn slots_that_the_store_may_count_are_taken_back() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (count, _) = slots.request_slots(&limit, 0, KEY, 1);
        slots.mark_reported(&KEY, count);
        slots.release_slots(&KEY, 1);
        assert_eq!(slots_of(&slots.take_changes(10)), [0]);
    }

    #[test]
    fn a_report_that_counted_slots_rejected_since_is_corrected() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (count, _) = slots.request_slots(&limit, 0, KEY, 1);
        slots.mark_reported(&KEY, count);
        slots.request_slots(&limit, 0, KEY, 1);
        let reports = slots.report_all();
        slots.release_slots(&KEY, 1);
        assert!(slots.take_changes(10).is_empty(), "the store was not told of it yet");
        slots.finish_report(&reports[0], true);
        assert_eq!(slots_of(&slots.take_changes(10)), [1]);
    }

    #[test]
    fn a_late_answer_to_an_old_report_changes_nothing() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (old, new) = (slots.request_slots(&limit, 0, KEY, 1).0, slots.request_slots(&limit, 0, KEY, 1).0);
        slots.mark_reported(&KEY, new);
        slots.mark_reported(&KEY, old);
        slots.release_slots(&KEY, 2);
        let reports = slots.take_changes(10);
        assert_eq!(slots_of(&reports), [0]);
        slots.finish_report(&reports[0], true);
        slots.mark_reported(&KEY, old);
        assert!(slots.report_all().is_empty());
    }

    /// Two requests are rejected, and the report caused by the first still counts the second.
    #[test]
    fn an_overtaken_report_is_corrected() {
        for acknowledged in [true, false] {
            let (slots, limit) = (WorkerSlots::default(), limit());
            slots.request_slots(&limit, 0, KEY, 1);
            slots.request_slots(&limit, 0, KEY, 1);
            slots.release_slots(&KEY, 1);
            let reports = slots.take_changes(10);
            assert_eq!(slots_of(&reports), [1]);
            slots.release_slots(&KEY, 1);
            slots.finish_report(&reports[0], acknowledged);
            let next = if acknowledged { slots.take_changes(10) } else { slots.report_all() };
            assert_eq!(slots_of(&next), [0]);
            slots.finish_report(&next[0], true);
            assert!(slots.report_all().is_empty());
        }
    }

    /// One slot is released while the answer that counts it and another is on its way.
    #[test]
    fn an_answer_that_counts_too_many_is_corrected() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (first, _) = slots.request_slots(&limit, 0, KEY, 1);
        slots.mark_reported(&KEY, first);
        let (second, _) = slots.request_slots(&limit, 0, KEY, 1);
        slots.release_slots(&KEY, 1);
        assert!(slots.take_changes(10).is_empty());
        slots.mark_reported(&KEY, second);
        assert_eq!(slots_of(&slots.take_changes(10)), [1]);
    }
}
