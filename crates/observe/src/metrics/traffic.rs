//! Readings of the counters for views of a running gateway, and the counters of verdicts.

use super::cells::{BUCKETS, BucketCounts};
use super::{BanEvent, DecisionKind, Metrics};
use sluicegate_model::{LimitId, UpstreamId};

/// The verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictKind {
    Admit,
    /// Admitted after a wait in a queue.
    Wait,
    Reject,
    MissingKey,
    Degrade,
    Ban,
    /// Answered by the gateway because something broke.
    Fault,
}

/// The verdicts by their words in the access log, where a fault is named by its cause.
pub const VERDICT_NAMES: [&str; 7] = ["admit", "wait", "reject", "missing_key", "degrade", "ban", "fault"];

/// The decisions of one limit since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    pub admitted: u64,
    pub waited: u64,
    /// Rejected requests, also if they got another response instead.
    pub rejected: u64,
    /// Requests that a dry run would have rejected.
    pub dry_run_rejected: u64,
}

impl Metrics {
    /// Counts the verdict on a finished request.
    #[inline]
    pub fn count_verdict(&self, worker: usize, verdict: VerdictKind) {
        self.verdicts.add(worker, verdict as usize, 1);
    }

    /// Finished requests by [`VerdictKind`].
    pub fn verdict_counts(&self) -> [u64; VERDICT_NAMES.len()] {
        std::array::from_fn(|verdict| self.verdicts.sum(verdict))
    }

    pub fn limit_counts(&self, limit: LimitId) -> DecisionCounts {
        let Some(&series) = self.series.limits.get(limit.0) else { return DecisionCounts::default() };
        let sum = |kind: DecisionKind| self.decisions[series].sum(kind as usize);
        DecisionCounts {
            admitted: sum(DecisionKind::Admit),
            waited: sum(DecisionKind::Wait),
            rejected: sum(DecisionKind::Reject) + sum(DecisionKind::Degrade),
            dry_run_rejected: sum(DecisionKind::DryRunReject) + sum(DecisionKind::UnenforcedReject),
        }
    }

    /// Requests that were rejected because of a ban.
    pub fn ban_rejected_count(&self) -> u64 {
        self.bans.sum(BanEvent::Rejected as usize)
    }

    /// The waits in all queues, by bucket.
    pub fn wait_counts(&self) -> BucketCounts {
        let mut sums = [0; BUCKETS];
        for (index, histogram) in self.waits.iter().enumerate() {
            if self.series.limits[index] == index {
                sums.iter_mut().zip(histogram.read_counts()).for_each(|(sum, count)| *sum += count);
            }
        }
        sums
    }

    /// The response times of an upstream, by bucket.
    pub fn upstream_time_counts(&self, upstream: UpstreamId) -> BucketCounts {
        let series = self.series.upstreams.get(upstream.0);
        series.map_or([0; BUCKETS], |&series| self.upstream_times[series].read_counts())
    }
}
