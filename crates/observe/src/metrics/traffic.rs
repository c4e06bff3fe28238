//! Readings of the counters for views of a running gateway, and the counters of verdicts.

use super::cells::{BUCKETS, BucketCounts};
use super::labels::firsts;
use super::{BanEvent, LocationAnswers, Metrics};
use sluicegate_base::labelled::labelled_enum;
use sluicegate_model::{LimitId, UpstreamId};

labelled_enum! {
    /// The verdict on a request, by its word in the access log, where a fault is named by its cause.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum VerdictKind: name -> &'static str {
        /// Admitted at once.
        Admit = "admit",
        /// Admitted after a wait in a queue.
        Wait = "wait",
        /// Rejected by a limit, or by a pause of the upstream.
        Reject = "reject",
        /// Rejected for the lack of a limit's key.
        MissingKey = "missing_key",
        /// Rejected by a limit, but answered with another response.
        Degrade = "degrade",
        /// Rejected because of a ban.
        Ban = "ban",
        /// Answered by the gateway because something broke.
        Fault = "fault",
    }
}

/// The words of all verdicts, by the index of [`VerdictKind`].
pub const VERDICT_NAMES: [&str; VerdictKind::ALL.len()] = VerdictKind::LABELS;

/// The decisions of one limit since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// Requests that were admitted at once.
    pub admitted: u64,
    /// Requests that were made to wait in a queue.
    pub waited: u64,
    /// Rejected requests, also if they got another response instead.
    pub rejected: u64,
    /// Requests that a dry run would have rejected.
    pub dry_run_rejected: u64,
}

impl DecisionCounts {
    fn add(&mut self, other: DecisionCounts) {
        self.admitted += other.admitted;
        self.waited += other.waited;
        self.rejected += other.rejected;
        self.dry_run_rejected += other.dry_run_rejected;
    }
}

labelled_enum! {
    /// The kinds of series that a history has.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SeriesKind: name -> &'static str {
        /// Decisions of limits.
        Limits = "limits",
        /// Answers at locations.
        Locations = "locations",
        /// Responses of upstreams.
        Upstreams = "upstreams",
    }
}

/// The name of a series; its counts: the [`DecisionCounts`] of a limit, or the responses of servers by status class
/// from 2xx on and then all other answers; the response times of an upstream.
pub type SeriesReading<'a> = (&'a str, [u64; 5], Option<BucketCounts>);

impl Metrics {
    /// Counts the verdict on a finished request.
    #[inline]
    pub fn count_verdict(&self, worker: usize, verdict: VerdictKind) {
        self.verdicts.add(worker, verdict as usize, 1);
    }

    /// Finished requests by [`VerdictKind`].
    pub fn verdict_counts(&self) -> [u64; VerdictKind::ALL.len()] {
        std::array::from_fn(|verdict| self.verdicts.sum(verdict))
    }

    /// The decisions of a limit, which those with the same name share; zero for an unknown one.
    pub fn limit_counts(&self, limit: LimitId) -> DecisionCounts {
        let mut counts = DecisionCounts::default();
        self.class_counts(limit).for_each(|(_, of_class)| counts.add(of_class));
        counts
    }

    /// The decisions of a limit on each class of its shares; on a class without a name if it has none.
    pub fn class_counts(&self, limit: LimitId) -> impl Iterator<Item = (&str, DecisionCounts)> {
        let (first, last) = self
            .series
            .decisions
            .get(limit.0)
            .map_or((1, 0), |(first, last)| (*first, first + usize::from(*last)));
        (first..=last).map(|index| (&*self.series.decision_labels[index].1, self.read_decisions(index)))
    }

    fn read_decisions(&self, series: usize) -> DecisionCounts {
        let sum = |kind: DecisionKind| self.decisions[series].sum(kind as usize);
        DecisionCounts {
            admitted: sum(DecisionKind::Admit),
            waited: sum(DecisionKind::Wait),
            rejected: sum(DecisionKind::Reject) + sum(DecisionKind::Degrade),
            dry_run_rejected: sum(DecisionKind::DryRunReject)
                + sum(DecisionKind::UnenforcedReject)
                + sum(DecisionKind::PausedReject),
        }
    }

    /// The counters of each series of a kind, with its name; those of one name are one series.
    pub fn read_series(&self, kind: SeriesKind) -> Vec<SeriesReading<'_>> {
        match kind {
            SeriesKind::Limits => {
                let read = |at: usize| {
                    let DecisionCounts { admitted, waited, rejected, dry_run_rejected } =
                        self.limit_counts(LimitId(at));
                    (&*self.labels.limits[at], [admitted, waited, rejected, dry_run_rejected, 0], None)
                };
                firsts(&self.series.limits).map(read).collect()
            }
            SeriesKind::Locations => {
                let read =
                    |(name, LocationAnswers { responses: [_, a, b, c, d], own }): (_, LocationAnswers)| {
                        (name, [a, b, c, d, own.iter().sum()], None)
                    };
                self.location_answers().map(read).collect()
            }
            SeriesKind::Upstreams => {
                let read = |at: usize| {
                    let [_, a, b, c, d] = self.upstream_responses(UpstreamId(at));
                    let times = self.upstream_times[at].read_counts();
                    (&*self.labels.upstreams[at].0, [a, b, c, d, 0], Some(times))
                };
                let has_servers = |at: &usize| !self.series.servers[*at].is_empty();
                firsts(&self.series.upstreams).filter(has_servers).map(read).collect()
            }
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

labelled_enum! {
    /// The decision of a limit on one request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DecisionKind: name -> &'static str {
        /// Admitted at once.
        Admit = "admit",
        /// Made to wait in a queue.
        Wait = "wait",
        /// Rejected.
        Reject = "reject",
        /// Rejected, but another response was sent instead.
        Degrade = "degrade",
        /// A dry run that would have made the request wait.
        DryRunWait = "dry_run_wait",
        /// A dry run that would have rejected the request.
        DryRunReject = "dry_run_reject",
        /// The request lacks the limit's key.
        MissingKey = "missing_key",
        /// A wait, if the limit acted on the request's key.
        UnenforcedWait = "unenforced_wait",
        /// A rejection, if the limit acted on the request's key.
        UnenforcedReject = "unenforced_reject",
        /// A wait, if the limit were not paused.
        PausedWait = "paused_wait",
        /// A rejection, if the limit were not paused.
        PausedReject = "paused_reject",
    }
}

impl DecisionKind {
    /// True for a rejection without effect.
    #[inline]
    pub fn is_dry_rejection(self) -> bool {
        use DecisionKind::{DryRunReject, PausedReject, UnenforcedReject};
        matches!(self, DryRunReject | UnenforcedReject | PausedReject)
    }
}
