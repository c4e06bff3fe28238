//! The answer to a call: one status for each descriptor, and the fields about limits.

use http::HeaderMap;
use http::header::{HeaderValue, RETRY_AFTER};

use super::messages::{
    CurrentLimit, DescriptorStatus, HeaderToAdd, LimitUnit, ProtoDuration, RateLimitResponse, RlsCode,
};
use super::plan::PlannedPart;
use crate::gateway::LimitChain;
use crate::judge::request_state::RequestState;
use crate::judge::{MergedPlaces, limit_report};
use sluicegate_admission::chain::RateDecision;
use sluicegate_limit::{Limit, LimitOutcome};
use sluicegate_model::{LimitId, Rate};

const NS_PER_SECOND: u64 = 1_000_000_000;
const DAY_S: u64 = 86_400;

/// The units of an answer, with their seconds.
const UNITS: [(LimitUnit, u64); 6] = [
    (LimitUnit::Second, 1),
    (LimitUnit::Minute, 60),
    (LimitUnit::Hour, 3_600),
    (LimitUnit::Day, DAY_S),
    (LimitUnit::Month, 30 * DAY_S),
    (LimitUnit::Year, 365 * DAY_S),
];

/// The verdict on some descriptors of a call.
pub(super) struct JudgedPart<'a, 'c> {
    pub part: &'a PlannedPart<'c>,
    pub decisions: &'a [RateDecision],
    pub merged: &'a MergedPlaces,
    /// They are refused: by this limit, or by none that has numbers.
    pub refused: Option<Option<LimitId>>,
}

impl RateLimitResponse {
    /// The answer that no limit applies.
    pub(super) fn admitting(descriptors: usize) -> RateLimitResponse {
        let code = RlsCode::Ok as i32;
        let statuses = vec![DescriptorStatus { code, ..DescriptorStatus::default() }; descriptors];
        RateLimitResponse { overall_code: code, statuses, response_headers_to_add: Vec::new() }
    }

    /// Adds the statuses of judged descriptors.
    pub(super) fn add_judged(&mut self, judged: &JudgedPart<'_, '_>) {
        let JudgedPart { part: PlannedPart { terms, indices, .. }, decisions, merged, refused } = *judged;
        let limits = terms.chain.chain.limits();
        // Without a decision that rejects, the cause of the rejection has no numbers: a ban, or a missing key.
        let is_numberless = refused.is_some() && !decisions.iter().any(rejects);
        let refused_by = refused.flatten();
        for (descriptor, &index) in terms.descriptors.iter().zip(indices.iter()) {
            let stands_for = |place: usize| merged.get(place).copied().flatten().map_or(place, usize::from);
            let own = |judged: &&RateDecision| {
                descriptor.places.clone().any(|place| stands_for(place) == usize::from(judged.limit_index))
            };
            // Free slots are told in the fields alone: the status is that of a rate.
            let is_told = |judged: &&RateDecision| {
                judged.dry_run || rejects(judged) || !limits[usize::from(judged.limit_index)].is_concurrency()
            };
            let shown = find_shown(decisions.iter().filter(own).filter(is_told));
            let is_own = |limit: LimitId| descriptor.places.clone().any(|place| limits[place].id == limit);
            let is_over = refused.is_some() && shown.is_some_and(rejects)
                || is_numberless && refused_by.is_none_or(is_own);
            let status = &mut self.statuses[index];
            if is_over {
                (status.code, self.overall_code) = (RlsCode::OverLimit as i32, RlsCode::OverLimit as i32);
            }
            if let Some(judged) = shown {
                let limit = &limits[usize::from(judged.limit_index)];
                status.current_limit = Some(describe_limit(limit, judged.rate.into()));
                status.limit_remaining = u32::try_from(judged.decision.remaining).unwrap_or(u32::MAX);
                status.duration_until_reset = reset_of(judged, is_over);
            }
        }
        if refused.is_some() {
            self.overall_code = RlsCode::OverLimit as i32;
        }
    }

    /// Adds the fields about limits that responses to requests have.
    pub(super) fn add_headers(
        &mut self,
        state: &RequestState,
        chain: &LimitChain,
        decisions: &[RateDecision],
    ) {
        let mut headers = HeaderMap::new();
        let gateway = &state.worker.gateway;
        limit_report::write_judged(gateway, Some(gateway.call_route()), chain, decisions, &mut headers);
        if self.overall_code == RlsCode::OverLimit as i32
            && let Some(ns) = state.judgement.retry_after_ns
        {
            headers.insert(RETRY_AFTER, HeaderValue::from(ns.div_ceil(NS_PER_SECOND)));
        }
        let added = headers.iter().filter_map(|(name, value)| {
            Some(HeaderToAdd { key: name.as_str().to_owned(), value: value.to_str().ok()?.to_owned() })
        });
        self.response_headers_to_add.extend(added);
    }
}

/// True if the decision rejects, and acts.
fn rejects(judged: &RateDecision) -> bool {
    judged.decision.outcome == LimitOutcome::Reject && !judged.dry_run
}

/// The decision that the status of a descriptor shows: the rejection with the longest retry, else the enforced one with
/// the fewest units left, else that of a dry run.
fn find_shown<'a>(decisions: impl Iterator<Item = &'a RateDecision>) -> Option<&'a RateDecision> {
    decisions.min_by_key(|judged| {
        let is_over = rejects(judged);
        let retry_ns = if is_over { judged.decision.retry_after_ns } else { 0 };
        (judged.dry_run, !is_over, u64::MAX - retry_ns, judged.decision.remaining)
    })
}

/// `None` = nobody knows, or waiting does not help.
fn reset_of(judged: &RateDecision, is_over: bool) -> Option<ProtoDuration> {
    let ns = if is_over { judged.decision.retry_after_ns } else { judged.decision.full_ns };
    (ns != u64::MAX).then(|| ProtoDuration::from_ns(ns))
}

/// The name and the numbers of one rate of a limit.
fn describe_limit(limit: &Limit, rate: usize) -> CurrentLimit {
    let located = limit.config.locate_rate(rate);
    let quotas = located.map(|(_, numbers, position)| (numbers.rate_quotas(), position));
    let rate = quotas.and_then(|(quotas, position)| quotas.get(position).map(|(rate, _)| *rate));
    let (requests_per_unit, unit) = rate.map_or((0, LimitUnit::Unknown), |rate| scale_rate(&rate));
    CurrentLimit { requests_per_unit, unit: unit as i32, name: limit.name.to_string() }
}

/// A rate in the shortest unit that is a multiple of its period.
fn scale_rate(rate: &Rate) -> (u32, LimitUnit) {
    let (units, period_ns) = (u128::from(rate.units.get()), rate.period.as_nanos());
    let fits = |unit: &&(LimitUnit, u64)| {
        let unit_ns = u128::from(unit.1) * u128::from(NS_PER_SECOND);
        unit_ns >= period_ns && unit_ns.is_multiple_of(period_ns)
    };
    let (units, unit) = match UNITS.iter().find(fits) {
        Some((unit, seconds)) => {
            (units * (u128::from(*seconds) * u128::from(NS_PER_SECOND) / period_ns), *unit)
        }
        None => (units, LimitUnit::Unknown),
    };
    (u32::try_from(units).unwrap_or(u32::MAX), unit)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_have_the_units_of_the_service() {
        for (units, seconds, expected) in [
            (5, 1, (5, LimitUnit::Second)),
            (5, 10, (30, LimitUnit::Minute)),
            (5, 60, (5, LimitUnit::Minute)),
            (5, 7_200, (60, LimitUnit::Day)),
            (5, 30 * 86_400, (5, LimitUnit::Month)),
            (5, 7, (5, LimitUnit::Unknown)),
            (u64::MAX, 1, (u32::MAX, LimitUnit::Second)),
        ] {
            let units = NonZeroU64::new(units).unwrap();
            let rate = Rate::new(units, Duration::from_secs(seconds));
            assert_eq!(scale_rate(&rate), expected, "{units} per {seconds}s");
        }
    }
}
