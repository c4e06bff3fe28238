//! Strikes and bans that the store is still to be told.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Who;
use super::ledger::Ledger;
use crate::base::clock::Now;
use crate::limit::table::Key;
use crate::shared::script::bans::CLIENTS_PER_CALL;

/// Strikes by [`Key::id`].
pub(super) type Clients = HashMap<u128, Note>;

/// Strikes of one client.
#[derive(Debug)]
pub(super) struct Note {
    pub strikes: u32,
    pub newest: Now,
    pub who: Who,
}

#[derive(Debug)]
pub(super) struct Noted {
    clients: Mutex<Clients>,
    /// Told when there are enough clients for a call.
    enough: Notify,
    /// Only the task that tells the store comes here, and another one after a reload.
    pub ledger: Mutex<Ledger>,
}

/// Clients that strikes are noted of at a time.
pub(super) const CLIENTS_MAX: usize = 10_000;

/// Room for all that may be noted, so that it never grows under the lock.
pub(super) fn room() -> Clients {
    HashMap::with_capacity(CLIENTS_MAX)
}

// === impl Noted ===

impl Default for Noted {
    fn default() -> Noted {
        Noted { clients: Mutex::new(room()), enough: Notify::new(), ledger: Mutex::default() }
    }
}

impl Noted {
    /// Notes one strike; false where there is no room for another client.
    pub fn add(&self, key: &Key, now: Now, who: impl FnOnce() -> Who) -> bool {
        if let Some(note) = self.clients.lock().get_mut(&key.id) {
            note.add(now);
            return true;
        }
        // Found out without the lock.
        let who = who();
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&key.id) {
            return false;
        }
        clients.entry(key.id).or_insert(Note { strikes: 0, newest: now, who }).add(now);
        let enough = clients.len() == CLIENTS_PER_CALL;
        drop(clients);
        if enough {
            self.enough.notify_one();
        }
        true
    }

    /// Hands over all that is noted, and takes `room`, which is empty, for what comes.
    pub fn take(&self, room: &mut Clients) {
        std::mem::swap(&mut *self.clients.lock(), room);
    }

    /// Resolves when there are enough clients for a call.
    pub async fn enough(&self) {
        self.enough.notified().await;
    }
}

// === impl Note ===

impl Note {
    fn add(&mut self, now: Now) {
        self.strikes = self.strikes.saturating_add(1);
        self.newest = self.newest.max(now);
    }
}
