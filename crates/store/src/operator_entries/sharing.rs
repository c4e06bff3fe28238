//! The task that sends changes of entries to the store and learns those of other gateways.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{OperatorEntries, OperatorEntry};
use crate::script::operator;
use crate::script::operator::OPERATOR_GROUP;
use crate::{PackedCall, Store, StoreFault};
use sluicegate_base::clock::Now;

/// The store is polled at least this often; a random jitter keeps gateways from polling all at once.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLL_JITTER_MS: u64 = 100;
/// The pause between two calls that send more changes than one call holds.
const SEND_INTERVAL: Duration = Duration::from_millis(10);

/// Shares `entries` through `store`, and calls `on_change` with all living entries when they changed: by this gateway,
/// by another one, or because one ended. Never returns. Run it once, on the runtime of a single thread that is not a
/// worker's.
pub async fn share_entries(
    entries: Arc<OperatorEntries>,
    store: Arc<Store>,
    on_change: impl Fn(&[OperatorEntry]),
) {
    let (link, script) = (store.open_link(), operator::operator_script());
    store.load_script(&script);
    let call = async |packed: &PackedCall| link.call_script(OPERATOR_GROUP, &script, packed).await;
    share_entries_by(&entries, store.prefix(), call, on_change).await;
}

/// Does the same as [`share_entries`], through a `call` that runs [`operator::operator_script`].
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
        let outcome = exchange_entries(entries, prefix, &call).await;
        report_change(entries, &on_change);
        match outcome {
            Ok(Outcome::Behind) => tokio::task::yield_now().await,
            Ok(Outcome::Sending) => tokio::time::sleep(SEND_INTERVAL).await,
            Ok(Outcome::UpToDate) | Err(_) => {
                tokio::select! {
                    () = sleep_until(poll_at) => {}
                    () = entries.changed.notified() => {}
                }
            }
        }
    }
}

/// The state of the exchange after a call.
enum Outcome {
    UpToDate,
    /// The store has more entries than one answer holds.
    Behind,
    /// There are more changes than one call holds.
    Sending,
}

fn report_change(entries: &OperatorEntries, on_change: impl Fn(&[OperatorEntry])) {
    // Called without the lock.
    let changed = entries.held.lock().take_changed(Now::read_clock());
    if let Some(living) = changed {
        on_change(&living);
    }
}

/// One call: sends changes, and receives those of others.
async fn exchange_entries<C>(entries: &OperatorEntries, prefix: &str, call: &C) -> Result<Outcome, StoreFault>
where
    C: AsyncFn(&PackedCall) -> Result<Vec<u8>, StoreFault>,
{
    let (sent, packed) = {
        let held = entries.held.lock();
        let (sent, changes) = held.take_batch(Now::read_clock());
        (sent, operator::pack_call(prefix, &changes, held.cursor()))
    };
    // A change may be sent again, whether or not it ran: the last one of a name counts.
    let bytes = call(&packed).await?;
    let update = operator::parse_reply(&bytes, sent.len()).ok_or(StoreFault::Garbled)?;
    let (is_more, has_sendable, refused) = {
        let mut held = entries.held.lock();
        // An answer that leads no further is not followed by another question at once.
        let is_more = update.is_more && update.cursor != held.cursor();
        let refused = held.apply_update(&sent, update, Now::read_clock());
        (is_more, held.has_sendable(), refused)
    };
    if refused > 0 {
        tracing::warn!(refused, "redis holds too many entries of operators; these were dropped");
    }
    Ok(match (is_more, has_sendable) {
        (true, _) => Outcome::Behind,
        (_, true) => Outcome::Sending,
        _ => Outcome::UpToDate,
    })
}
