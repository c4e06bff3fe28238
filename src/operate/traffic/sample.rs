//! One sample of the counters of a gateway.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Names;
use sluicegate_base::clock::Now;
use sluicegate_model::LimitId;
use sluicegate_observe::metrics::cells::BucketCounts;
use sluicegate_observe::metrics::{DecisionCounts, VERDICT_NAMES};
use sluicegate_proxy::gateway::Gateway;

/// The most upstreams with sampled response times, so that samples stay small.
const TIMED_UPSTREAMS_MAX: usize = 256;

/// The counters at one moment.
pub(super) struct TrafficSample {
    pub at: Now,
    /// Equal in samples of the same gateway.
    generation: u64,
    limits: Arc<[LimitId]>,
    limit_names: Names,
    limit_counts: Box<[DecisionCounts]>,
    pub verdicts: [u64; VERDICT_NAMES.len()],
    pub ban_rejections: u64,
    pub waits: BucketCounts,
    upstream_names: Names,
    pub upstream_times: Box<[BucketCounts]>,
}

impl TrafficSample {
    /// Reads the counters now; the names of `before`, the previous sample, are used again.
    pub(super) fn take(gateway: &Gateway, at: Now, before: Option<&TrafficSample>) -> TrafficSample {
        let before = before.filter(|before| before.generation == gateway.generation);
        let (limits, limit_names, upstream_names) = match before {
            Some(before) => {
                (before.limits.clone(), before.limit_names.clone(), before.upstream_names.clone())
            }
            None => {
                let limits: Arc<[LimitId]> = distinct_limits(gateway).into();
                let names = limits.iter().map(|limit| gateway.limits[limit.0].name.clone()).collect();
                let upstreams = gateway.upstreams.iter().take(TIMED_UPSTREAMS_MAX);
                (limits, names, upstreams.map(|upstream| upstream.name.as_ref().into()).collect())
            }
        };
        let metrics = &gateway.metrics;
        let timed = gateway.upstreams.iter().take(TIMED_UPSTREAMS_MAX);
        TrafficSample {
            at,
            generation: gateway.generation,
            limit_counts: limits.iter().map(|limit| metrics.limit_counts(*limit)).collect(),
            limits,
            limit_names,
            verdicts: metrics.verdict_counts(),
            ban_rejections: metrics.ban_rejected_count(),
            waits: metrics.wait_counts(),
            upstream_names,
            upstream_times: timed.map(|upstream| metrics.upstream_time_counts(upstream.id)).collect(),
        }
    }

    /// The limits of each name, with their name and counts.
    pub(super) fn limits(&self) -> impl Iterator<Item = (LimitId, &str, &DecisionCounts)> {
        let named = self.limits.iter().zip(self.limit_names.iter());
        named.zip(&self.limit_counts).map(|((limit, name), counts)| (*limit, &**name, counts))
    }

    /// Finds the counts that a limit of the later sample `seen` had here: by its place there and its name; zero for one
    /// that was not there.
    pub(super) fn counts_before(&self, seen: &TrafficSample) -> impl Fn(usize, &str) -> DecisionCounts {
        // Rarely different: for a minute after a reload.
        let is_same = self.generation == seen.generation;
        let by_name = || self.limit_names.iter().enumerate().map(|(at, name)| (&**name, at)).collect();
        let by_name: Option<HashMap<&str, usize>> = (!is_same).then(by_name);
        move |at, name| {
            let at = by_name.as_ref().map_or(Some(at), |by_name| by_name.get(name).copied());
            at.and_then(|at| self.limit_counts.get(at)).copied().unwrap_or_default()
        }
    }

    /// The response times of the upstream that is at `at` in the sample `seen`.
    pub(super) fn times_of(&self, seen: &TrafficSample, at: usize) -> Option<&BucketCounts> {
        let name = seen.upstream_names.get(at)?;
        let at = match self.generation == seen.generation {
            true => at,
            false => self.upstream_names.iter().position(|other| other == name)?,
        };
        self.upstream_times.get(at)
    }
}

/// The first limit of each name, in file order.
fn distinct_limits(gateway: &Gateway) -> Vec<LimitId> {
    let mut known = HashSet::new();
    let ids = gateway.limits.iter().filter(|limit| known.insert(&limit.name));
    ids.map(|limit| limit.id).collect()
}
