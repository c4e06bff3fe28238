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
use super::{Held, Item, SharedKey};
use crate::base::clock::Now;

/// The slots of one limit that the workers of this process hold, by rate and key: those that they ask for included, and
/// those that were admitted while the store did not answer.
#[derive(Default)]
pub(super) struct HeldSlots {
    own: Mutex<HashMap<Place, u64>>,
    /// Those of the process before, whose requests go on there until that moment at the latest.
    before: Mutex<(HashMap<Place, u64>, Now)>,
}

/// What this worker holds; entries exist while slots are held, or their end is still to be told.
#[derive(Default)]
pub struct Slots {
    inner: Mutex<Inner>,
    /// Something is to be told.
    pub changed: Notify,
}

#[derive(Default)]
struct Inner {
    held: HashMap<Place, Holding>,
    /// Those with a change that no word tells yet.
    untold: Vec<Place>,
    sequence: u64,
}

/// Whose slots they are, as the store knows it, whichever place the limit has in the configuration of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// [`super::Rule::id`].
    pub rule: u32,
    pub key: SharedKey,
}

struct Holding {
    limit: Arc<SharedLimit>,
    rate: usize,
    /// Those that are being asked for included.
    slots: u64,
    /// What the store may count.
    told: u64,
    /// The sequence number of that word.
    told_at: u64,
    /// Words under way; until they are answered the store may count what they say.
    under_way: u32,
    untold: bool,
}

/// Slots to be told.
pub struct Word {
    pub limit: Arc<SharedLimit>,
    pub rate: usize,
    pub place: Place,
    pub held: Held,
}

// === impl HeldSlots ===

impl HeldSlots {
    /// Answers how many are held then.
    fn add(&self, place: &Place, slots: u64) -> u64 {
        let mut held = self.own.lock();
        let held = held.entry(*place).or_default();
        *held = held.saturating_add(slots);
        *held
    }

    fn remove(&self, place: &Place, slots: u64) {
        let mut all = self.own.lock();
        let Some(held) = all.get_mut(place) else { return };
        *held = held.saturating_sub(slots);
        if *held == 0 {
            all.remove(place);
        }
    }

    pub(super) fn of(&self, place: &Place) -> u64 {
        self.own.lock().get(place).copied().unwrap_or(0)
    }

    pub(super) fn all(&self) -> Vec<(Place, u64)> {
        self.own.lock().iter().map(|(place, slots)| (*place, *slots)).collect()
    }

    /// Counts what another process holds as well, for `time`.
    pub(super) fn inherit(&self, slots: impl Iterator<Item = (Place, u64)>, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        *self.before.lock() = (slots.collect(), Now(Now::read().0.saturating_add(time_ns)));
    }

    /// Slots that the process before may still hold.
    pub(super) fn of_before(&self, place: &Place) -> u64 {
        let mut before = self.before.lock();
        if !before.0.is_empty() && before.1 <= Now::read() {
            before.0 = HashMap::new();
        }
        before.0.get(place).copied().unwrap_or(0)
    }
}

// === impl Slots ===

impl Slots {
    /// Counts slots of a rate that are about to be asked for; with those that all workers of the process hold then.
    pub fn begin(&self, limit: &Arc<SharedLimit>, rate: usize, place: Place, slots: u64) -> (Held, u64) {
        let in_process = limit.in_flight.add(&place, slots);
        let mut inner = self.inner.lock();
        let sequence = inner.next();
        let holding = inner.held.entry(place).or_insert_with(|| Holding {
            limit: limit.clone(),
            rate,
            slots: 0,
            told: 0,
            told_at: 0,
            under_way: 0,
            untold: false,
        });
        holding.slots = holding.slots.saturating_add(slots);
        (Held { slots: holding.slots, sequence }, in_process)
    }

    /// The store counts `word`, or might.
    pub fn told(&self, place: &Place, word: Held) {
        let mut inner = self.inner.lock();
        let Some(holding) = inner.held.get_mut(place) else { return };
        holding.hear(word);
        self.settle(inner, place);
    }

    /// A word was answered, or (`heard` is false) nobody knows whether the store heard it.
    pub fn answered(&self, word: &Word, heard: bool) {
        let mut inner = self.inner.lock();
        let Some(holding) = inner.held.get_mut(&word.place) else { return };
        holding.under_way = holding.under_way.saturating_sub(1);
        if heard {
            holding.hear(word.held);
            self.settle(inner, &word.place);
        } else {
            // Told again with the next heartbeat, and not forgotten before.
            holding.told = holding.told.max(word.held.slots);
        }
    }

    /// Slots are free again, or were refused; the store is told soon.
    pub fn leave(&self, place: &Place, slots: u64) {
        let mut inner = self.inner.lock();
        let Some(holding) = inner.held.get_mut(place) else { return };
        holding.slots = holding.slots.saturating_sub(slots);
        holding.limit.in_flight.remove(place, slots);
        if holding.slots == holding.told {
            return inner.forget_unless_held(place);
        }
        self.tell(inner, place);
    }

    /// After an answer: the store is told anew if it counts slots that have been left meanwhile.
    fn settle(&self, mut inner: MutexGuard<'_, Inner>, place: &Place) {
        let counts_too_many = |holding: &Holding| holding.told > holding.slots;
        if inner.held.get(place).is_some_and(counts_too_many) {
            return self.tell(inner, place);
        }
        inner.forget_unless_held(place);
    }

    fn tell(&self, mut inner: MutexGuard<'_, Inner>, place: &Place) {
        let Some(holding) = inner.held.get_mut(place) else { return };
        if !std::mem::replace(&mut holding.untold, true) {
            inner.untold.push(*place);
            drop(inner);
            self.changed.notify_one();
        }
    }

    /// Slots of a key that this worker holds or asks for.
    pub fn of(&self, place: &Place) -> u64 {
        self.inner.lock().held.get(place).map_or(0, |holding| holding.slots)
    }

    /// At most `max` words about what has changed.
    pub fn changes(&self, max: usize) -> Vec<Word> {
        let mut inner = self.inner.lock();
        let from = inner.untold.len().saturating_sub(max);
        let places: Vec<Place> = inner.untold.drain(from..).collect();
        places.iter().filter_map(|place| inner.word(place)).collect()
    }

    /// Whether the store has heard of all that is no longer held.
    pub fn are_told(&self) -> bool {
        self.inner.lock().held.values().all(|holding| holding.slots == holding.told)
    }

    /// Words about everything that is held.
    pub fn all(&self) -> Vec<Word> {
        let mut inner = self.inner.lock();
        inner.untold.clear();
        let places: Vec<Place> = inner.held.keys().copied().collect();
        places.iter().filter_map(|place| inner.word(place)).collect()
    }
}

// === impl Inner ===

impl Inner {
    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn word(&mut self, place: &Place) -> Option<Word> {
        let sequence = self.next();
        let holding = self.held.get_mut(place)?;
        holding.untold = false;
        holding.under_way += 1;
        let held = Held { slots: holding.slots, sequence };
        Some(Word { limit: holding.limit.clone(), rate: holding.rate, place: *place, held })
    }

    fn forget_unless_held(&mut self, place: &Place) {
        if self.held.get(place).is_some_and(Holding::is_over) {
            self.held.remove(place);
        }
    }
}

// === impl Holding ===

impl Holding {
    fn hear(&mut self, word: Held) {
        // Words may be answered out of order; the store goes by the latest.
        if word.sequence > self.told_at {
            (self.told, self.told_at) = (word.slots, word.sequence);
        }
    }

    fn is_over(&self) -> bool {
        self.slots == 0 && self.told == 0 && self.under_way == 0 && !self.untold
    }
}

// === impl Word ===

impl Word {
    pub fn item(&self) -> Item<'_> {
        let (rule, held) = (&self.limit.rules[self.rate], self.held);
        Item { rule, key: self.place.key, cost: 1, place: 0, dry_run: false, held, mark: 0, owed: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn limit() -> Arc<SharedLimit> {
        let text = "limits: { slots: { algorithm: concurrency, max_concurrent: 5 } }
locations: [{ path: /, limits: slots, respond: { status: 200 } }]";
        let config = config::parse(text, "test").unwrap().config;
        Arc::new(SharedLimit::new(0, &config.limits[0], config::OnFailure::Local, 10))
    }

    const PLACE: Place = Place { rule: 0, key: SharedKey([1; 16]) };

    fn slots_of(words: &[Word]) -> Vec<u64> {
        words.iter().map(|word| word.held.slots).collect()
    }

    #[test]
    fn what_is_held_is_told_until_nothing_is() {
        let (slots, limit) = (Slots::default(), limit());
        let (first, second) = (slots.begin(&limit, 0, PLACE, 1).0, slots.begin(&limit, 0, PLACE, 2).0);
        assert_eq!((first.slots, second.slots), (1, 3));
        assert!(second.sequence > first.sequence);
        slots.told(&PLACE, first);
        slots.told(&PLACE, second);
        assert!(slots.changes(10).is_empty());
        slots.leave(&PLACE, 1);
        slots.leave(&PLACE, 1);
        let words = slots.changes(10);
        assert_eq!(slots_of(&words), [1]);
        assert_eq!(slots_of(&slots.all()), [1]);
        slots.leave(&PLACE, 1);
        let words = slots.changes(10);
        assert_eq!(slots_of(&words), [0]);
        assert_eq!(slots_of(&slots.all()), [0], "as long as the store may count some");
        slots.answered(&words[0], true);
        assert_eq!(slots_of(&slots.all()), [0], "as long as another word is under way");
    }

    #[test]
    fn what_was_refused_or_never_asked_needs_no_word() {
        let (slots, limit) = (Slots::default(), limit());
        slots.begin(&limit, 0, PLACE, 1);
        slots.leave(&PLACE, 1);
        assert!(slots.changes(10).is_empty() && slots.all().is_empty());
    }

    #[test]
    fn what_the_store_may_count_is_taken_back() {
        let (slots, limit) = (Slots::default(), limit());
        let (held, _) = slots.begin(&limit, 0, PLACE, 1);
        slots.told(&PLACE, held);
        slots.leave(&PLACE, 1);
        assert_eq!(slots_of(&slots.changes(10)), [0]);
    }

    #[test]
    fn a_word_that_counted_what_was_refused_since_is_corrected() {
        let (slots, limit) = (Slots::default(), limit());
        let (held, _) = slots.begin(&limit, 0, PLACE, 1);
        slots.told(&PLACE, held);
        slots.begin(&limit, 0, PLACE, 1);
        let words = slots.all();
        slots.leave(&PLACE, 1);
        assert!(slots.changes(10).is_empty(), "the store was not told of it yet");
        slots.answered(&words[0], true);
        assert_eq!(slots_of(&slots.changes(10)), [1]);
    }

    #[test]
    fn a_late_answer_to_an_old_word_changes_nothing() {
        let (slots, limit) = (Slots::default(), limit());
        let (old, new) = (slots.begin(&limit, 0, PLACE, 1).0, slots.begin(&limit, 0, PLACE, 1).0);
        slots.told(&PLACE, new);
        slots.told(&PLACE, old);
        slots.leave(&PLACE, 2);
        let words = slots.changes(10);
        assert_eq!(slots_of(&words), [0]);
        slots.answered(&words[0], true);
        slots.told(&PLACE, old);
        assert!(slots.all().is_empty());
    }

    /// Two requests are refused, and the word that the first one caused still counts the second.
    #[test]
    fn a_word_that_was_overtaken_is_corrected() {
        for heard in [true, false] {
            let (slots, limit) = (Slots::default(), limit());
            slots.begin(&limit, 0, PLACE, 1);
            slots.begin(&limit, 0, PLACE, 1);
            slots.leave(&PLACE, 1);
            let words = slots.changes(10);
            assert_eq!(slots_of(&words), [1]);
            slots.leave(&PLACE, 1);
            slots.answered(&words[0], heard);
            let next = if heard { slots.changes(10) } else { slots.all() };
            assert_eq!(slots_of(&next), [0]);
            slots.answered(&next[0], true);
            assert!(slots.all().is_empty());
        }
    }

    /// One is left while the answer that counts it and another is on its way.
    #[test]
    fn an_answer_that_counts_too_many_is_corrected() {
        let (slots, limit) = (Slots::default(), limit());
        let (first, _) = slots.begin(&limit, 0, PLACE, 1);
        slots.told(&PLACE, first);
        let (second, _) = slots.begin(&limit, 0, PLACE, 1);
        slots.leave(&PLACE, 1);
        assert!(slots.changes(10).is_empty());
        slots.told(&PLACE, second);
        assert_eq!(slots_of(&slots.changes(10)), [1]);
    }
}
