//! The entries of operators in memory: those of the store, and the changes that it does not know yet.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::{EntryFault, OperatorEntry};
use crate::script::operator::{
    CHANGES_PER_CALL, ChangeAnswer, ChangeKind, ENTRIES_MAX, EntriesUpdate, EntryChange, EntryCursor,
    NAME_MAX, StoreEntry, VALUE_MAX,
};
use sluicegate_base::clock::Now;

/// The time that the deletion of an unknown entry waits for the store, and that the store remembers it.
const UNKNOWN_DELETION_NS: u64 = 86_400_000_000_000;
/// Tolerance for the end of the same entry: it seems later by the time that a call took.
const SAME_END_NS: u64 = 1_000_000_000;

/// The entries by name.
#[derive(Default)]
pub(super) struct EntrySet {
    by_name: HashMap<Arc<[u8]>, KnownEntry>,
    /// Names with a change that the store has not acknowledged.
    pending: BTreeSet<Arc<[u8]>>,
    /// The number of changes so far.
    versions: u64,
    cursor: EntryCursor,
    /// The names received while all entries are fetched.
    received: Option<HashSet<Arc<[u8]>>>,
    /// The living entries differ from those last reported.
    is_changed: bool,
    /// No entry ends before.
    next_end: Now,
}

struct KnownEntry {
    value: Arc<[u8]>,
    until: Now,
    /// Distinguishes this state from later ones of the same name.
    version: u64,
    /// The change that the store has not acknowledged.
    pending: Option<ChangeKind>,
}

/// A change as it was sent.
pub(super) struct SentChange {
    name: Arc<[u8]>,
    version: u64,
}

// === impl EntrySet ===

impl EntrySet {
    /// Puts all entries or none.
    pub(super) fn put_all(&mut self, entries: &[OperatorEntry], now: Now) -> Result<(), EntryFault> {
        for OperatorEntry { name, value, until } in entries {
            check_name(name)?;
            match value.len() > VALUE_MAX {
                true => return Err(EntryFault::Value),
                false if *until <= now => return Err(EntryFault::Ended),
                false => {}
            }
        }
        let is_living = |name| self.by_name.get(name).is_some_and(|entry: &KnownEntry| entry.is_living(now));
        let added = entries.iter().filter(|entry| !is_living(&entry.name)).count();
        if added > 0 && self.living_count(now) + added > ENTRIES_MAX {
            return Err(EntryFault::Full);
        }
        for OperatorEntry { name, value, until } in entries {
            self.insert(name.clone(), value.clone(), *until, Some(ChangeKind::Put));
        }
        Ok(())
    }

    /// Puts an entry unless one of its name is known.
    pub(super) fn restore(&mut self, entry: &OperatorEntry, now: Now) -> Result<(), EntryFault> {
        if !self.by_name.contains_key(&entry.name) {
            self.put_all(std::slice::from_ref(entry), now)?;
            self.insert(entry.name.clone(), entry.value.clone(), entry.until, Some(ChangeKind::Restore));
        }
        Ok(())
    }

    /// Deletes all entries with these names, or none. Returns true if one lived here.
    pub(super) fn delete_all(&mut self, names: &[Arc<[u8]>], now: Now) -> Result<bool, EntryFault> {
        names.iter().try_for_each(|name| check_name(name))?;
        let unknown = names.iter().filter(|name| !self.by_name.contains_key(*name)).count();
        if unknown > 0 && self.pending.len() + unknown > ENTRIES_MAX {
            return Err(EntryFault::Full);
        }
        let mut has_lived = false;
        for name in names {
            let living = self.by_name.get(name).filter(|entry| entry.is_living(now)).map(|entry| entry.until);
            let until = living.unwrap_or(Now(now.0.saturating_add(UNKNOWN_DELETION_NS)));
            self.insert(name.clone(), Arc::default(), until, Some(ChangeKind::Delete));
            has_lived |= living.is_some();
        }
        Ok(has_lived)
    }

    fn insert(&mut self, name: Arc<[u8]>, value: Arc<[u8]>, until: Now, pending: Option<ChangeKind>) {
        self.versions += 1;
        match pending {
            None => self.pending.remove(&name),
            Some(_) => self.pending.insert(name.clone()),
        };
        self.next_end = self.next_end.min(until);
        self.by_name.insert(name, KnownEntry { value, until, version: self.versions, pending });
        self.is_changed = true;
    }

    fn remove(&mut self, name: &[u8]) {
        self.pending.remove(name);
        if self.by_name.remove(name).is_some_and(|entry| entry.pending != Some(ChangeKind::Delete)) {
            self.is_changed = true;
        }
    }

    pub(super) fn living_count(&self, now: Now) -> usize {
        self.by_name.values().filter(|entry| entry.is_living(now)).count()
    }

    pub(super) fn list_living(&self, now: Now) -> Vec<OperatorEntry> {
        let living = self.by_name.iter().filter(|(_, entry)| entry.is_living(now));
        living.map(|(name, entry)| entry.to_entry(name)).collect()
    }

    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn cursor(&self) -> EntryCursor {
        self.cursor
    }

    /// True if changes can be sent now.
    pub(super) fn has_sendable(&self) -> bool {
        self.pending.iter().any(|name| self.is_sendable(name))
    }

    /// True if the change can be sent: a restored entry waits until all entries were fetched.
    fn is_sendable(&self, name: &[u8]) -> bool {
        let is_restore = |entry: &KnownEntry| entry.pending == Some(ChangeKind::Restore);
        self.received.is_none() || !self.by_name.get(name).is_some_and(is_restore)
    }

    /// The living entries if they changed since they were last taken; ended ones leave.
    pub(super) fn take_changed(&mut self, now: Now) -> Option<Vec<OperatorEntry>> {
        if self.next_end <= now {
            let ended = self.by_name.iter().filter(|(_, entry)| entry.until <= now);
            let ended: Vec<Arc<[u8]>> = ended.map(|(name, _)| name.clone()).collect();
            ended.iter().for_each(|name| self.remove(name));
            self.next_end = self.by_name.values().map(|entry| entry.until).min().unwrap_or(Now(u64::MAX));
        }
        std::mem::take(&mut self.is_changed).then(|| self.list_living(now))
    }

    /// Changes for one call. They stay pending until the store has answered.
    pub(super) fn next_batch(&self, now: Now) -> (Vec<SentChange>, Vec<EntryChange>) {
        let sendable = self.pending.iter().filter(|name| self.is_sendable(name));
        let known = sendable.filter_map(|name| Some((name, self.by_name.get(name)?)));
        let living = known.filter(|(_, entry)| entry.until > now);
        let change = |(name, entry): (&Arc<[u8]>, &KnownEntry)| {
            let sent = SentChange { name: name.clone(), version: entry.version };
            let lasts_us = entry.until.ns_since(now).div_ceil(1000);
            let (name, value) = (name.to_vec(), entry.value.to_vec());
            Some((sent, EntryChange { name, value, kind: entry.pending?, lasts_us }))
        };
        living.filter_map(change).take(CHANGES_PER_CALL).unzip()
    }

    /// Applies the store's reply to a call with the changes `sent`; returns how many of them it had no room for.
    pub(super) fn apply_update(&mut self, sent: &[SentChange], update: EntriesUpdate, now: Now) -> usize {
        let is_named = update.cursor.is_named();
        if is_named && self.cursor.is_lost_in(update.cursor) {
            self.restore_all(now);
        }
        let refused = self.apply_answers(sent, &update.answers);
        if update.is_whole {
            self.received = Some(HashSet::new());
        }
        for entry in update.entries {
            self.apply_entry(entry, now);
        }
        if !update.is_more
            && let Some(received) = self.received.take()
            && is_named
        {
            let is_gone = |(name, entry): &(&Arc<[u8]>, &KnownEntry)| {
                entry.pending.is_none() && !received.contains(*name)
            };
            let gone: Vec<Arc<[u8]>> =
                self.by_name.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
            gone.iter().for_each(|name| self.remove(name));
        }
        if is_named {
            self.cursor = update.cursor;
        }
        refused
    }

    /// The store lost its memory: whatever it knew is to be sent again.
    fn restore_all(&mut self, now: Now) {
        for (name, entry) in &mut self.by_name {
            if entry.pending.is_none() && entry.is_living(now) {
                entry.pending = Some(ChangeKind::Restore);
                self.pending.insert(name.clone());
            }
        }
    }

    fn apply_answers(&mut self, sent: &[SentChange], answers: &[ChangeAnswer]) -> usize {
        let mut refused = 0;
        for (SentChange { name, version }, answer) in sent.iter().zip(answers) {
            let Some(entry) = self.by_name.get_mut(name).filter(|entry| entry.version == *version) else {
                continue;
            };
            match (answer, entry.pending) {
                (ChangeAnswer::Done, Some(ChangeKind::Put | ChangeKind::Restore)) => {
                    entry.pending = None;
                    self.pending.remove(name);
                }
                // A name that the store knows and does not return was deleted.
                (ChangeAnswer::Done | ChangeAnswer::Known, _) => self.remove(name),
                (ChangeAnswer::Full, _) => {
                    refused += 1;
                    self.remove(name);
                }
            }
        }
        refused
    }

    fn apply_entry(&mut self, StoreEntry { name, value, left_us }: StoreEntry, now: Now) {
        let until = Now(now.0.saturating_add(left_us.saturating_mul(1000)));
        let name: Arc<[u8]> = name.into();
        if let Some(received) = &mut self.received {
            received.insert(name.clone());
        }
        let is_full = self.by_name.len() >= 2 * ENTRIES_MAX;
        match self.by_name.get_mut(&name) {
            // The change made here is the later one.
            Some(entry) if matches!(entry.pending, Some(ChangeKind::Put | ChangeKind::Delete)) => {}
            Some(entry) if *entry.value == *value && entry.until.0.abs_diff(until.0) <= SAME_END_NS => {
                entry.pending = None;
                self.pending.remove(&name);
            }
            // As many as the store may hold, and as many that only this gateway knows.
            None if is_full => {}
            _ => self.insert(name, value.into(), until, None),
        }
    }
}

fn check_name(name: &[u8]) -> Result<(), EntryFault> {
    if name.is_empty() || name.len() > NAME_MAX { Err(EntryFault::Name) } else { Ok(()) }
}

// === impl KnownEntry ===

impl KnownEntry {
    fn is_living(&self, now: Now) -> bool {
        self.pending != Some(ChangeKind::Delete) && self.until > now
    }

    fn to_entry(&self, name: &Arc<[u8]>) -> OperatorEntry {
        OperatorEntry { name: name.clone(), value: self.value.clone(), until: self.until }
    }
}
