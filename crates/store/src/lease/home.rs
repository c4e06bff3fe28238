//! The home of a region: a store from which the region leases its units, as one node of it.
//!
//! A gateway that calls the store of its region is told when the home is to be called. It makes that call and tells the
//! region what came of it with its next call: the region's store alone knows what the region holds.

use super::terms::LEASED_PART;
use super::{LeaseAnswer, LeaseCall, LeaseTerms};
use crate::script::read_number;
use sluicegate_limit::table::persistent::take_bytes;

/// Regions may hold so many times what gateways of one zone may.
const REGION_PARTS: u64 = 2;
/// The longest term of a region's lease, in microseconds: several round trips between regions.
const TERM_MAX_US: u64 = 1_000_000;

/// The terms of a limit in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HomeTerms {
    /// Those of the region's own lease.
    pub(crate) own: LeaseTerms,
    /// What the region admits while its home does not answer, in ticks per microsecond, and of a full bucket.
    floor_rate: u64,
    floor_depth: u64,
}

/// What came of a call of the home, for the region's store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum HomeReport {
    #[default]
    Nothing,
    /// The home answered the call with this number: ticks held, rate, depth, and ticks left.
    Answered(u64, [u64; 4]),
    /// It did not answer this call.
    Failed(u64),
}

/// A call that a gateway makes for its region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HomeCall {
    /// The name of the region at its home.
    pub(crate) name: u64,
    pub(crate) call: LeaseCall,
}

// === impl HomeTerms ===

impl HomeTerms {
    /// The terms in a region with a floor of `share` millionths of the limit.
    pub(crate) fn new(terms: &LeaseTerms, share: u32) -> HomeTerms {
        let part = |ticks: u64| (u128::from(ticks) * u128::from(share) / 1_000_000) as u64;
        let leased_max = terms.depth / LEASED_PART * REGION_PARTS;
        let term = (leased_max / terms.rate.max(1)).min(TERM_MAX_US);
        let own = LeaseTerms { leased_max, term, ..*terms }.with_hold();
        HomeTerms { own, floor_rate: part(terms.rate).max(1), floor_depth: part(terms.depth).max(terms.unit) }
    }

    /// The part of a call that is only for regions. `new_name` names the region at its home if it has no name.
    pub(super) fn encode(&self, report: HomeReport, new_name: u64, body: &mut Vec<u8>) {
        let (answered, told, failed) = match report {
            HomeReport::Nothing => (0, [0; 4], 0),
            HomeReport::Answered(number, told) => (number, told, 0),
            HomeReport::Failed(number) => (0, [0; 4], number),
        };
        let LeaseTerms { term, hold, .. } = self.own;
        let own = [term, hold, self.floor_rate, self.floor_depth, answered];
        own.iter()
            .chain(&told)
            .chain(&[failed])
            .for_each(|number| body.extend((*number as f64).to_le_bytes()));
        body.extend(new_name.to_le_bytes());
    }
}

// === impl HomeReport ===

impl HomeReport {
    /// The report on the call with this number.
    pub(crate) fn of_call(number: u64, answer: Option<&LeaseAnswer>) -> HomeReport {
        let answered = |answer: &LeaseAnswer| {
            HomeReport::Answered(number, [answer.held, answer.rate, answer.depth, answer.left])
        };
        answer.map_or(HomeReport::Failed(number), answered)
    }
}

// === impl HomeCall ===

impl HomeCall {
    /// Reads the call that follows an answer; `None` if the caller is to make none.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<HomeCall> {
        let name = u64::from_le_bytes(take_bytes(bytes)?);
        let mut next = || read_number(bytes);
        let (number, applied, held, keep) = (next()?, next()?, next()?, next()?);
        let (want, demand, stopped, owed, owed_since) = (next()?, next()?, next()?, next()?, next()?);
        let call = LeaseCall {
            number,
            applied,
            held,
            keep,
            want,
            demand,
            owed,
            owed_since,
            stopped: stopped == 1,
            ..LeaseCall::default()
        };
        Some(HomeCall { name, call })
    }
}
