//! What is counted while requests are served. `worker` is the calling worker's own number: each cell has one
//! writer.

use http::StatusCode;

use super::{Answered, Banning, CLASSES, Metrics, Opening, Said, Tunnelled};

impl Metrics {
    /// A finished request; `location` is its place in the configuration.
    #[inline]
    pub fn answered(&self, worker: usize, location: Option<usize>, status: StatusCode) {
        let locations = &self.series.locations;
        let none = locations.len() - 1;
        let series = locations[location.unwrap_or(none).min(none)];
        self.requests[series].add(worker, class(status), 1);
    }

    /// What a limit said, by the limit's place in the configuration.
    #[inline]
    pub fn decided(&self, worker: usize, limit: usize, said: Said) {
        if let Some(&series) = self.series.limits.get(limit) {
            self.decisions[series].add(worker, said as usize, 1);
        }
    }

    /// A request whose cost for a limit is not a number.
    pub fn invalid_cost(&self, worker: usize, limit: usize) {
        if let Some(&series) = self.series.limits.get(limit) {
            self.invalid_costs[series].add(worker, 0, 1);
        }
    }

    /// What happened to a tunnel; `count` bytes, or 1.
    #[inline]
    pub fn tunnelled(&self, worker: usize, what: Tunnelled, count: u64) {
        self.tunnels.add(worker, what as usize, count);
    }

    /// Time a request spent in the queue of a limit.
    pub fn waited(&self, worker: usize, limit: usize, ns: u64) {
        if let Some(&series) = self.series.limits.get(limit) {
            self.waits[series].observe(worker, ns);
        }
    }

    /// How a request to a server ended, by the places of upstream and server in the configuration.
    #[inline]
    pub fn upstream_answered(&self, worker: usize, upstream: usize, server: usize, answered: Answered) {
        let slot = match answered {
            Answered::Status(status) => class(status),
            Answered::Unreachable => CLASSES,
            Answered::Timeout => CLASSES + 1,
            Answered::Broke => CLASSES + 2,
            Answered::BadAnswer => CLASSES + 3,
            Answered::Abandoned => CLASSES + 4,
        };
        let Some(&upstream) = self.series.upstreams.get(upstream) else { return };
        if let Some(&server) = self.series.servers[upstream].get(server) {
            self.upstream_requests[upstream][server].add(worker, slot, 1);
        }
    }

    /// Time from the request being sent to the head of the answer.
    #[inline]
    pub fn upstream_responded(&self, worker: usize, upstream: usize, ns: u64) {
        if let Some(&series) = self.series.upstreams.get(upstream) {
            self.upstream_times[series].observe(worker, ns);
        }
    }

    /// An answer of the gateway's own; `cause` is a place in [`super::Labels::faults`].
    #[inline]
    pub fn fault(&self, worker: usize, cause: usize) {
        if let Some(counters) = self.faults.get(cause) {
            counters.add(worker, 0, 1);
        }
    }

    #[inline]
    pub fn banned(&self, worker: usize, what: Banning) {
        self.bans.add(worker, what as usize, 1);
    }

    /// As [`Metrics::banned`], for the one thread that shares bans beside the workers.
    pub fn banned_beside(&self, what: Banning) {
        self.bans.add(self.labels.workers, what as usize, 1);
    }

    #[inline]
    pub fn accepted(&self, worker: usize) {
        self.connections.add(worker, 0, 1);
    }

    pub fn opened(&self, worker: usize, how: Opening) {
        self.openings.add(worker, how as usize, 1);
    }

    /// A connection closed at once because its client has too many.
    pub fn refused_per_ip(&self, worker: usize) {
        self.connections.add(worker, 1, 1);
    }

    pub fn accept_failed(&self, worker: usize) {
        self.connections.add(worker, 2, 1);
    }
}

/// The slot of a status, by its first digit.
#[inline]
fn class(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1
}
