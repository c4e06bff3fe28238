//! Limits with changes of operators.

use super::limit::{Algorithm, LimitConfig};
use super::limit_change::LimitChange;

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
