//! Strikes and bans that the store is still to be told.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ClientIdentity;
use super::ledger::BanLedger;
use crate::base::clock::Now;
use crate::limit::table::CounterKey;
use crate::shared::script::bans::CLIENTS_PER_CALL;

/// Strikes by [`Key::id`].
pub(super) type StrikesByClient = HashMap<u128, ClientStrikes>;

/// Strikes of one client.
#[derive(Debug)]
pub(super) struct ClientStrikes {
    pub strikes: u32,
    pub newest: Now,
    pub client: ClientIdentity,
}

#[derive(Debug)]
pub(super) struct StrikeOutbox {
    clients: Mutex<StrikesByClient>,
    /// Told when there are enough clients for a call.
    batch_ready: Notify,
    /// Only the task that tells the store comes here, and another one after a reload.
    pub ledger: Mutex<BanLedger>,
}

/// Clients that strikes are noted of at a time.
pub(super) const CLIENTS_MAX: usize = 10_000;

/// Room for all that may be noted, so that it never grows under the lock.
pub(super) fn new_strike_map() -> StrikesByClient {
    HashMap::with_capacity(CLIENTS_MAX)
}

// === impl Noted ===

impl Default for StrikeOutbox {
    fn default() -> StrikeOutbox {
        StrikeOutbox {
            clients: Mutex::new(new_strike_map()),
            batch_ready: Notify::new(),
            ledger: Mutex::default(),
        }
    }
}

impl StrikeOutbox {
    /// Notes one strike; false where there is no room for another client.
    pub fn add_strike(&self, key: &CounterKey, now: Now, who: impl FnOnce() -> ClientIdentity) -> bool {
        if let Some(note) = self.clients.lock().get_mut(&key.id) {
            note.add_one(now);
            return true;
        }
        // Found out without the lock.
        let who = who();
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&key.id) {
            return false;
        }
        clients.entry(key.id).or_insert(ClientStrikes { strikes: 0, newest: now, client: who }).add_one(now);
        let enough = clients.len() == CLIENTS_PER_CALL;
        drop(clients);
        if enough {
            self.batch_ready.notify_one();
        }
        true
    }

    /// Hands over all that is noted, and takes `room`, which is empty, for what comes.
    pub fn swap_strikes(&self, room: &mut StrikesByClient) {
        std::mem::swap(&mut *self.clients.lock(), room);
    }

    /// Resolves when there are enough clients for a call.
    pub async fn wait_batch(&self) {
        self.batch_ready.notified().await;
    }
}

// === impl Note ===

impl ClientStrikes {
    fn add_one(&mut self, now: Now) {
        self.strikes = self.strikes.saturating_add(1);
        self.newest = self.newest.max(now);
    }
}
