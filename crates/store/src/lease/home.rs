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

/// What came of the call of the home with a number, for the region's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HomeReport {
    pub(crate) number: u64,
    /// `None` if the home did not answer.
    pub(crate) answer: Option<LeaseAnswer>,
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

    /// The numbers of a call that are only for regions.
    pub(super) fn to_numbers(self, report: Option<HomeReport>) -> [u64; 10] {
        let (number, answer) = report.map_or((0, None), |report| (report.number, report.answer));
        let (answered, failed) = if answer.is_some() { (number, 0) } else { (0, number) };
        let LeaseAnswer { held, rate, depth, left, .. } = answer.unwrap_or_default();
        let LeaseTerms { term, hold, .. } = self.own;
        [term, hold, self.floor_rate, self.floor_depth, answered, held, rate, depth, left, failed]
    }
}

// === impl HomeCall ===

impl HomeCall {
    /// Reads the call that follows an answer; `None` if the caller is to make none.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<HomeCall> {
        let name = u64::from_le_bytes(take_bytes(bytes)?);
        let mut next = || read_number(bytes);
        let call = LeaseCall {
            number: next()?,
            applied: next()?,
            held: next()?,
            keep: next()?,
            want: next()?,
            demand: next()?,
            stopped: next()? == 1,
            owed: next()?,
            owed_since: next()?,
            ..LeaseCall::default()
        };
        Some(HomeCall { name, call })
    }
}
