//! Calls and answers in the bytes of `script/lease.lua`.

use super::{LeaseAnswer, LeaseCall, LeaseTerms};
use crate::script::read_number;

// === impl LeaseCall ===

impl LeaseCall {
    /// The body of the call of a node.
    pub(crate) fn encode(&self, terms: &LeaseTerms, node: u64) -> Vec<u8> {
        let mut body = Vec::with_capacity(178 + 8 * self.pending.len());
        body.extend(node.to_le_bytes());
        let own =
            [self.number, self.applied, self.held, self.keep, self.want, self.demand, self.stopped.into()];
        let beyond = [self.owed, self.owed_since, self.refund, self.refund_age];
        for number in terms.to_numbers().into_iter().chain(own).chain(beyond) {
            body.extend((number as f64).to_le_bytes());
        }
        let runs = &self.pending[..self.pending.len().min(u16::MAX.into())];
        body.extend((runs.len() as u16).to_le_bytes());
        for run in runs {
            body.extend(run.count.to_le_bytes());
            body.extend(run.cost.to_le_bytes());
        }
        body
    }
}

// === impl LeaseAnswer ===

impl LeaseAnswer {
    /// Reads an answer; `None` if it is none of the script.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<LeaseAnswer> {
        let mut next = || read_number(&mut bytes);
        let (held, rate, depth, granted, left) = (next()?, next()?, next()?, next()?, next()?);
        let (rest, window, wait) = (next()?, next()?, next()?);
        Some(LeaseAnswer { held, rate, depth, granted, left, rest, window, wait })
    }
}
