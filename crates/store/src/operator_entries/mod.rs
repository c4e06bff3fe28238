//! Named entries that operators make on one gateway and that all gateways learn: bans, grants, resets.
//!
//! A change acts here at once and is queued for the store, which gives each change a revision. The task of
//! [`share_entries`] sends it, learns the changes of other gateways, and reports the whole set when it changed. While
//! the store is away changes wait here; the last one of each name is sent. A store that lost its memory gets the
//! entries that this gateway knows, unless it knows a later change of the same name.

mod entry_set;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::script::operator::{self, OPERATOR_GROUP};
use crate::{PackedCall, Store, StoreFault};
use entry_set::EntrySet;
use sluicegate_base::clock::Now;

/// The store is polled at least this often; a random jitter keeps gateways from polling all at once.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLL_JITTER_MS: u64 = 100;
/// The pause between two calls that send more changes than one call holds.
const SEND_INTERVAL: Duration = Duration::from_millis(10);

/// The entries as this process knows them. They survive a reload, and a change of the store.
#[derive(Default)]
pub struct OperatorEntries {
    set: Mutex<EntrySet>,
    /// Notified when there is a change to send and to report.
    changed: Notify,
}

/// One living entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorEntry {
    /// The name, by which a later change replaces or deletes the entry.
    pub name: Arc<[u8]>,
    /// The value, in a form that the entry's kind defines.
    pub value: Arc<[u8]>,
    /// The moment at which the entry ends.
    pub until: Now,
}

/// The reason why a change was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    /// The name is empty or too long.
    #[error("the name is empty or too long")]
    Name,
    /// The value is too long.
    #[error("the value is too long")]
    Value,
    /// The end of the entry has passed already.
    #[error("the end has passed already")]
    Ended,
    /// Too many entries live, or too many deletions wait for the store.
    #[error("there are too many entries")]
    Full,
}

// === impl OperatorEntries ===

impl OperatorEntries {
    /// Puts an entry here and, through the store, on all gateways; it replaces the one of this name.
    ///
    /// # Errors
    /// The entry is not valid, or there are too many.
    pub fn put(&self, name: &[u8], value: &[u8], until: Now) -> Result<(), EntryFault> {
        self.put_all(&[OperatorEntry { name: name.into(), value: value.into(), until }])
    }

    /// Puts all of these entries, or none.
    ///
    /// # Errors
    /// One is not valid, or there are too many.
    pub fn put_all(&self, entries: &[OperatorEntry]) -> Result<(), EntryFault> {
        self.set.lock().put_all(entries, Now::read_clock())?;
        self.changed.notify_one();
        Ok(())
    }

    /// Puts an entry that an earlier process knew, unless the store knows a later change of its name.
    ///
    /// # Errors
    /// The errors of [`OperatorEntries::put`].
    pub fn restore(&self, entry: &OperatorEntry) -> Result<(), EntryFault> {
        self.set.lock().restore(entry, Now::read_clock())?;
        self.changed.notify_one();
        Ok(())
    }

    /// Deletes all entries with these names here and on all gateways, or none. Returns true if one was known here:
    /// during an outage, others may know more.
    ///
    /// # Errors
    /// Too many deletions wait for the store.
    pub fn delete_all(&self, names: &[Arc<[u8]>]) -> Result<bool, EntryFault> {
        let was_known = self.set.lock().delete_all(names, Now::read_clock())?;
        self.changed.notify_one();
        Ok(was_known)
    }

    /// The living entries, in no order.
    pub fn list_living(&self) -> Vec<OperatorEntry> {
        self.set.lock().list_living(Now::read_clock())
    }

    pub(crate) fn living_count(&self) -> usize {
        self.set.lock().living_count(Now::read_clock())
    }

    /// The number of changes that the store has not acknowledged.
    pub fn pending_count(&self) -> usize {
        self.set.lock().pending_count()
    }
}

/// Shares `entries` through `store`, and calls `on_change` with all living entries when they changed: by this gateway,
/// by another one, or because one ended. Never returns. Run it once, on the runtime of a single thread that is not a
/// worker's.
pub async fn share_entries(
    entries: Arc<OperatorEntries>,
    store: Arc<Store>,
    on_change: impl Fn(&[OperatorEntry]),
) {
    let call = store.script_caller(OPERATOR_GROUP, operator::operator_script());
    share_entries_by(&entries, store.prefix(), call, on_change).await;
}

/// [`share_entries`] through a `call` that runs [`operator::operator_script`].
pub async fn share_entries_by<C>(
    entries: &OperatorEntries,
    prefix: &str,
    call: C,
    on_change: impl Fn(&[OperatorEntry]),
) where
    C: AsyncFn(&PackedCall) -> Result<Vec<u8>, StoreFault>,
{
    let jitter_hash = RandomState::new();
    loop {
        report_change(entries, &on_change);
        let now = Now::read_clock();
        let jitter = jitter_hash.hash_one(now) % POLL_JITTER_MS;
        let poll_at = Instant::now() + POLL_INTERVAL + Duration::from_millis(jitter);
        let more = exchange_entries(entries, prefix, &call).await;
        report_change(entries, &on_change);
        match more {
            Ok((true, _)) => tokio::task::yield_now().await,
            Ok((false, true)) => tokio::time::sleep(SEND_INTERVAL).await,
            Ok((false, false)) | Err(_) => {
                tokio::select! {
                    () = sleep_until(poll_at) => {}
                    () = entries.changed.notified() => {}
                }
            }
        }
    }
}

fn report_change(entries: &OperatorEntries, on_change: impl Fn(&[OperatorEntry])) {
    // Called without the lock.
    let changed = entries.set.lock().take_changed(Now::read_clock());
    if let Some(living) = changed {
        on_change(&living);
    }
}

/// One call: sends changes, and receives those of others. True if the store has more entries than one answer holds, and
/// if there are more changes than one call holds.
async fn exchange_entries<C>(
    entries: &OperatorEntries,
    prefix: &str,
    call: &C,
) -> Result<(bool, bool), StoreFault>
where
    C: AsyncFn(&PackedCall) -> Result<Vec<u8>, StoreFault>,
{
    let (sent, packed) = {
        let set = entries.set.lock();
        let (sent, changes) = set.next_batch(Now::read_clock());
        (sent, operator::pack_call(prefix, &changes, set.cursor()))
    };
    // A change may be sent again, whether or not it ran: the last one of a name counts.
    let bytes = call(&packed).await?;
    let update = operator::parse_reply(&bytes, sent.len()).ok_or(StoreFault::Garbled)?;
    let (is_more, has_sendable, refused) = {
        let mut set = entries.set.lock();
        // An answer that leads no further is not followed by another question at once.
        let is_more = update.is_more && update.cursor != set.cursor();
        let refused = set.apply_update(&sent, update, Now::read_clock());
        (is_more, set.has_sendable(), refused)
    };
    if refused > 0 {
        tracing::warn!(refused, "redis holds too many entries of operators; these were dropped");
    }
    Ok((is_more, has_sendable))
}

#[cfg(test)]
mod tests;
