//! One limit, which is given every charge that gateways and the store made.

use std::collections::BTreeMap;

use super::super::LeaseTerms;

/// A bucket, or the windows of one counter, that everything was taken from in the order of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OneLimit {
    level: i128,
    at: u64,
    /// What was taken in each window, by the number of the window.
    taken: BTreeMap<u64, i128>,
}

// === impl OneLimit ===

impl OneLimit {
    pub(super) fn full(terms: &LeaseTerms, at: u64) -> OneLimit {
        OneLimit { level: terms.depth.into(), at, taken: BTreeMap::new() }
    }

    /// Takes ticks; returns those that were not there.
    pub(super) fn take(&mut self, terms: &LeaseTerms, at: u64, ticks: u64) -> i128 {
        if let Some(windows) = terms.windows {
            *self.taken.entry(at / windows.width).or_default() += i128::from(ticks);
        }
        self.refill(terms, at);
        if terms.windows.is_none() {
            self.level -= i128::from(ticks);
        }
        (-self.level).max(0)
    }

    /// Puts back ticks that were taken at `taken_at`, and not used.
    pub(super) fn put_back(&mut self, terms: &LeaseTerms, (at, taken_at): (u64, u64), ticks: u64) {
        self.refill(terms, at);
        match terms.windows {
            None => self.level = (self.level + i128::from(ticks)).min(terms.depth.into()),
            Some(windows) => {
                if let Some(taken) = self.taken.get_mut(&(taken_at / windows.width)) {
                    *taken -= i128::from(ticks);
                }
                self.refill(terms, at);
            }
        }
    }

    pub(super) fn refill(&mut self, terms: &LeaseTerms, at: u64) {
        match terms.windows {
            None => {
                let gained = i128::from(terms.rate) * i128::from(at.saturating_sub(self.at));
                self.level = (self.level + gained).min(terms.depth.into());
            }
            Some(windows) => {
                let first = (at / windows.width).saturating_sub(windows.earlier);
                self.taken.retain(|window, _| *window >= first);
                self.level = i128::from(terms.depth) - self.taken.values().sum::<i128>();
            }
        }
        self.at = self.at.max(at);
    }

    pub(super) fn level(&self) -> i128 {
        self.level
    }
}
