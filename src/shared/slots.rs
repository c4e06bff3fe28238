//! The concurrency slots that one worker holds in the store.
//!
//! The store is told absolute numbers, each with a sequence number, so that a word may be lost, come twice or out of
//! order, and the next one heals it; a worker that is gone is forgotten when its numbers expire. One that was paused
//! for longer tells them again as it goes on: until those requests end, more may be in flight than the limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::shared_limit::SharedLimit;
use super::{CallItem, SharedKey, SlotCount};
use crate::base::clock::Now;

/// The slots of one limit that the workers of this process hold, by rate and key: those that they ask for included, and
/// those that were admitted while the store did not answer.
#[derive(Default)]
pub(super) struct ProcessSlots {
    own: Mutex<HashMap<SlotKey, u64>>,
    /// Those of the process before, whose requests go on there until that moment at the latest.
    before: Mutex<(HashMap<SlotKey, u64>, Now)>,
}

/// What this worker holds; entries exist while slots are held, or their end is still to be told.
#[derive(Default)]
pub struct WorkerSlots {
    inner: Mutex<WorkerSlotsInner>,
    /// Something is to be told.
    pub changed: Notify,
}

#[derive(Default)]
struct WorkerSlotsInner {
    by_key: HashMap<SlotKey, KeySlots>,
    /// Those with a change that no word tells yet.
    unreported: Vec<SlotKey>,
    sequence: u64,
}

/// Whose slots they are, as the store knows it, whichever place the limit has in the configuration of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotKey {
    /// [`super::Rule::id`].
    pub rule: u32,
    pub key: SharedKey,
}

struct KeySlots {
    limit: Arc<SharedLimit>,
    rate: usize,
    /// Those that are being asked for included.
    slots: u64,
    /// What the store may count.
    reported: u64,
    /// The sequence number of that word.
    reported_sequence: u64,
    /// Words under way; until they are answered the store may count what they say.
    reports_in_flight: u32,
    is_unreported: bool,
}

/// Slots to be told.
pub struct SlotReport {
    pub limit: Arc<SharedLimit>,
    pub rate: usize,
    pub slot_key: SlotKey,
    pub count: SlotCount,
}

// === impl HeldSlots ===

impl ProcessSlots {
    /// Answers how many are held then.
    fn add_slots(&self, place: &SlotKey, slots: u64) -> u64 {
        let mut held = self.own.lock();
        let held = held.entry(*place).or_default();
        *held = held.saturating_add(slots);
        *held
    }

    fn remove_slots(&self, place: &SlotKey, slots: u64) {
        let mut all = self.own.lock();
        let Some(held) = all.get_mut(place) else { return };
        *held = held.saturating_sub(slots);
        if *held == 0 {
            all.remove(place);
        }
    }

    pub(super) fn held_for(&self, place: &SlotKey) -> u64 {
        self.own.lock().get(place).copied().unwrap_or(0)
    }

    pub(super) fn all_held(&self) -> Vec<(SlotKey, u64)> {
        self.own.lock().iter().map(|(place, slots)| (*place, *slots)).collect()
    }

    /// Counts what another process holds as well, for `time`.
    pub(super) fn inherit_slots(&self, slots: impl Iterator<Item = (SlotKey, u64)>, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        *self.before.lock() = (slots.collect(), Now(Now::read_clock().0.saturating_add(time_ns)));
    }

    /// Slots that the process before may still hold.
    pub(super) fn held_before(&self, place: &SlotKey) -> u64 {
        let mut before = self.before.lock();
        if !before.0.is_empty() && before.1 <= Now::read_clock() {
            before.0 = HashMap::new();
        }
        before.0.get(place).copied().unwrap_or(0)
    }
}

// === impl Slots ===

impl WorkerSlots {
    /// Counts slots of a rate that are about to be asked for; with those that all workers of the process hold then.
    pub fn request_slots(
        &self,
        limit: &Arc<SharedLimit>,
        rate: usize,
        place: SlotKey,
        slots: u64,
    ) -> (SlotCount, u64) {
        let in_process = limit.in_flight.add_slots(&place, slots);
        let mut inner = self.inner.lock();
        let sequence = inner.next_sequence();
        let holding = inner.by_key.entry(place).or_insert_with(|| KeySlots {
            limit: limit.clone(),
            rate,
            slots: 0,
            reported: 0,
            reported_sequence: 0,
            reports_in_flight: 0,
            is_unreported: false,
        });
        holding.slots = holding.slots.saturating_add(slots);
        (SlotCount { slots: holding.slots, sequence }, in_process)
    }

    /// The store counts `word`, or might.
    pub fn mark_reported(&self, place: &SlotKey, word: SlotCount) {
        let mut inner = self.inner.lock();
        let Some(holding) = inner.by_key.get_mut(place) else { return };
        holding.apply_report(word);
        self.report_excess(inner, place);
    }

    /// A word was answered, or (`heard` is false) nobody knows whether the store heard it.
    pub fn finish_report(&self, word: &SlotReport, heard: bool) {
        let mut inner = self.inner.lock();
        let Some(holding) = inner.by_key.get_mut(&word.slot_key) else { return };
        holding.reports_in_flight = holding.reports_in_flight.saturating_sub(1);
        if heard {
            holding.apply_report(word.count);
            self.report_excess(inner, &word.slot_key);
        } else {
            // Told again with the next heartbeat, and not forgotten before.
            holding.reported = holding.reported.max(word.count.slots);
        }
    }

    /// Slots are free again, or were refused; the store is told soon.
    pub fn release_slots(&self, place: &SlotKey, slots: u64) {
        let mut inner = self.inner.lock();
        let Some(holding) = inner.by_key.get_mut(place) else { return };
        holding.slots = holding.slots.saturating_sub(slots);
        holding.limit.in_flight.remove_slots(place, slots);
        if holding.slots == holding.reported {
            return inner.forget_unless_held(place);
        }
        self.queue_report(inner, place);
    }

    /// After an answer: the store is told anew if it counts slots that have been left meanwhile.
    fn report_excess(&self, mut inner: MutexGuard<'_, WorkerSlotsInner>, place: &SlotKey) {
        let counts_too_many = |holding: &KeySlots| holding.reported > holding.slots;
        if inner.by_key.get(place).is_some_and(counts_too_many) {
            return self.queue_report(inner, place);
        }
        inner.forget_unless_held(place);
    }

    fn queue_report(&self, mut inner: MutexGuard<'_, WorkerSlotsInner>, place: &SlotKey) {
        let Some(holding) = inner.by_key.get_mut(place) else { return };
        if !std::mem::replace(&mut holding.is_unreported, true) {
            inner.unreported.push(*place);
            drop(inner);
            self.changed.notify_one();
        }
    }

    /// Slots of a key that this worker holds or asks for.
    pub fn held_for(&self, place: &SlotKey) -> u64 {
        self.inner.lock().by_key.get(place).map_or(0, |holding| holding.slots)
    }

    /// At most `max` words about what has changed.
    pub fn take_changes(&self, max: usize) -> Vec<SlotReport> {
        let mut inner = self.inner.lock();
        let from = inner.unreported.len().saturating_sub(max);
        let places: Vec<SlotKey> = inner.unreported.drain(from..).collect();
        places.iter().filter_map(|place| inner.make_report(place)).collect()
    }

    /// Whether the store has heard of all that is no longer held.
    pub fn are_reported(&self) -> bool {
        self.inner.lock().by_key.values().all(|holding| holding.slots == holding.reported)
    }

    /// Words about everything that is held.
    pub fn report_all(&self) -> Vec<SlotReport> {
        let mut inner = self.inner.lock();
        inner.unreported.clear();
        let places: Vec<SlotKey> = inner.by_key.keys().copied().collect();
        places.iter().filter_map(|place| inner.make_report(place)).collect()
    }
}

// === impl Inner ===

impl WorkerSlotsInner {
    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn make_report(&mut self, place: &SlotKey) -> Option<SlotReport> {
        let sequence = self.next_sequence();
        let holding = self.by_key.get_mut(place)?;
        holding.is_unreported = false;
        holding.reports_in_flight += 1;
        let held = SlotCount { slots: holding.slots, sequence };
        Some(SlotReport { limit: holding.limit.clone(), rate: holding.rate, slot_key: *place, count: held })
    }

    fn forget_unless_held(&mut self, place: &SlotKey) {
        if self.by_key.get(place).is_some_and(KeySlots::is_over) {
            self.by_key.remove(place);
        }
    }
}

// === impl Holding ===

impl KeySlots {
    fn apply_report(&mut self, word: SlotCount) {
        // Words may be answered out of order; the store goes by the latest.
        if word.sequence > self.reported_sequence {
            (self.reported, self.reported_sequence) = (word.slots, word.sequence);
        }
    }

    fn is_over(&self) -> bool {
        self.slots == 0 && self.reported == 0 && self.reports_in_flight == 0 && !self.is_unreported
    }
}

// === impl Word ===

impl SlotReport {
    pub fn to_item(&self) -> CallItem<'_> {
        let (rule, held) = (&self.limit.rules[self.rate], self.count);
        CallItem {
            rule,
            key: self.slot_key.key,
            cost: 1,
            limit_index: 0,
            dry_run: false,
            slot_count: held,
            mark: 0,
            owed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::config::LimitId;

    fn limit() -> Arc<SharedLimit> {
        let text = "limits: { slots: { algorithm: concurrency, max_concurrent: 5 } }
locations: [{ path: /, limits: slots, respond: { status: 200 } }]";
        let config = config::parse(text, "test").unwrap().config;
        Arc::new(SharedLimit::new(LimitId(0), &config.limits[0], config::OnFailure::Local, 10))
    }

    const PLACE: SlotKey = SlotKey { rule: 0, key: SharedKey([1; 16]) };

    fn slots_of(words: &[SlotReport]) -> Vec<u64> {
        words.iter().map(|word| word.count.slots).collect()
    }

    #[test]
    fn what_is_held_is_told_until_nothing_is() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (first, second) =
            (slots.request_slots(&limit, 0, PLACE, 1).0, slots.request_slots(&limit, 0, PLACE, 2).0);
        assert_eq!((first.slots, second.slots), (1, 3));
        assert!(second.sequence > first.sequence);
        slots.mark_reported(&PLACE, first);
        slots.mark_reported(&PLACE, second);
        assert!(slots.take_changes(10).is_empty());
        slots.release_slots(&PLACE, 1);
        slots.release_slots(&PLACE, 1);
        let words = slots.take_changes(10);
        assert_eq!(slots_of(&words), [1]);
        assert_eq!(slots_of(&slots.report_all()), [1]);
        slots.release_slots(&PLACE, 1);
        let words = slots.take_changes(10);
        assert_eq!(slots_of(&words), [0]);
        assert_eq!(slots_of(&slots.report_all()), [0], "as long as the store may count some");
        slots.finish_report(&words[0], true);
        assert_eq!(slots_of(&slots.report_all()), [0], "as long as another word is under way");
    }

    #[test]
    fn what_was_refused_or_never_asked_needs_no_word() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        slots.request_slots(&limit, 0, PLACE, 1);
        slots.release_slots(&PLACE, 1);
        assert!(slots.take_changes(10).is_empty() && slots.report_all().is_empty());
    }

    #[test]
    fn what_the_store_may_count_is_taken_back() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (held, _) = slots.request_slots(&limit, 0, PLACE, 1);
        slots.mark_reported(&PLACE, held);
        slots.release_slots(&PLACE, 1);
        assert_eq!(slots_of(&slots.take_changes(10)), [0]);
    }

    #[test]
    fn a_word_that_counted_what_was_refused_since_is_corrected() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (held, _) = slots.request_slots(&limit, 0, PLACE, 1);
        slots.mark_reported(&PLACE, held);
        slots.request_slots(&limit, 0, PLACE, 1);
        let words = slots.report_all();
        slots.release_slots(&PLACE, 1);
        assert!(slots.take_changes(10).is_empty(), "the store was not told of it yet");
        slots.finish_report(&words[0], true);
        assert_eq!(slots_of(&slots.take_changes(10)), [1]);
    }

    #[test]
    fn a_late_answer_to_an_old_word_changes_nothing() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (old, new) =
            (slots.request_slots(&limit, 0, PLACE, 1).0, slots.request_slots(&limit, 0, PLACE, 1).0);
        slots.mark_reported(&PLACE, new);
        slots.mark_reported(&PLACE, old);
        slots.release_slots(&PLACE, 2);
        let words = slots.take_changes(10);
        assert_eq!(slots_of(&words), [0]);
        slots.finish_report(&words[0], true);
        slots.mark_reported(&PLACE, old);
        assert!(slots.report_all().is_empty());
    }

    /// Two requests are refused, and the word that the first one caused still counts the second.
    #[test]
    fn a_word_that_was_overtaken_is_corrected() {
        for heard in [true, false] {
            let (slots, limit) = (WorkerSlots::default(), limit());
            slots.request_slots(&limit, 0, PLACE, 1);
            slots.request_slots(&limit, 0, PLACE, 1);
            slots.release_slots(&PLACE, 1);
            let words = slots.take_changes(10);
            assert_eq!(slots_of(&words), [1]);
            slots.release_slots(&PLACE, 1);
            slots.finish_report(&words[0], heard);
            let next = if heard { slots.take_changes(10) } else { slots.report_all() };
            assert_eq!(slots_of(&next), [0]);
            slots.finish_report(&next[0], true);
            assert!(slots.report_all().is_empty());
        }
    }

    /// One is left while the answer that counts it and another is on its way.
    #[test]
    fn an_answer_that_counts_too_many_is_corrected() {
        let (slots, limit) = (WorkerSlots::default(), limit());
        let (first, _) = slots.request_slots(&limit, 0, PLACE, 1);
        slots.mark_reported(&PLACE, first);
        let (second, _) = slots.request_slots(&limit, 0, PLACE, 1);
        slots.release_slots(&PLACE, 1);
        assert!(slots.take_changes(10).is_empty());
        slots.mark_reported(&PLACE, second);
        assert_eq!(slots_of(&slots.take_changes(10)), [1]);
    }
}
