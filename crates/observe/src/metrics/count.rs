//! The counting functions of requests and connections. `worker` is the index of the calling worker: each cell has one
//! writer.

use http::StatusCode;
use sluicegate_model::{LimitId, LocationId, ServerId, UpstreamId};

use super::{
    AnswerMaker, BanEvent, DecisionKind, HandshakeEvent, Metrics, STATUS_CLASSES, TunnelEvent,
    UpstreamOutcome,
};

impl Metrics {
    /// Counts a finished request; `location` is its index in the configuration. `None` for the duration of a tunnel,
    /// which says nothing about the gateway or an upstream.
    #[inline]
    pub fn count_request(
        &self,
        worker: usize,
        location: Option<LocationId>,
        (status, by): (StatusCode, AnswerMaker),
        duration_ns: Option<u64>,
    ) {
        let locations = &self.series.locations;
        let none = locations.len() - 1;
        let series = locations[location.map_or(none, |location| location.0).min(none)];
        self.requests[series].add(worker, by as usize * STATUS_CLASSES + status_class(status), 1);
        if let Some(ns) = duration_ns {
            self.durations[series].observe(worker, ns);
        }
    }

    /// Counts a decision of a limit; `limit` is its index in the configuration.
    #[inline]
    pub fn count_decision(&self, worker: usize, limit: LimitId, kind: DecisionKind) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.decisions[series].add(worker, kind as usize, 1);
        }
    }

    /// Counts a request with an unreadable cost for a limit.
    pub fn count_invalid_cost(&self, worker: usize, limit: LimitId) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.invalid_costs[series].add(worker, 0, 1);
        }
    }

    /// Counts a tunnel event; `count` is the number of bytes, or 1.
    #[inline]
    pub fn count_tunnel_event(&self, worker: usize, event: TunnelEvent, count: u64) {
        self.tunnels.add(worker, event as usize, count);
    }

    /// Records the time of a request in the queue of a limit.
    pub fn observe_wait(&self, worker: usize, limit: LimitId, ns: u64) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.waits[series].observe(worker, ns);
        }
    }

    /// Counts the outcome of a request to a server; `upstream` and `server` are indices in the configuration.
    #[inline]
    pub fn count_upstream_outcome(
        &self,
        worker: usize,
        upstream: UpstreamId,
        server: ServerId,
        outcome: UpstreamOutcome,
    ) {
        let slot = match outcome {
            UpstreamOutcome::Status(status) => status_class(status),
            UpstreamOutcome::Unreachable => STATUS_CLASSES,
            UpstreamOutcome::Timeout => STATUS_CLASSES + 1,
            UpstreamOutcome::Broken => STATUS_CLASSES + 2,
            UpstreamOutcome::BadResponse => STATUS_CLASSES + 3,
            UpstreamOutcome::Abandoned => STATUS_CLASSES + 4,
        };
        let Some(&upstream) = self.series.upstreams.get(upstream.0) else { return };
        if let Some(&server) = self.series.servers[upstream].get(server.0) {
            self.upstream_requests[upstream][server].add(worker, slot, 1);
        }
    }

    /// Records the time from sending a request to the head of its response.
    #[inline]
    pub fn observe_upstream_time(&self, worker: usize, upstream: UpstreamId, ns: u64) {
        if let Some(&series) = self.series.upstreams.get(upstream.0) {
            self.upstream_times[series].observe(worker, ns);
        }
    }

    /// Records the time of a request in the queue of an upstream.
    pub fn observe_upstream_wait(&self, worker: usize, upstream: UpstreamId, ns: u64) {
        if let Some(&series) = self.series.upstreams.get(upstream.0) {
            self.upstream_waits[series].observe(worker, ns);
        }
    }

    /// Counts a fault; `cause` is an index in [`super::MetricLabels::faults`].
    #[inline]
    pub fn count_fault(&self, worker: usize, cause: usize) {
        if let Some(counters) = self.faults.get(cause) {
            counters.add(worker, 0, 1);
        }
    }

    #[inline]
    pub fn count_ban_event(&self, worker: usize, event: BanEvent) {
        self.bans.add(worker, event as usize, 1);
    }

    /// Does the same as [`Metrics::count_ban_event`], for the one thread outside the workers that shares bans.
    pub fn count_shared_ban_event(&self, event: BanEvent) {
        self.bans.add(self.labels.workers, event as usize, 1);
    }

    #[inline]
    pub fn count_accepted(&self, worker: usize) {
        self.connections.add(worker, 0, 1);
    }

    pub fn count_handshake(&self, worker: usize, event: HandshakeEvent) {
        self.handshakes.add(worker, event as usize, 1);
    }

    /// Counts a connection that is closed at once because its client has too many.
    pub fn count_rejected_per_ip(&self, worker: usize) {
        self.connections.add(worker, 1, 1);
    }

    pub fn count_accept_fault(&self, worker: usize) {
        self.connections.add(worker, 2, 1);
    }
}

/// The slot of a status class, by its first digit.
#[inline]
fn status_class(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES) - 1
}
