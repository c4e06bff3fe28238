//! The stops that upstreams ask for, shared between gateways: each is an entry for as long as it lasts.
//!
//! They are kept as the entries of operators are, under names of their own, so that a flood of stops takes no room from
//! bans and grants.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Store;
use super::operator_entries::{OperatorEntries, OperatorEntry, share_entries_by};
use super::script::operator;
use super::script::operator::OPERATOR_GROUP;
use sluicegate_base::clock::Now;
use sluicegate_http::upstream::UpstreamPause;

/// Maximum number of stops that gateways tell each other; of further ones, each obeys those of its own responses.
const STOPS_MAX: usize = 1_000;

/// The stops that this gateway knows, and those that it has to tell.
#[derive(Default)]
pub struct SharedStops {
    entries: OperatorEntries,
    /// Stops that are to be told, [`STOPS_MAX`] at most.
    queued: Mutex<Vec<SharedStop>>,
    /// Notified when there is a stop to tell.
    has_queued: Notify,
}

/// A stop of one upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedStop {
    pub upstream: Arc<str>,
    pub stop: UpstreamPause,
}

// === impl SharedStops ===

impl SharedStops {
    /// Tells the other gateways of a stop, soon after; one too many is not told.
    pub fn tell_stop(&self, stop: SharedStop) {
        let mut queued = self.queued.lock();
        if queued.len() < STOPS_MAX {
            queued.push(stop);
            self.has_queued.notify_one();
        }
    }

    /// The stops that last, in no order.
    pub fn list_stops(&self) -> Vec<SharedStop> {
        self.entries.list_living().iter().filter_map(SharedStop::parse_entry).collect()
    }

    async fn put_queued(&self) {
        loop {
            self.has_queued.notified().await;
            let queued = std::mem::take(&mut *self.queued.lock());
            for stop in queued {
                if self.entries.living_count() < STOPS_MAX {
                    // It may have ended meanwhile.
                    let _ = stop.put_into(&self.entries);
                }
            }
        }
    }
}

/// Shares `stops` through `store`, and calls `on_change` with all that last when they changed. Never returns. Run it
/// once, on the runtime of a single thread that is not a worker's.
pub async fn share_stops(stops: Arc<SharedStops>, store: Arc<Store>, on_change: impl Fn(&[SharedStop])) {
    let call = store.script_caller(OPERATOR_GROUP, operator::operator_script());
    let prefix = format!("{}:stops", store.prefix());
    let on_change = |living: &[OperatorEntry]| {
        let living: Vec<SharedStop> = living.iter().filter_map(SharedStop::parse_entry).collect();
        on_change(&living);
    };
    tokio::select! {
        () = share_entries_by(&stops.entries, &prefix, call, on_change) => {}
        () = stops.put_queued() => {}
    }
}

// === impl SharedStop ===

impl SharedStop {
    fn put_into(&self, entries: &OperatorEntries) -> Result<(), super::operator_entries::EntryFault> {
        let UpstreamPause { key_id, began, until, status } = self.stop;
        let name = format!("{}/{}", self.upstream, URL_SAFE_NO_PAD.encode(key_id.to_le_bytes()));
        let mut value = until.ns_since(began).to_le_bytes().to_vec();
        value.extend(status.to_le_bytes());
        // Entries that differ in little but their end count as one.
        value.extend(until.0.to_le_bytes());
        entries.put(name.as_bytes(), &value, until)
    }

    fn parse_entry(entry: &OperatorEntry) -> Option<SharedStop> {
        let (upstream, key) = str::from_utf8(&entry.name).ok()?.rsplit_once('/')?;
        let key_id = u128::from_le_bytes(URL_SAFE_NO_PAD.decode(key).ok()?.try_into().ok()?);
        let (span, rest) = entry.value.split_first_chunk()?;
        let (status, _) = rest.split_first_chunk()?;
        let began = Now(entry.until.0.saturating_sub(u64::from_le_bytes(*span)));
        let stop = UpstreamPause { key_id, began, until: entry.until, status: u16::from_le_bytes(*status) };
        Some(SharedStop { upstream: upstream.into(), stop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(key_id: u128, now: Now) -> SharedStop {
        let [began, until] = [now, Now(now.0 + 5_000_000_000)];
        SharedStop { upstream: "a/b".into(), stop: UpstreamPause { key_id, began, until, status: 429 } }
    }

    #[tokio::test]
    async fn stops_are_told_up_to_a_bound() {
        let (stops, now) = (SharedStops::default(), Now::read_clock());
        let first = told(u128::MAX, now);
        stops.tell_stop(first.clone());
        let put =
            async || tokio::time::timeout(std::time::Duration::from_millis(50), stops.put_queued()).await;
        put().await.unwrap_err();
        assert_eq!(stops.list_stops(), [first]);
        (0..2_000).for_each(|id| stops.tell_stop(told(id, now)));
        put().await.unwrap_err();
        assert_eq!(stops.list_stops().len(), STOPS_MAX);
    }

    #[test]
    fn an_entry_that_is_no_stop_is_left_out() {
        let entry = |name: &[u8], value: &[u8]| {
            let entry = OperatorEntry { name: name.into(), value: value.into(), until: Now(9) };
            SharedStop::parse_entry(&entry)
        };
        let key = "AAAAAAAAAAAAAAAAAAAAAA";
        let stop = entry(format!("app/{key}").as_bytes(), &[255; 10]).unwrap();
        assert_eq!((stop.stop.began, stop.stop.until, stop.stop.key_id), (Now(0), Now(9), 0));
        for (name, value) in [(key.to_owned(), 18), (format!("app/{key}"), 9), ("app/short".to_owned(), 18)] {
            assert_eq!(entry(name.as_bytes(), &vec![0; value]), None, "{name}");
        }
        assert_eq!(entry(&[0xff, b'/'], &[0; 18]), None);
    }
}
