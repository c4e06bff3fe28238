//! What the gateway counts. Labels come from the configuration alone, never from a client, so that the number of
//! series is known at the start.

pub mod cells;
mod expose;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use cells::{Counters, Histogram};

pub use expose::CONTENT_TYPE;

/// The names that series are labelled with, by their places in the configuration.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    pub workers: usize,
    pub locations: Vec<String>,
    pub limits: Vec<String>,
    /// Name and servers of each.
    pub upstreams: Vec<(String, Vec<String>)>,
    /// The causes of answers that the gateway gives itself.
    pub faults: Vec<&'static str>,
    pub version: &'static str,
}

/// All counters of the process.
pub struct Metrics {
    labels: Labels,
    series: Series,
    requests: Vec<Counters<6>>,
    decisions: Vec<Counters<{ SAID.len() }>>,
    waits: Vec<Histogram>,
    upstream_requests: Vec<Vec<Counters<{ 6 + FAILURES.len() }>>>,
    upstream_times: Vec<Histogram>,
    faults: Vec<Counters<1>>,
    /// Accepted, closed, and turned away by reason.
    connections: Counters<{ 2 + TURNED_AWAY.len() }>,
    watched: Mutex<Vec<Watched>>,
}

/// Of each place the first one of the same label: places that read alike are one series, since no series may
/// come twice.
struct Series {
    /// The last is "none".
    locations: Vec<usize>,
    limits: Vec<usize>,
    upstreams: Vec<usize>,
    servers: Vec<Vec<usize>>,
}

/// One worker's access to its cells.
#[derive(Debug, Clone)]
pub struct Cells {
    metrics: Arc<Metrics>,
    worker: usize,
}

/// What a limit said to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Admit,
    Wait,
    Reject,
    /// Would have made it wait.
    DryRunWait,
    /// Would have rejected.
    DryRunReject,
}

const SAID: [&str; 5] = ["admit", "wait", "reject", "dry_run_wait", "dry_run_reject"];

/// How a request to an upstream's server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    Status(u16),
    Unreachable,
    Timeout,
    /// The connection broke before or within the answer.
    Broke,
    BadAnswer,
    /// The client left first: no fault of the server.
    Abandoned,
}

const FAILURES: [&str; 5] = ["unreachable", "timeout", "broke", "bad_answer", "abandoned"];

/// Why a connection was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnedAway {
    /// `server.connections_per_ip`.
    PerClient,
    AcceptFailed,
}

const TURNED_AWAY: [&str; 2] = ["per_client", "accept_failed"];

/// A number that is read when it is asked for.
type Read = Box<dyn Fn() -> u64 + Send + Sync>;

struct Watched {
    name: &'static str,
    help: &'static str,
    counter: bool,
    /// Place of the limit it belongs to.
    limit: Option<usize>,
    read: Read,
}

// === impl Metrics ===

impl Metrics {
    pub fn new(labels: Labels) -> Arc<Metrics> {
        let workers = labels.workers;
        let servers = |servers: &Vec<String>| servers.iter().map(|_| Counters::new(workers)).collect();
        Arc::new(Metrics {
            series: Series::new(&labels),
            requests: (0..=labels.locations.len()).map(|_| Counters::new(workers)).collect(),
            decisions: labels.limits.iter().map(|_| Counters::new(workers)).collect(),
            waits: labels.limits.iter().map(|_| Histogram::new(workers)).collect(),
            upstream_requests: labels.upstreams.iter().map(|(_, all)| servers(all)).collect(),
            upstream_times: labels.upstreams.iter().map(|_| Histogram::new(workers)).collect(),
            faults: labels.faults.iter().map(|_| Counters::new(workers)).collect(),
            connections: Counters::new(workers),
            watched: Mutex::default(),
            labels,
        })
    }

    /// The cells of worker number `worker`: for its thread alone.
    pub fn cells(self: &Arc<Metrics>, worker: usize) -> Cells {
        Cells { metrics: self.clone(), worker }
    }

    /// Requests that stand in the queues of a limit.
    pub fn watch_queue_depth(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.watch("sluicegate_queue_depth", "Requests waiting in the queues of a limit", Some(limit), read);
    }

    /// Keys that hold counters of a limit.
    pub fn watch_keys(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.watch("sluicegate_keys", "Keys that hold counters of a limit", Some(limit), read);
    }

    /// Requests in flight, over all workers.
    pub fn watch_in_flight(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.watch("sluicegate_requests_in_flight", "Requests being handled", None, read);
    }

    /// Lines of the access log that were not written.
    pub fn watch_dropped_lines(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_access_log_dropped", "Access log lines that were not written");
        let read = Box::new(read);
        self.watched.lock().push(Watched { name, help, counter: true, limit: None, read });
    }

    fn watch(
        &self,
        name: &'static str,
        help: &'static str,
        limit: Option<usize>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.watched.lock().push(Watched { name, help, counter: false, limit, read: Box::new(read) });
    }
}

// === impl Series ===

impl Series {
    fn new(labels: &Labels) -> Series {
        let mut locations = firsts(&labels.locations);
        locations.push(labels.locations.len());
        let names: Vec<&String> = labels.upstreams.iter().map(|(name, _)| name).collect();
        Series {
            locations,
            limits: firsts(&labels.limits),
            upstreams: firsts(&names),
            servers: labels.upstreams.iter().map(|(_, servers)| firsts(servers)).collect(),
        }
    }
}

fn firsts<T: PartialEq>(labels: &[T]) -> Vec<usize> {
    labels.iter().filter_map(|label| labels.iter().position(|known| known == label)).collect()
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("labels", &self.labels).finish_non_exhaustive()
    }
}

// === impl Cells ===

impl Cells {
    /// A finished request; status 0 = the client left before there was an answer.
    #[inline]
    pub fn request(&self, location: Option<usize>, status: u16) {
        let locations = &self.metrics.series.locations;
        let none = locations.len() - 1;
        let series = locations[location.unwrap_or(none).min(none)];
        self.metrics.requests[series].add(self.worker, class(status), 1);
    }

    #[inline]
    pub fn decision(&self, limit: usize, said: Said) {
        if let Some(&series) = self.metrics.series.limits.get(limit) {
            self.metrics.decisions[series].add(self.worker, said as usize, 1);
        }
    }

    /// Time a request spent in the queue of a limit.
    pub fn waited(&self, limit: usize, ns: u64) {
        if let Some(&series) = self.metrics.series.limits.get(limit) {
            self.metrics.waits[series].observe(self.worker, ns);
        }
    }

    #[inline]
    pub fn upstream_request(&self, upstream: usize, server: usize, answered: Answered) {
        let slot = match answered {
            Answered::Status(status) => class(status),
            Answered::Unreachable => 6,
            Answered::Timeout => 7,
            Answered::Broke => 8,
            Answered::BadAnswer => 9,
            Answered::Abandoned => 10,
        };
        let series = &self.metrics.series;
        let Some(&upstream) = series.upstreams.get(upstream) else { return };
        if let Some(&server) = series.servers[upstream].get(server) {
            self.metrics.upstream_requests[upstream][server].add(self.worker, slot, 1);
        }
    }

    /// Time from the request being sent to the head of the answer.
    #[inline]
    pub fn upstream_response(&self, upstream: usize, ns: u64) {
        if let Some(&series) = self.metrics.series.upstreams.get(upstream) {
            self.metrics.upstream_times[series].observe(self.worker, ns);
        }
    }

    /// `cause` is a place in [`Labels::faults`].
    #[inline]
    pub fn fault(&self, cause: usize) {
        if let Some(counters) = self.metrics.faults.get(cause) {
            counters.add(self.worker, 0, 1);
        }
    }

    #[inline]
    pub fn connection_accepted(&self) {
        self.metrics.connections.add(self.worker, 0, 1);
    }

    /// A connection that was accepted has ended.
    #[inline]
    pub fn connection_closed(&self) {
        self.metrics.connections.add(self.worker, 1, 1);
    }

    pub fn connection_turned_away(&self, why: TurnedAway) {
        self.metrics.connections.add(self.worker, 2 + why as usize, 1);
    }
}

/// The slot of a status: 1 to 5 by its first digit, 0 for none.
#[inline]
fn class(status: u16) -> usize {
    match status {
        100..=599 => usize::from(status / 100),
        600.. => 5,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
