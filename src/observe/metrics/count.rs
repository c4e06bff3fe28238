//! What is counted while requests are served. `worker` is the calling worker's own number: each cell has one
//! writer.

use crate::config::{LimitId, LocationId, ServerId, UpstreamId};
use http::StatusCode;

use super::{BanEvent, DecisionKind, HandshakeEvent, Metrics, STATUS_CLASSES, TunnelEvent, UpstreamOutcome};

impl Metrics {
    /// A finished request; `location` is its place in the configuration.
    #[inline]
    pub fn count_request(&self, worker: usize, location: Option<LocationId>, status: StatusCode) {
        let locations = &self.series.locations;
        let none = locations.len() - 1;
        let series = locations[location.map_or(none, |location| location.0).min(none)];
        self.requests[series].add(worker, status_class(status), 1);
    }

    /// What a limit said, by the limit's place in the configuration.
    #[inline]
    pub fn count_decision(&self, worker: usize, limit: LimitId, said: DecisionKind) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.decisions[series].add(worker, said as usize, 1);
        }
    }

    /// A request whose cost for a limit is not a number.
    pub fn count_invalid_cost(&self, worker: usize, limit: LimitId) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.invalid_costs[series].add(worker, 0, 1);
        }
    }

    /// What happened to a tunnel; `count` bytes, or 1.
    #[inline]
    pub fn count_tunnel_event(&self, worker: usize, what: TunnelEvent, count: u64) {
        self.tunnels.add(worker, what as usize, count);
    }

    /// Time a request spent in the queue of a limit.
    pub fn observe_wait(&self, worker: usize, limit: LimitId, ns: u64) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.waits[series].observe(worker, ns);
        }
    }

    /// How a request to a server ended, by the places of upstream and server in the configuration.
    #[inline]
    pub fn count_upstream_outcome(
        &self,
        worker: usize,
        upstream: UpstreamId,
        server: ServerId,
        answered: UpstreamOutcome,
    ) {
        let slot = match answered {
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

    /// Time from the request being sent to the head of the answer.
    #[inline]
    pub fn observe_upstream_time(&self, worker: usize, upstream: UpstreamId, ns: u64) {
        if let Some(&series) = self.series.upstreams.get(upstream.0) {
            self.upstream_times[series].observe(worker, ns);
        }
    }

    /// An answer of the gateway's own; `cause` is a place in [`super::MetricLabels::faults`].
    #[inline]
    pub fn count_fault(&self, worker: usize, cause: usize) {
        if let Some(counters) = self.faults.get(cause) {
            counters.add(worker, 0, 1);
        }
    }

    #[inline]
    pub fn count_ban_event(&self, worker: usize, what: BanEvent) {
        self.bans.add(worker, what as usize, 1);
    }

    /// As [`Metrics::banned`], for the one thread that shares bans beside the workers.
    pub fn count_shared_ban_event(&self, what: BanEvent) {
        self.bans.add(self.labels.workers, what as usize, 1);
    }

    #[inline]
    pub fn count_accepted(&self, worker: usize) {
        self.connections.add(worker, 0, 1);
    }

    pub fn count_handshake(&self, worker: usize, how: HandshakeEvent) {
        self.handshakes.add(worker, how as usize, 1);
    }

    /// A connection closed at once because its client has too many.
    pub fn count_rejected_per_ip(&self, worker: usize) {
        self.connections.add(worker, 1, 1);
    }

    pub fn count_accept_fault(&self, worker: usize) {
        self.connections.add(worker, 2, 1);
    }
}

/// The slot of a status, by its first digit.
#[inline]
fn status_class(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES) - 1
}
