//! The steps of quotas that keys reached: the last ones, and those that wait for the receiver of `notify`.
//!
//! One list serves the whole process. Workers add to it, the control thread sends what waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use sluicegate_base::labelled::labelled_enum;
use sluicegate_base::random::RandomNumbers;

/// Events that are remembered.
const RECENT_MAX: usize = 100;
/// Events that wait for the receiver.
pub const WAITING_MAX: usize = 10_000;

/// A step that a key reached.
#[derive(Debug, Clone)]
pub struct StepEvent {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// The name of the limit.
    pub limit: Arc<str>,
    /// The key by its name.
    pub key: String,
    /// The key for those who may not see names.
    pub masked_key: String,
    /// The member `data` of the message, with the key by its name.
    pub data: Map<String, Value>,
    /// The event as a sentence, which may name the account.
    pub text: String,
}

labelled_enum! {
    /// What became of an event that was meant for the receiver.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum NotifyResult: as_str -> &'static str {
        /// The receiver took it.
        Delivered = "delivered",
        /// The receiver did not take it for an hour.
        Failed = "failed",
        /// There was no room for it any more, or no receiver.
        Dropped = "dropped",
    }
}

/// An event on its way to the receiver.
#[derive(Debug)]
pub struct Delivery {
    /// Counts on with each event.
    number: u64,
    /// A random number, the same at each try.
    pub id: u128,
    /// The event itself.
    pub event: Arc<StepEvent>,
    /// The time of the next try.
    due: Instant,
    /// The start of the first try.
    pub first_try: Option<Instant>,
    /// Tries that have failed.
    pub failed_tries: u32,
}

/// The events of the process.
pub struct StepEvents {
    state: Mutex<State>,
    /// Notified when an event waits anew.
    added: Notify,
    results: [AtomicU64; NotifyResult::ALL.len()],
}

struct State {
    /// The newest first.
    recent: VecDeque<Arc<StepEvent>>,
    has_receiver: bool,
    next_number: u64,
    ids: RandomNumbers,
    /// What waits, by its number.
    waiting: BTreeMap<u64, Delivery>,
    /// The same by the time of the next try.
    by_due: BTreeSet<(Instant, u64)>,
}

impl Default for StepEvents {
    fn default() -> StepEvents {
        let state = State {
            recent: VecDeque::with_capacity(RECENT_MAX),
            has_receiver: false,
            next_number: 0,
            ids: RandomNumbers::seeded("step events"),
            waiting: BTreeMap::new(),
            by_due: BTreeSet::new(),
        };
        StepEvents { state: Mutex::new(state), added: Notify::new(), results: Default::default() }
    }
}

impl StepEvents {
    /// Remembers an event and, if there is a receiver, lets it wait to be sent; the oldest is dropped if too many wait.
    pub fn record(&self, event: StepEvent) {
        let (event, due) = (Arc::new(event), Instant::now());
        let mut state = self.state.lock();
        state.recent.truncate(RECENT_MAX - 1);
        state.recent.push_front(event.clone());
        if !state.has_receiver {
            return;
        }
        let id = u128::from(state.ids.next()) << 64 | u128::from(state.ids.next());
        let number = state.next_number;
        state.next_number += 1;
        let delivery = Delivery { number, id, event, due, first_try: None, failed_tries: 0 };
        let is_full = state.insert(delivery);
        drop(state);
        self.count_dropped(is_full.into());
        self.added.notify_one();
    }

    /// The last events, the newest first.
    pub fn list_recent(&self) -> Vec<Arc<StepEvent>> {
        self.state.lock().recent.iter().cloned().collect()
    }

    /// Says whether there is a receiver. Without one, whatever waits is dropped.
    pub fn set_receiver(&self, has_receiver: bool) {
        let mut state = self.state.lock();
        state.has_receiver = has_receiver;
        if !has_receiver {
            state.by_due.clear();
            let dropped = std::mem::take(&mut state.waiting);
            drop(state);
            self.count_dropped(dropped.len() as u64);
        }
    }

    /// Takes the event that is due first, by `now` at the latest.
    ///
    /// # Errors
    /// None is due; the time when the first of those that wait is, if any waits.
    pub fn take_due(&self, now: Instant) -> Result<Delivery, Option<Instant>> {
        let mut state = self.state.lock();
        let first = *state.by_due.first().ok_or(None)?;
        if first.0 > now {
            return Err(Some(first.0));
        }
        state.by_due.remove(&first);
        state.waiting.remove(&first.1).ok_or(None)
    }

    /// Lets an event that was taken wait again, until `due`.
    pub fn put_back(&self, delivery: Delivery, due: Instant) {
        let mut state = self.state.lock();
        // A reload may have removed the receiver meanwhile.
        let is_dropped = !state.has_receiver || state.insert(Delivery { due, ..delivery });
        drop(state);
        self.count_dropped(is_dropped.into());
    }

    /// Waits for an event that is recorded after the last such wait.
    pub async fn wait_added(&self) {
        self.added.notified().await;
    }

    /// The number of events that wait.
    pub fn count_waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Counts an event that left the list.
    pub fn count_result(&self, result: NotifyResult) {
        self.results[result as usize].fetch_add(1, Relaxed);
    }

    /// The number of events with this result, since the start.
    pub fn result_count(&self, result: NotifyResult) -> u64 {
        self.results[result as usize].load(Relaxed)
    }

    fn count_dropped(&self, count: u64) {
        self.results[NotifyResult::Dropped as usize].fetch_add(count, Relaxed);
    }
}

impl State {
    /// True if there was no more room, so that the oldest was dropped.
    fn insert(&mut self, delivery: Delivery) -> bool {
        self.by_due.insert((delivery.due, delivery.number));
        self.waiting.insert(delivery.number, delivery);
        if self.waiting.len() <= WAITING_MAX {
            return false;
        }
        if let Some((number, oldest)) = self.waiting.pop_first() {
            self.by_due.remove(&(oldest.due, number));
        }
        true
    }
}

impl StepEvent {
    /// The member `data` of messages, with `text` at its end; without names the key is masked and there is no text.
    pub fn data(&self, shows_names: bool) -> Map<String, Value> {
        let mut data = self.data.clone();
        if shows_names {
            data.insert("text".to_owned(), self.text.as_str().into());
        } else {
            data.shift_remove("text");
            data.insert("key".to_owned(), self.masked_key.as_str().into());
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn event(limit: &str) -> StepEvent {
        let Value::Object(data) = json!({ "limit": limit, "key": "account=acme", "used": 1 }) else {
            panic!()
        };
        let (key, masked_key) = ("account=acme".to_owned(), "account=#00000000000000aa".to_owned());
        StepEvent { unix_ms: 1, limit: limit.into(), key, masked_key, data, text: "acme did".to_owned() }
    }

    fn names(events: &StepEvents) -> Vec<String> {
        events.list_recent().iter().map(|event| event.limit.to_string()).collect()
    }

    #[test]
    fn the_last_hundred_are_remembered() {
        let events = StepEvents::default();
        (0..250).for_each(|number| events.record(event(&number.to_string())));
        let expected: Vec<String> = (150..250).rev().map(|number: u32| number.to_string()).collect();
        assert_eq!(names(&events), expected);
        assert_eq!(events.count_waiting(), 0, "there is no receiver");
        assert_eq!(events.result_count(NotifyResult::Dropped), 0);
    }

    #[test]
    fn without_names_neither_key_nor_text_shows_the_account() {
        let event = event("plan");
        let with = serde_json::to_string(&event.data(true)).unwrap();
        assert_eq!(with, r#"{"limit":"plan","key":"account=acme","used":1,"text":"acme did"}"#);
        let mut full = event.clone();
        full.data = event.data(true);
        for event in [&event, &full] {
            let without = serde_json::to_string(&event.data(false)).unwrap();
            assert_eq!(without, r#"{"limit":"plan","key":"account=#00000000000000aa","used":1}"#);
        }
        assert_eq!(full.data(true), full.data, "a text that is there stays where it is");
    }

    #[test]
    fn the_oldest_is_dropped_when_too_many_wait() {
        let events = StepEvents::default();
        events.set_receiver(true);
        (0..=WAITING_MAX).for_each(|number| events.record(event(&number.to_string())));
        assert_eq!(events.count_waiting(), WAITING_MAX);
        assert_eq!(events.result_count(NotifyResult::Dropped), 1);
        let now = Instant::now();
        let first = events.take_due(now).unwrap();
        assert_eq!(&*first.event.limit, "1", "0 was the oldest");
        // The one that is put back is still the oldest, although it is due last.
        events.put_back(first, now + Duration::from_secs(9));
        events.record(event("new"));
        assert_eq!((events.count_waiting(), events.result_count(NotifyResult::Dropped)), (WAITING_MAX, 2));
        let mut taken = 0;
        while let Ok(delivery) = events.take_due(now + Duration::from_secs(60)) {
            assert_ne!(&*delivery.event.limit, "1");
            taken += 1;
        }
        assert_eq!(taken, WAITING_MAX);
    }

    #[test]
    fn events_are_due_in_time_and_have_ids_of_their_own() {
        let events = StepEvents::default();
        events.set_receiver(true);
        events.record(event("a"));
        events.record(event("b"));
        let now = Instant::now();
        let a = events.take_due(now).unwrap();
        let (id, later) = (a.id, now + Duration::from_secs(4));
        events.put_back(a, later);
        let b = events.take_due(now).unwrap();
        assert_eq!((&*b.event.limit, b.id == id), ("b", false));
        assert_eq!(events.take_due(now).unwrap_err(), Some(later));
        assert_eq!(events.take_due(later).unwrap().id, id);
        assert_eq!(events.take_due(later).unwrap_err(), None);
        events.set_receiver(false);
        events.put_back(b, later);
        assert_eq!((events.count_waiting(), events.result_count(NotifyResult::Dropped)), (0, 1));
    }
}
