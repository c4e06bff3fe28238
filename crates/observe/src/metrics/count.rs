//! The counting functions of requests and connections. `worker` is the index of the calling worker: each cell has one
//! writer.

use http::StatusCode;

use super::{
    AnswerOrigin, AuthResult, BanEvent, DecisionKind, HandshakeEvent, Metrics, RETRIED_FIRST, STATUS_CLASSES,
    TunnelEvent, UpstreamOutcome,
};
use sluicegate_model::{LimitId, LocationId, ServerId, UpstreamId};

impl Metrics {
    /// Counts a finished request; `location` is its index in the configuration. `None` for the duration of a tunnel,
    /// which says nothing about the gateway or an upstream.
    #[inline]
    pub fn count_request(
        &self,
        worker: usize,
        location: Option<LocationId>,
        (status, origin): (StatusCode, AnswerOrigin),
        duration_ns: Option<u64>,
    ) {
        let locations = &self.series.locations;
        let none = locations.len() - 1;
        let series = locations[location.map_or(none, |location| location.0).min(none)];
        self.requests[series].add(worker, origin as usize * STATUS_CLASSES + status_class(status), 1);
        if let Some(ns) = duration_ns {
            self.durations[series].observe(worker, ns);
        }
    }

    /// Counts a decision of a limit, given by its index in the configuration, on a request of a class: its index in
    /// the shares of the limit, 0 without shares. An unknown class is the last one.
    #[inline]
    pub fn count_decision(&self, worker: usize, (limit, class): (LimitId, u8), kind: DecisionKind) {
        if let Some(&(first, last)) = self.series.decisions.get(limit.0) {
            self.decisions[first + usize::from(class.min(last))].add(worker, kind as usize, 1);
        }
    }

    /// Counts a request with an unreadable cost for a limit.
    pub fn count_invalid_cost(&self, worker: usize, limit: LimitId) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.invalid_costs[series].add(worker, 0, 1);
        }
    }

    /// Counts a tunnel event; `count` is the number of bytes, or 1.
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
            UpstreamOutcome::Retried(status) => RETRIED_FIRST + status_class(status),
        };
        if let Some(cells) = self.server_cells(upstream, server) {
            cells.add(worker, slot, 1);
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
    pub fn count_fault(&self, worker: usize, cause: usize) {
        if let Some(counters) = self.faults.get(cause) {
            counters.add(worker, 0, 1);
        }
    }

    /// Counts an event of strikes and bans at a worker.
    pub fn count_ban_event(&self, worker: usize, event: BanEvent) {
        self.bans.add(worker, event as usize, 1);
    }

    /// Does the same as [`Metrics::count_ban_event`], for the one thread outside the workers that shares bans.
    pub fn count_shared_ban_event(&self, event: BanEvent) {
        self.bans.add(self.labels.workers, event as usize, 1);
    }

    /// Counts a decision of an auth service.
    pub fn count_auth(&self, worker: usize, result: AuthResult) {
        self.auth.add(worker, result as usize, 1);
    }

    /// Counts a connection of a client, before it is served or closed for its number.
    #[inline]
    pub fn count_accepted(&self, worker: usize) {
        self.connections.add(worker, 0, 1);
    }

    /// Counts the result of a TLS handshake or of a PROXY header.
    pub fn count_handshake(&self, worker: usize, event: HandshakeEvent) {
        self.handshakes.add(worker, event as usize, 1);
    }

    /// Counts a connection that is closed at once because its client has too many.
    pub fn count_rejected_per_ip(&self, worker: usize) {
        self.connections.add(worker, 1, 1);
    }

    /// Counts a failed accept that concerns more than its client, e.g. a lack of descriptors.
    pub fn count_accept_fault(&self, worker: usize) {
        self.connections.add(worker, 2, 1);
    }
}

/// The slot of a status class, by its first digit.
#[inline]
fn status_class(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES) - 1
}

/// The sources of the units of a response.
pub const CHARGE_NAMES: [&str; 4] = ["request", "usage", "estimate", "reserve"];

impl Metrics {
    /// Counts the units that a limit charged for a response; `how` is an index of [`CHARGE_NAMES`]. Overrun
    /// units were not charged.
    pub fn count_charge(&self, worker: usize, limit: LimitId, how: usize, units: u64, overrun: u64) {
        if let Some(&series) = self.series.limits.get(limit.0) {
            self.charges[series].add(worker, how.min(CHARGE_NAMES.len() - 1), units);
            self.charges[series].add(worker, CHARGE_NAMES.len(), overrun);
        }
    }

    /// Registers the overruns of a limit that the store counts; they are known only after the response.
    pub fn watch_overruns(&self, limit: LimitId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.store_overruns.lock().push((limit, Box::new(read)));
    }

    /// The units of all responses to a limit beyond its debt; `index` is that of its series.
    pub(super) fn sum_overruns(&self, index: usize) -> u64 {
        let readers = self.store_overruns.lock();
        let own = readers.iter().filter(|(limit, _)| self.series.limits.get(limit.0) == Some(&index));
        own.map(|(_, read)| read()).sum::<u64>() + self.charges[index].sum(CHARGE_NAMES.len())
    }
}
