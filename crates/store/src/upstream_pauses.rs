//! The pauses that upstreams ask for, shared between gateways: each is an entry for as long as it lasts.
//!
//! They are kept as the entries of operators are, under names of their own, so that a flood of pauses takes no room
//! from bans and grants.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Store;
use super::operator_entries::{OperatorEntries, OperatorEntry, share_entries_by};
use super::script::operator::{self, OPERATOR_GROUP};
use sluicegate_base::clock::Now;
use sluicegate_http::upstream::UpstreamPause;

/// Maximum number of pauses that gateways tell each other; of further ones, each obeys those of its own responses.
const PAUSES_MAX: usize = 1_000;

/// The pauses that this gateway knows, and those that it has to tell.
#[derive(Default)]
pub struct SharedPauses {
    entries: OperatorEntries,
    /// Pauses that are to be told, [`PAUSES_MAX`] at most.
    queued: Mutex<Vec<SharedPause>>,
    /// Notified when there is a pause to tell.
    has_queued: Notify,
}

/// A pause of one upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPause {
    /// The name of the upstream.
    pub upstream: Arc<str>,
    /// The pause of one of its keys.
    pub pause: UpstreamPause,
}

// === impl SharedPauses ===

impl SharedPauses {
    /// Tells the other gateways of a pause, soon after; one too many is not told.
    pub fn tell_pause(&self, pause: SharedPause) {
        let mut queued = self.queued.lock();
        if queued.len() < PAUSES_MAX {
            queued.push(pause);
            self.has_queued.notify_one();
        }
    }

    /// The pauses that last, in no order.
    pub fn list_pauses(&self) -> Vec<SharedPause> {
        self.entries.list_living().iter().filter_map(SharedPause::parse_entry).collect()
    }

    async fn put_queued(&self) {
        loop {
            self.has_queued.notified().await;
            let queued = std::mem::take(&mut *self.queued.lock());
            for pause in queued {
                if self.entries.living_count() < PAUSES_MAX {
                    // It may have ended meanwhile.
                    let _ = pause.put_into(&self.entries);
                }
            }
        }
    }
}

/// Shares `pauses` through `store`, and calls `on_change` with all that last when they changed. Never returns. Run it
/// once, on the runtime of a single thread that is not a worker's.
pub async fn share_pauses(pauses: Arc<SharedPauses>, store: Arc<Store>, on_change: impl Fn(&[SharedPause])) {
    let call = store.script_caller(OPERATOR_GROUP, operator::operator_script());
    let prefix = format!("{}:stops", store.prefix());
    let on_change = |_: &[OperatorEntry]| on_change(&pauses.list_pauses());
    tokio::select! {
        () = share_entries_by(&pauses.entries, &prefix, call, on_change) => {}
        () = pauses.put_queued() => {}
    }
}

// === impl SharedPause ===

impl SharedPause {
    fn put_into(&self, entries: &OperatorEntries) -> Result<(), super::operator_entries::EntryFault> {
        let UpstreamPause { key_id, began, until, status } = self.pause;
        let name = format!("{}/{}", self.upstream, URL_SAFE_NO_PAD.encode(key_id.to_le_bytes()));
        let mut value = until.ns_since(began).to_le_bytes().to_vec();
        value.extend(status.to_le_bytes());
        // Entries that differ in little but their end count as one.
        value.extend(until.0.to_le_bytes());
        entries.put(name.as_bytes(), &value, until)
    }

    fn parse_entry(entry: &OperatorEntry) -> Option<SharedPause> {
        let (upstream, key) = str::from_utf8(&entry.name).ok()?.rsplit_once('/')?;
        let key_id = u128::from_le_bytes(URL_SAFE_NO_PAD.decode(key).ok()?.try_into().ok()?);
        let (span, rest) = entry.value.split_first_chunk()?;
        let (status, _) = rest.split_first_chunk()?;
        let began = Now(entry.until.0.saturating_sub(u64::from_le_bytes(*span)));
        let pause = UpstreamPause { key_id, began, until: entry.until, status: u16::from_le_bytes(*status) };
        Some(SharedPause { upstream: upstream.into(), pause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(key_id: u128, now: Now) -> SharedPause {
        let [began, until] = [now, Now(now.0 + 5_000_000_000)];
        SharedPause { upstream: "a/b".into(), pause: UpstreamPause { key_id, began, until, status: 429 } }
    }

    #[tokio::test]
    async fn pauses_are_told_up_to_a_bound() {
        let (pauses, now) = (SharedPauses::default(), Now::read_clock());
        let first = told(u128::MAX, now);
        pauses.tell_pause(first.clone());
        let put =
            async || tokio::time::timeout(std::time::Duration::from_millis(50), pauses.put_queued()).await;
        put().await.unwrap_err();
        assert_eq!(pauses.list_pauses(), [first]);
        (0..2_000).for_each(|id| pauses.tell_pause(told(id, now)));
        put().await.unwrap_err();
        assert_eq!(pauses.list_pauses().len(), PAUSES_MAX);
    }

    #[test]
    fn an_entry_that_is_no_pause_is_left_out() {
        let entry = |name: &[u8], value: &[u8]| {
            let entry = OperatorEntry { name: name.into(), value: value.into(), until: Now(9) };
            SharedPause::parse_entry(&entry)
        };
        let key = "AAAAAAAAAAAAAAAAAAAAAA";
        let pause = entry(format!("app/{key}").as_bytes(), &[255; 10]).unwrap();
        assert_eq!((pause.pause.began, pause.pause.until, pause.pause.key_id), (Now(0), Now(9), 0));
        for (name, value) in [(key.to_owned(), 18), (format!("app/{key}"), 9), ("app/short".to_owned(), 18)] {
            assert_eq!(entry(name.as_bytes(), &vec![0; value]), None, "{name}");
        }
        assert_eq!(entry(&[0xff, b'/'], &[0; 18]), None);
    }
}
