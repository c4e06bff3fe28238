//! Calls and answers in the bytes of `script/lease.lua`.

use super::{HomeCall, HomeReport, HomeTerms, LeaseAnswer, LeaseCall, LeaseTerms};
use crate::script::read_number;

// === impl LeaseCall ===

impl LeaseCall {
    /// The body of the call of a node. In a region: its terms there, what came of the last call of its home, and a name
    /// for the region if it has none.
    pub(crate) fn encode(
        &self,
        terms: &LeaseTerms,
        node: u64,
        region: Option<(HomeTerms, Option<HomeReport>, u64)>,
    ) -> Vec<u8> {
        let mut body = Vec::with_capacity(274 + 8 * self.pending.len());
        body.extend(node.to_le_bytes());
        let own =
            [self.number, self.applied, self.held, self.keep, self.want, self.demand, self.stopped.into()];
        let beyond = [self.owed, self.owed_since, self.refund, self.refund_age, region.is_some().into()];
        let of_region = region.map(|(terms, report, _)| terms.to_numbers(report));
        let numbers = terms.to_numbers().into_iter().chain(own).chain(beyond);
        let numbers = numbers.chain(of_region.into_iter().flatten());
        body.extend(numbers.flat_map(|number| (number as f64).to_le_bytes()));
        body.extend(region.into_iter().flat_map(|(.., new_name)| new_name.to_le_bytes()));
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
    /// Reads an answer, with the call of the home that its node is to make; `None` if it is none of the script.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<(LeaseAnswer, Option<HomeCall>)> {
        let mut next = || read_number(&mut bytes);
        let (held, rate, depth, granted, left) = (next()?, next()?, next()?, next()?, next()?);
        let (rest, window, wait) = (next()?, next()?, next()?);
        let outlook = next().unwrap_or(0);
        let (asks_home, is_home_asked) = (outlook > 0, outlook == 2);
        let answer =
            LeaseAnswer { held, rate, depth, granted, left, rest, window, wait, asks_home, is_home_asked };
        Some((answer, HomeCall::decode(&mut bytes)))
    }
}
