//! One bucket, which is given every charge that gateways and the store made.

use super::super::LeaseTerms;

/// A bucket that everything was taken from, in the order of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OneBucket {
    level: i128,
    at: u64,
}

// === impl OneBucket ===

impl OneBucket {
    pub(super) fn full(terms: &LeaseTerms, at: u64) -> OneBucket {
        OneBucket { level: terms.depth.into(), at }
    }

    /// Takes ticks; returns those that were not there.
    pub(super) fn take(&mut self, terms: &LeaseTerms, at: u64, ticks: u64) -> i128 {
        self.refill(terms, at);
        self.level -= i128::from(ticks);
        (-self.level).max(0)
    }

    /// Puts back ticks that were taken and not used.
    pub(super) fn put_back(&mut self, terms: &LeaseTerms, at: u64, ticks: u64) {
        self.refill(terms, at);
        self.level = (self.level + i128::from(ticks)).min(terms.depth.into());
    }

    pub(super) fn refill(&mut self, terms: &LeaseTerms, at: u64) {
        let gained = i128::from(terms.rate) * i128::from(at.saturating_sub(self.at));
        self.level = (self.level + gained).min(terms.depth.into());
        self.at = self.at.max(at);
    }

    pub(super) fn level(&self) -> i128 {
        self.level
    }
}
