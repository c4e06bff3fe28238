//! Strikes, and ends of bans before their time, that are still to be reported to the store.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ledger::BanLedger;
use super::{Bans, ClientIdentity, StrikeOutcome};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_store::SharedKey;
use sluicegate_store::script::bans::{CLIENTS_PER_CALL, StrikeReport};

/// Strikes by [`CounterKey::id`].
pub(super) type StrikesByClient = HashMap<u128, ClientStrikes>;

#[derive(Debug)]
pub(super) struct ClientStrikes {
    pub strikes: u32,
    pub newest: Now,
    pub client: ClientIdentity,
}

#[derive(Debug)]
pub(super) struct StrikeOutbox {
    /// Queued strikes.
    pub clients: Mutex<StrikesByClient>,
    /// Notified when there are enough clients for a call.
    pub batch_ready: Notify,
    /// Used only by the reporting task, and by its successor after a reload.
    pub ledger: Mutex<BanLedger>,
    /// Lifted bans that the store does not know yet: when each would have ended.
    lifts: Mutex<HashMap<SharedKey, Now>>,
}

/// Maximum number of clients with queued strikes.
pub(super) const CLIENTS_MAX: usize = 10_000;

/// Lifted bans that wait for the store.
const LIFTS_MAX: usize = 10_000;

/// A map with room for the maximum, so that it never grows under the lock.
pub(super) fn new_strike_map() -> StrikesByClient {
    HashMap::with_capacity(CLIENTS_MAX)
}

// === impl StrikeOutbox ===

impl Default for StrikeOutbox {
    fn default() -> StrikeOutbox {
        StrikeOutbox {
            clients: Mutex::new(new_strike_map()),
            batch_ready: Notify::new(),
            ledger: Mutex::default(),
            lifts: Mutex::default(),
        }
    }
}

impl StrikeOutbox {
    /// Queues one strike, unless there is no room for another client.
    pub(super) fn add_strike(
        &self,
        key: &CounterKey,
        now: Now,
        client: impl FnOnce() -> ClientIdentity,
    ) -> StrikeOutcome {
        if let Some(entry) = self.clients.lock().get_mut(&key.id) {
            entry.add_one(now);
            return StrikeOutcome::Counted;
        }
        // Computed outside the lock.
        let client = client();
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&key.id) {
            return StrikeOutcome::Uncounted;
        }
        clients.entry(key.id).or_insert(ClientStrikes { strikes: 0, newest: now, client }).add_one(now);
        let enough = clients.len() == CLIENTS_PER_CALL;
        drop(clients);
        if enough {
            self.batch_ready.notify_one();
        }
        StrikeOutcome::Counted
    }

    /// Lifts for one call. They wait on until [`StrikeOutbox::finish_lifts`].
    pub(super) fn take_lifts(&self, now: Now) -> Vec<StrikeReport> {
        let mut lifts = self.lifts.lock();
        lifts.retain(|_, until| *until > now);
        let report = |(client, until): (&SharedKey, &Now)| {
            StrikeReport::lift_ban(*client, until.ns_since(now).div_ceil(1000))
        };
        lifts.iter().take(CLIENTS_PER_CALL).map(report).collect()
    }

    /// True while the store does not know that the client's ban was lifted here.
    pub(super) fn is_lifting(&self, client: &SharedKey) -> bool {
        self.lifts.lock().contains_key(client)
    }

    pub(super) fn finish_lifts(&self, sent: &[StrikeReport]) {
        let mut lifts = self.lifts.lock();
        for report in sent {
            lifts.remove(&report.client);
        }
    }
}

// === impl ClientStrikes ===

impl ClientStrikes {
    fn add_one(&mut self, now: Now) {
        self.strikes = self.strikes.saturating_add(1);
        self.newest = self.newest.max(now);
    }
}

// === impl Bans ===

impl Bans {
    /// Tells all gateways that the ban of a client was lifted here, which would have lasted until `until`. During an
    /// outage of the store it waits until then. False if the bans are not shared, or too many wait.
    pub fn share_lift(&self, client: SharedKey, until: Now) -> bool {
        let Some(outbox) = &self.state.outbox else { return false };
        let mut lifts = outbox.lifts.lock();
        if lifts.len() >= LIFTS_MAX && !lifts.contains_key(&client) {
            return false;
        }
        lifts.insert(client, until);
        drop(lifts);
        outbox.batch_ready.notify_one();
        true
    }
}
