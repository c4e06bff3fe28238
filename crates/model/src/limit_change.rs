//! Changes of a whole limit that operators make while the gateway runs: a pause, and numbers in place of the file's.

use serde::{Deserialize, Serialize};

use super::limit::{Algorithm, LimitConfig};
use sluicegate_base::clock::Now;

/// A change of the limits with a name; without numbers a pause, during which they judge and count as a dry run does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitChange {
    /// The name.
    pub limit: String,
    /// The end, in ns since 1970.
    pub until_unix_ns: u64,
    /// The operator.
    pub by: String,
    /// The operator's reason; may be empty.
    pub reason: String,
    /// The numbers that hold in place of those of the file.
    pub numbers: Option<WrittenNumbers>,
}

/// Numbers as an operator wrote them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WrittenNumbers {
    /// The fields, in JSON.
    pub fields: String,
    /// What the file said in these fields when they were set; empty = not known yet.
    pub file_said: String,
    /// The moment of that, in ns since 1970.
    pub at_unix_ns: u64,
}

// === impl LimitChange ===

impl LimitChange {
    /// Nanoseconds until the end.
    pub fn left_ns(&self) -> u64 {
        self.until_unix_ns.saturating_sub(Now::read_clock().to_unix_ns())
    }
}

// === impl LimitConfig ===

impl LimitConfig {
    /// The pause and the set numbers.
    pub fn changes(&self) -> impl Iterator<Item = &LimitChange> {
        self.pause.iter().chain(&self.set).map(|change| &**change)
    }

    /// The limit as the file has it.
    pub fn in_file(&self) -> &LimitConfig {
        self.file.as_deref().unwrap_or(self)
    }

    /// Makes a change in place of one before; `numbers`: the limit's own and its views.
    pub fn change(&mut self, change: LimitChange, numbers: Option<(Algorithm, Vec<Algorithm>)>) {
        self.file = Some(Box::new(self.in_file().clone()));
        let change = Some(Box::new(change));
        match numbers {
            Some((own, views)) => (self.algorithm, self.views, self.set) = (own, views, change),
            None => (self.dry_run, self.pause) = (true, change),
        }
    }

    /// Ends the set numbers or the pause; false: there are none.
    pub fn end_change(&mut self, is_set: bool) -> bool {
        let Some(file) = self.file.take() else { return false };
        let (dry_run, own, views) = (file.dry_run, file.algorithm.clone(), file.views.clone());
        let ended = match is_set {
            true => self.set.take().map(|_| (self.algorithm, self.views) = (own, views)),
            false => self.pause.take().map(|_| self.dry_run = dry_run),
        };
        self.file = Some(file).filter(|_| self.changes().next().is_some());
        ended.is_some()
    }
}
