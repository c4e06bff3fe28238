//! Named entries that operators make on one gateway and that all gateways learn: bans, grants, resets.
//!
//! A change acts here at once and is queued for the store, which gives each change a revision. The task of
//! [`share_entries`] sends it, learns the changes of other gateways, and reports the whole set when it changed. While
//! the store is away changes wait here; the last one of each name is sent. A store that lost its memory gets the
//! entries that this gateway knows, unless it knows a later change of the same name.

mod held;
mod sharing;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use held::HeldEntries;
use sluicegate_base::clock::Now;

pub use sharing::{share_entries, share_entries_by};

/// The entries as this process knows them. They survive a reload, and a change of the store.
#[derive(Default)]
pub struct OperatorEntries {
    held: Mutex<HeldEntries>,
    /// Notified when there is a change to send and to report.
    changed: Notify,
}

/// One living entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorEntry {
    pub name: Arc<[u8]>,
    pub value: Arc<[u8]>,
    pub until: Now,
}

/// The reason why a change was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryFault {
    /// The name is empty or too long.
    Name,
    /// The value is too long.
    Value,
    /// The entry has ended already.
    Ended,
    /// There are too many entries.
    Full,
}

// === impl OperatorEntries ===

impl OperatorEntries {
    /// Puts an entry here and, through the store, on all gateways; it replaces the one of this name.
    ///
    /// # Errors
    /// The entry is not valid, or there are too many.
    pub fn put(&self, name: &[u8], value: &[u8], until: Now) -> Result<(), EntryFault> {
        self.held.lock().put(name, value, until, Now::read_clock(), false)?;
        self.changed.notify_one();
        Ok(())
    }

    /// Puts an entry that an earlier process knew, unless the store knows a later change of its name.
    ///
    /// # Errors
    /// The errors of [`OperatorEntries::put`].
    pub fn restore(&self, name: &[u8], value: &[u8], until: Now) -> Result<(), EntryFault> {
        self.held.lock().put(name, value, until, Now::read_clock(), true)?;
        self.changed.notify_one();
        Ok(())
    }

    /// Deletes an entry here and on all gateways. Returns true if it was known here: during an outage, others may know
    /// it.
    ///
    /// # Errors
    /// Too many deletions wait for the store.
    pub fn delete(&self, name: &[u8]) -> Result<bool, EntryFault> {
        let was_known = self.held.lock().delete(name, Now::read_clock())?;
        self.changed.notify_one();
        Ok(was_known)
    }

    /// The living entries, in no order.
    pub fn list_living(&self) -> Vec<OperatorEntry> {
        self.held.lock().list_living(Now::read_clock())
    }

    pub fn living_count(&self) -> usize {
        self.held.lock().living_count(Now::read_clock())
    }

    /// The number of changes that the store has not acknowledged.
    pub fn pending_count(&self) -> usize {
        self.held.lock().pending_count()
    }
}

// === impl EntryFault ===

impl std::fmt::Display for EntryFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EntryFault::Name => "the name is empty or too long",
            EntryFault::Value => "the value is too long",
            EntryFault::Ended => "the end has passed already",
            EntryFault::Full => "there are too many entries",
        })
    }
}

#[cfg(test)]
mod tests;
