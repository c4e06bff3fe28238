//! The metrics of the gateway. Labels come only from the configuration, never from a client, so the number of series is
//! bounded.

mod answers;
mod calls;
pub mod cells;
mod count;
mod expose;
mod labels;
mod traffic;
pub mod values;

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;

use cells::{Counters, Histogram};
use sluicegate_base::labelled::labelled_enum;
use sluicegate_model::LimitId;

pub use answers::{AnswerOrigin, ClassCounts, LocationAnswers, OWN_CAUSES};
pub use calls::{CallResult, ServiceCallCounts};
pub use count::CHARGE_NAMES;
pub use expose::CONTENT_TYPE;
use labels::{PreviousCells, SeriesIndex};
pub use traffic::{DecisionCounts, DecisionKind, SeriesKind, SeriesReading, VERDICT_NAMES, VerdictKind};
pub use values::StoreReading;
use values::ValueMetric;

/// The names in the labels of series, by their indices in the configuration.
#[derive(Debug, Clone, Default)]
pub struct MetricLabels {
    /// The number of workers; each has cells of its own.
    pub workers: usize,
    /// The names of the locations; those with the same name share one series.
    pub locations: Vec<String>,
    /// The names of the limits; those with the same name share one series.
    pub limits: Vec<String>,
    /// The names of the classes of each limit with shares; empty for one without.
    pub classes: Vec<Vec<String>>,
    /// True for each limit that charges by the response.
    pub charging: Vec<bool>,
    /// The name of each upstream, and the names of its servers.
    pub upstreams: Vec<(String, Vec<String>)>,
    /// The causes of faults.
    pub faults: Vec<&'static str>,
    /// The version of the program.
    pub version: &'static str,
}

/// All metrics of one gateway. The next gateway adopts the cells of every label that it still has.
pub struct Metrics {
    labels: MetricLabels,
    series: SeriesIndex,
    /// Requests by location, the last without one; each by [`AnswerOrigin`] and status class.
    requests: Vec<Arc<Counters<{ STATUS_CLASSES * AnswerOrigin::ALL.len() }>>>,
    /// Durations by location, like `requests`.
    durations: Vec<Arc<Histogram>>,
    /// By [`SeriesIndex::decisions`]; those with equal labels are one.
    decisions: Vec<Arc<Counters<{ DecisionKind::ALL.len() }>>>,
    waits: Vec<Arc<Histogram>>,
    invalid_costs: Vec<Arc<Counters<1>>>,
    /// Units by [`CHARGE_NAMES`], and last those of overruns.
    charges: Vec<Arc<Counters<{ CHARGE_NAMES.len() + 1 }>>>,
    upstream_requests: Vec<Vec<Arc<ServerCounters>>>,
    upstream_times: Vec<Arc<Histogram>>,
    upstream_waits: Vec<Arc<Histogram>>,
    faults: Vec<Arc<Counters<1>>>,
    /// Counts by [`VerdictKind`].
    verdicts: Arc<Counters<{ VerdictKind::ALL.len() }>>,
    /// Counts by [`BanEvent`]; one block more than workers, for the thread that shares bans.
    bans: Arc<Counters<5>>,
    /// Counts by [`AuthResult`].
    auth: Arc<Counters<{ AuthResult::ALL.len() }>>,
    /// Counts by [`TunnelEvent`].
    tunnels: Arc<Counters<4>>,
    /// Accepted connections, and rejected ones by reason.
    connections: Arc<Counters<{ 1 + CONNECTION_REJECTIONS.len() }>>,
    /// Counts by [`HandshakeEvent`].
    handshakes: Arc<Counters<{ HANDSHAKE_RESULTS.len() + PROXY_HEADER_RESULTS.len() }>>,
    /// Values of this gateway.
    gateway_values: Mutex<Vec<WatchedValue>>,
    /// Values of the process, whichever gateway is in force.
    process_values: Arc<Mutex<Vec<WatchedValue>>>,
    store: Mutex<Option<Box<dyn Fn() -> StoreReading + Send + Sync>>>,
    /// Readers of overruns that the store counts, by limit.
    store_overruns: Mutex<Vec<(LimitId, ValueReader)>>,
}

/// Classes of status codes, by their first digit.
const STATUS_CLASSES: usize = 5;

/// An event of strikes and bans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BanEvent {
    /// A rejection that counts towards a ban.
    Strike,
    /// A rejection that could not be counted, because the table was full.
    Uncounted,
    /// A ban that strikes at this gateway began.
    Started,
    /// A request rejected because of a ban.
    Rejected,
    /// A ban that another gateway started.
    Learned,
}

labelled_enum! {
    /// The decision of an auth service on a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuthResult: name -> &'static str {
        /// The service admitted the request.
        Allowed = "allowed",
        /// The service refused it, or sent its client elsewhere.
        Refused = "refused",
        /// There was no decision.
        Failed = "failed",
        /// An earlier answer admitted it, and nothing was asked.
        Cached = "cached",
        /// The answer to an equal request at the same time admitted it.
        Shared = "shared",
    }
}

/// An event of connections that switched to another protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEvent {
    /// A connection that switched.
    Opened,
    /// The end of a tunnel, whichever side ended it.
    Closed,
    /// Bytes to the client.
    Sent,
    /// Bytes from the client.
    Received,
}

/// The outcome of a request to an upstream's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamOutcome {
    /// A response with this status, which is counted by its class.
    Status(StatusCode),
    /// A server that could not be connected to.
    Unreachable,
    /// A connection or a response that took longer than the upstream or the location allows.
    Timeout,
    /// The connection broke before or within the response.
    Broken,
    /// A response that is not valid HTTP.
    BadResponse,
    /// The client left first, which is no fault of the server.
    Abandoned,
    /// A response that another try follows; counted besides its status.
    Retried(StatusCode),
}

const FAULT_OUTCOMES: [&str; 5] = ["unreachable", "timeout", "broke", "bad_answer", "abandoned"];

/// The reasons to reject a connection.
const CONNECTION_REJECTIONS: [&str; 2] = ["per_client", "accept_failed"];

/// The result of a TLS handshake or of a PROXY header, which precede HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeEvent {
    /// A complete handshake, which began a new session.
    TlsFull,
    /// A handshake that resumed an earlier session.
    TlsResumed,
    /// A handshake that failed by the rules of TLS, e.g. without a common version or a valid certificate.
    TlsFailed,
    /// The client left during the handshake.
    TlsAbandoned,
    /// A handshake that was not over in time.
    TlsTimedOut,
    /// Plain HTTP, or anything else that is no TLS handshake.
    TlsPlainHttp,
    /// The header names the client.
    ProxyAnnounced,
    /// The header names no client, because the proxy itself connects.
    ProxyLocal,
    /// A connection without a header, or of a peer that may not send one, where the header is optional.
    ProxyAbsent,
    /// The header is invalid or cut, missing where it is required, or sent by a peer that is not trusted.
    ProxyRejected,
    /// The header was not complete in time.
    ProxyTimedOut,
}

const HANDSHAKE_RESULTS: [&str; 6] = ["full", "resumed", "failed", "abandoned", "timed_out", "plain_http"];
const PROXY_HEADER_RESULTS: [&str; 5] = ["announced", "local", "absent", "refused", "timed_out"];

/// The responses of a server by status class, its faults, and those responses that another try followed.
type ServerCounters = Counters<{ RETRIED_FIRST + STATUS_CLASSES }>;

/// The slot of the first class of responses that another try followed.
const RETRIED_FIRST: usize = STATUS_CLASSES + FAULT_OUTCOMES.len();

/// A number that each scrape reads.
type ValueReader = Box<dyn Fn() -> u64 + Send + Sync>;

/// The name and the value of a label.
pub type ValueLabel = (&'static str, String);

struct WatchedValue {
    metric: ValueMetric,
    labels: Vec<ValueLabel>,
    read: ValueReader,
}

// === impl Metrics ===

impl Metrics {
    /// The metrics of a first gateway: all counts are zero.
    pub fn new(labels: MetricLabels) -> Arc<Metrics> {
        Metrics::continue_from(None, labels)
    }

    /// Adopts the cells of `before` for labels that both have, if the number of workers is the same.
    pub fn continue_from(before: Option<&Metrics>, labels: MetricLabels) -> Arc<Metrics> {
        let workers = labels.workers;
        let before = before.filter(|before| before.labels.workers == workers);
        let previous_cells = PreviousCells { previous: before, workers };
        let series = SeriesIndex::new(&labels);
        let upstreams = &series.upstream_names;
        let servers = labels
            .upstreams
            .iter()
            .map(|(name, servers)| previous_cells.reuse_server_cells(name, servers))
            .collect();
        Arc::new(Metrics {
            requests: previous_cells.reuse_location_cells(&labels.locations, |all| &all.requests),
            durations: previous_cells.reuse_location_cells(&labels.locations, |all| &all.durations),
            decisions: labels::share_equal(
                &series.decision_labels,
                previous_cells.reuse_cells(&series.decision_labels, |all| {
                    (&all.series.decision_labels, &all.decisions)
                }),
            ),
            waits: previous_cells.reuse_cells(&labels.limits, |all| (&all.labels.limits, &all.waits)),
            invalid_costs: previous_cells
                .reuse_cells(&labels.limits, |all| (&all.labels.limits, &all.invalid_costs)),
            charges: previous_cells.reuse_cells(&labels.limits, |all| (&all.labels.limits, &all.charges)),
            upstream_requests: servers,
            upstream_times: previous_cells
                .reuse_cells(upstreams, |all| (&all.series.upstream_names, &all.upstream_times)),
            upstream_waits: previous_cells
                .reuse_cells(upstreams, |all| (&all.series.upstream_names, &all.upstream_waits)),
            faults: previous_cells.reuse_cells(&labels.faults, |all| (&all.labels.faults, &all.faults)),
            verdicts: previous_cells.reuse_cell(workers, |all| Some(&all.verdicts)),
            bans: previous_cells.reuse_cell(workers + 1, |all| Some(&all.bans)),
            auth: previous_cells.reuse_cell(workers, |all| Some(&all.auth)),
            tunnels: previous_cells.reuse_cell(workers, |all| Some(&all.tunnels)),
            connections: previous_cells.reuse_cell(workers, |all| Some(&all.connections)),
            handshakes: previous_cells.reuse_cell(workers, |all| Some(&all.handshakes)),
            gateway_values: Mutex::default(),
            process_values: before.map(|before| before.process_values.clone()).unwrap_or_default(),
            store: Mutex::default(),
            store_overruns: Mutex::default(),
            series,
            labels,
        })
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("labels", &self.labels).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
