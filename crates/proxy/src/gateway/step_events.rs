//! The steps of quotas that keys reached: the last ones, and those that are still to be sent to the receiver of
//! `notify`.
//!
//! One list serves the whole process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use sluicegate_base::labelled::labelled_enum;

/// Events that are remembered.
const RECENT_MAX: usize = 100;
/// Events that wait for the receiver.
pub const WAITING_MAX: usize = 10_000;

/// A step that a key reached.
#[derive(Debug, Clone)]
pub struct StepEvent {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// The member `data` of the message; `key` and `text` may name the account.
    pub data: Map<String, Value>,
    /// The key for those who may not see names.
    pub masked_key: String,
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

/// The events of the process.
#[derive(Default)]
pub struct StepEvents {
    /// The newest first.
    recent: Mutex<VecDeque<Arc<StepEvent>>>,
    /// Those that the task of `notify` has not taken yet, the oldest first.
    untaken: Mutex<VecDeque<Arc<StepEvent>>>,
    /// What became of events, since the start; by [`NotifyResult`].
    pub results: [AtomicU64; NotifyResult::ALL.len()],
}

impl StepEvents {
    /// Remembers an event, and keeps it for the receiver; the oldest is dropped if too many wait.
    pub fn record(&self, event: StepEvent) {
        let event = Arc::new(event);
        let mut recent = self.recent.lock();
        recent.truncate(RECENT_MAX - 1);
        recent.push_front(event.clone());
        drop(recent);
        let mut untaken = self.untaken.lock();
        if untaken.len() == WAITING_MAX {
            untaken.pop_front();
            self.count_result(NotifyResult::Dropped);
        }
        untaken.push_back(event);
    }

    /// The last events, the newest first.
    pub fn list_recent(&self) -> Vec<Arc<StepEvent>> {
        self.recent.lock().iter().cloned().collect()
    }

    /// The events since the last call, the oldest first, at most [`WAITING_MAX`].
    pub fn take_new(&self) -> VecDeque<Arc<StepEvent>> {
        std::mem::take(&mut *self.untaken.lock())
    }

    /// Counts what became of an event.
    pub fn count_result(&self, result: NotifyResult) {
        self.results[result as usize].fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(limit: &str) -> StepEvent {
        let data = Map::from_iter([("limit".to_owned(), limit.into())]);
        StepEvent { unix_ms: 1, data, masked_key: "account=#00000000000000aa".to_owned() }
    }

    fn names(events: &StepEvents) -> Vec<String> {
        events.list_recent().iter().map(|event| event.data["limit"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_last_hundred_are_remembered() {
        let events = StepEvents::default();
        (0..250).for_each(|number| events.record(event(&number.to_string())));
        let expected: Vec<String> = (150..250).rev().map(|number: u32| number.to_string()).collect();
        assert_eq!(names(&events), expected);
        assert_eq!(events.results[NotifyResult::Dropped as usize].load(Relaxed), 0);
    }

    #[test]
    fn the_oldest_is_dropped_when_nobody_takes_them() {
        let events = StepEvents::default();
        (0..=WAITING_MAX).for_each(|number| events.record(event(&number.to_string())));
        let taken = events.take_new();
        assert_eq!((taken.len(), &taken[0].data["limit"]), (WAITING_MAX, &"1".into()), "0 was the oldest");
        assert_eq!(events.results[NotifyResult::Dropped as usize].load(Relaxed), 1);
        assert!(events.take_new().is_empty());
    }
}
