//! One sample of the counters of a gateway.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Names;
use sluicegate_base::clock::Now;
use sluicegate_model::LimitId;
use sluicegate_observe::metrics::cells::BucketCounts;
use sluicegate_observe::metrics::{ClassCounts, DecisionCounts, LocationAnswers, VERDICT_NAMES};
use sluicegate_proxy::gateway::Gateway;

/// The most upstreams with sampled response times, so that samples stay small.
const TIMED_UPSTREAMS_MAX: usize = 256;

/// The counters at one moment.
pub(super) struct TrafficSample {
    pub at: Now,
    /// Equal in samples of the same gateway.
    generation: u64,
    pub limit_ids: Arc<[LimitId]>,
    pub limits: NamedCounts<DecisionCounts>,
    /// Of each class of the limits with shares, in their order.
    pub classes: NamedCounts<DecisionCounts>,
    pub verdicts: [u64; VERDICT_NAMES.len()],
    pub ban_rejections: u64,
    pub waits: BucketCounts,
    pub upstream_times: NamedCounts<BucketCounts>,
    /// The responses of each upstream; empty in older samples, like `locations`, so that they stay small.
    pub responses: NamedCounts<ClassCounts>,
    pub locations: NamedCounts<LocationAnswers>,
}

/// Counts with their names, in the order of the gateway.
#[derive(Default)]
pub(super) struct NamedCounts<T> {
    pub names: Names,
    pub counts: Box<[T]>,
}

impl TrafficSample {
    /// Reads the counters now; the names of `before`, the previous sample, are used again.
    pub(super) fn take(gateway: &Gateway, at: Now, before: Option<&TrafficSample>) -> TrafficSample {
        let before = before.filter(|before| before.generation == gateway.generation);
        let metrics = &gateway.metrics;
        let limit_ids =
            before.map_or_else(|| distinct_limits(gateway).into(), |before| before.limit_ids.clone());
        let limits = limit_ids.iter().map(|id| (&*gateway.limits[id.0].name, metrics.limit_counts(*id)));
        let classes = limit_ids.iter().flat_map(|id| {
            let named = metrics.class_counts(*id).filter(|(class, _)| !class.is_empty());
            named.map(|(class, counts)| (format!("{} {class}", gateway.limits[id.0].name), counts))
        });
        let classes = NamedCounts::collect(classes, before.map(|before| &before.classes));
        let upstreams = || gateway.upstreams.iter().map(|upstream| (&*upstream.name, upstream.id));
        let times = upstreams().take(TIMED_UPSTREAMS_MAX);
        let responses = upstreams().map(|(name, id)| (name, metrics.upstream_responses(id)));
        TrafficSample {
            at,
            generation: gateway.generation,
            limits: NamedCounts::collect(limits, before.map(|before| &before.limits)),
            classes,
            limit_ids,
            verdicts: metrics.verdict_counts(),
            ban_rejections: metrics.ban_rejected_count(),
            waits: metrics.wait_counts(),
            upstream_times: NamedCounts::collect(
                times.map(|(name, id)| (name, metrics.upstream_time_counts(id))),
                before.map(|before| &before.upstream_times),
            ),
            responses: NamedCounts::collect(responses, before.map(|before| &before.responses)),
            locations: NamedCounts::collect(
                metrics.location_answers(),
                before.map(|before| &before.locations),
            ),
        }
    }
}

impl<T: Copy + Default> NamedCounts<T> {
    /// Collects the counts; the names are those of `before`, which has the same.
    fn collect<N: Into<Arc<str>>>(
        counts: impl Iterator<Item = (N, T)>,
        before: Option<&NamedCounts<T>>,
    ) -> NamedCounts<T> {
        let (names, counts): (Vec<N>, Vec<T>) = counts.unzip();
        let names =
            before.map_or_else(|| names.into_iter().map(Into::into).collect(), |before| before.names.clone());
        NamedCounts { names, counts: counts.into() }
    }

    /// Finds the counts that each place of the later sample `seen` had here, by its name; zero for one that was not
    /// there.
    pub(super) fn counts_before(&self, seen: &NamedCounts<T>) -> impl Fn(usize) -> T {
        // Rarely different: for a minute after a reload.
        let is_same = Arc::ptr_eq(&self.names, &seen.names);
        let by_name = || self.names.iter().enumerate().map(|(at, name)| (&**name, at)).collect();
        let by_name: Option<HashMap<&str, usize>> = (!is_same).then(by_name);
        move |at| {
            let at = match &by_name {
                None => Some(at),
                Some(by_name) => seen.names.get(at).and_then(|name| by_name.get(&**name).copied()),
            };
            at.and_then(|at| self.counts.get(at)).copied().unwrap_or_default()
        }
    }
}

/// The first limit of each name, in file order.
fn distinct_limits(gateway: &Gateway) -> Vec<LimitId> {
    let mut known = HashSet::new();
    let ids = gateway.limits.iter().filter(|limit| known.insert(&limit.name));
    ids.map(|limit| limit.id).collect()
}
