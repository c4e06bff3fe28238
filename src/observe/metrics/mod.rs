//! What the gateway counts. Labels come from the configuration alone, never from a client, so that the number of
//! series is known at the start.

pub mod cells;
mod count;
mod expose;
mod labels;
mod servers;
mod store;

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;

use cells::{Counters, Histogram};

pub use expose::CONTENT_TYPE;
use labels::{PreviousCells, SeriesIndex};
pub use servers::ServerMetric;
pub use store::StoreReading;

/// The names that series are labelled with, by their places in the configuration.
#[derive(Debug, Clone, Default)]
pub struct MetricLabels {
    pub workers: usize,
    pub locations: Vec<String>,
    pub limits: Vec<String>,
    /// Name and servers of each.
    pub upstreams: Vec<(String, Vec<String>)>,
    /// The causes of answers that the gateway gives itself.
    pub faults: Vec<&'static str>,
    pub version: &'static str,
}

/// All counters of one gateway. Cells belong to their labels: a later gateway goes on with those it still has.
pub struct Metrics {
    labels: MetricLabels,
    series: SeriesIndex,
    requests: Vec<Arc<Counters<STATUS_CLASSES>>>,
    decisions: Vec<Arc<Counters<{ DECISION_NAMES.len() }>>>,
    waits: Vec<Arc<Histogram>>,
    invalid_costs: Vec<Arc<Counters<1>>>,
    upstream_requests: Vec<Vec<Arc<ServerCounters>>>,
    upstream_times: Vec<Arc<Histogram>>,
    faults: Vec<Arc<Counters<1>>>,
    /// By [`BanEvent`]; one cell more than workers, for what is counted beside them.
    bans: Arc<Counters<5>>,
    /// By [`TunnelEvent`].
    tunnels: Arc<Counters<4>>,
    /// Accepted, and turned away by reason.
    connections: Arc<Counters<{ 1 + CONNECTION_REJECTIONS.len() }>>,
    /// By [`Opening`].
    handshakes: Arc<Counters<{ HANDSHAKE_RESULTS.len() + PROXY_HEADER_RESULTS.len() }>>,
    /// Of one gateway.
    gateway_values: Mutex<Vec<WatchedValue>>,
    /// Of the process, whichever gateway it serves by.
    process_values: Arc<Mutex<Vec<WatchedValue>>>,
    store: Mutex<Option<Box<dyn Fn() -> StoreReading + Send + Sync>>>,
}

/// Classes of status codes, by their first digit.
const STATUS_CLASSES: usize = 5;

/// What a limit said to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionKind {
    Admit,
    Wait,
    Reject,
    /// Refused, and something else answered instead of the rejection.
    Degrade,
    /// Would have made it wait.
    DryRunWait,
    /// Would have rejected.
    DryRunReject,
}

const DECISION_NAMES: [&str; 6] = ["admit", "wait", "reject", "degrade", "dry_run_wait", "dry_run_reject"];

/// What bans are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BanEvent {
    /// A refusal that counts towards a ban.
    Strike,
    /// One that does not, for want of room.
    Uncounted,
    Started,
    /// A request refused because of a ban.
    Rejected,
    /// A ban that another gateway started.
    Learned,
}

/// What happens to connections that speak something else than HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEvent {
    Opened,
    Closed,
    /// Bytes to the client.
    Sent,
    /// Bytes from the client.
    Received,
}

/// How a request to an upstream's server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamOutcome {
    Status(StatusCode),
    Unreachable,
    Timeout,
    /// The connection broke before or within the answer.
    Broken,
    BadResponse,
    /// The client left first: no fault of the server.
    Abandoned,
}

const FAULT_OUTCOMES: [&str; 5] = ["unreachable", "timeout", "broke", "bad_answer", "abandoned"];

/// Why connections are turned away.
const CONNECTION_REJECTIONS: [&str; 2] = ["per_client", "accept_failed"];

/// How what comes before HTTP ended: a TLS handshake, or a PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeEvent {
    TlsFull,
    TlsResumed,
    TlsFailed,
    /// The client left within it.
    TlsAbandoned,
    TlsTimedOut,
    /// Plain HTTP, or something else that is no handshake.
    TlsPlainHttp,
    ProxyAnnounced,
    /// The header names no client: the proxy speaks for itself.
    ProxyLocal,
    ProxyAbsent,
    ProxyRejected,
    ProxyTimedOut,
}

const HANDSHAKE_RESULTS: [&str; 6] = ["full", "resumed", "failed", "abandoned", "timed_out", "plain_http"];
const PROXY_HEADER_RESULTS: [&str; 5] = ["announced", "local", "absent", "refused", "timed_out"];

/// What a server answered, by class, and how it failed.
type ServerCounters = Counters<{ STATUS_CLASSES + FAULT_OUTCOMES.len() }>;

/// A number that is read when it is asked for.
pub type ValueReader = Box<dyn Fn() -> u64 + Send + Sync>;

struct WatchedValue {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
    labels: Vec<(&'static str, String)>,
    read: ValueReader,
}

// === impl Metrics ===

impl Metrics {
    pub fn new(labels: MetricLabels) -> Arc<Metrics> {
        Metrics::continue_from(None, labels)
    }

    /// Goes on counting where `before` does, of as many workers, for labels that both have.
    pub fn continue_from(before: Option<&Metrics>, labels: MetricLabels) -> Arc<Metrics> {
        let workers = labels.workers;
        let before = before.filter(|before| before.labels.workers == workers);
        let known = PreviousCells { previous: before, workers };
        // Where no location is.
        let nowhere = before.and_then(|before| before.requests.last().cloned());
        let nowhere = nowhere.unwrap_or_else(|| Arc::new(Counters::new(workers)));
        let mut requests = known.reuse_cells(&labels.locations, |all| (&all.labels.locations, &all.requests));
        requests.push(nowhere);
        let times = labels.upstreams.iter().map(|(name, _)| known.reuse_times(name)).collect();
        let servers =
            labels.upstreams.iter().map(|(name, servers)| known.reuse_server_cells(name, servers)).collect();
        Arc::new(Metrics {
            series: SeriesIndex::new(&labels),
            requests,
            decisions: known.reuse_cells(&labels.limits, |all| (&all.labels.limits, &all.decisions)),
            waits: known.reuse_cells(&labels.limits, |all| (&all.labels.limits, &all.waits)),
            invalid_costs: known.reuse_cells(&labels.limits, |all| (&all.labels.limits, &all.invalid_costs)),
            upstream_requests: servers,
            upstream_times: times,
            faults: known.reuse_cells(&labels.faults, |all| (&all.labels.faults, &all.faults)),
            bans: known.reuse_unlabelled(workers + 1, |all| &all.bans),
            tunnels: known.reuse_unlabelled(workers, |all| &all.tunnels),
            connections: known.reuse_unlabelled(workers, |all| &all.connections),
            handshakes: known.reuse_unlabelled(workers, |all| &all.handshakes),
            gateway_values: Mutex::default(),
            process_values: before.map(|before| before.process_values.clone()).unwrap_or_default(),
            store: Mutex::default(),
            labels,
        })
    }

    /// Requests that stand in the queues of a limit.
    pub fn watch_queue_depth(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.watch_limit_gauge(
            "sluicegate_queue_depth",
            "Requests waiting in the queues of a limit",
            Some(limit),
            read,
        );
    }

    /// Keys that hold counters of a limit.
    pub fn watch_keys(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.watch_limit_gauge("sluicegate_keys", "Keys that hold counters of a limit", Some(limit), read);
    }

    /// Requests that a limit judged on a shared overflow counter.
    pub fn watch_overflow(&self, limit: usize, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_limit_overflow", "Requests judged on a shared overflow counter");
        self.watch_counter(name, help, self.limit_label(limit), read);
    }

    /// How many requests of one key a limit allows in flight that adapts; `tier` has one of its own.
    pub fn watch_slots(
        &self,
        limit: usize,
        tier: Option<&str>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let (name, help) =
            ("sluicegate_concurrency_limit", "Requests in flight that an adaptive limit allows");
        let mut labels = self.limit_label(limit);
        labels.extend(tier.map(|tier| ("tier", tier.to_owned())));
        self.watch_gauge(name, help, labels, read);
    }

    /// Requests in flight, over all workers.
    pub fn watch_in_flight(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.watch_limit_gauge("sluicegate_requests_in_flight", "Requests being handled", None, read);
    }

    /// Client connections that are open, over all workers; in the metrics of later gateways, too.
    pub fn watch_connections(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_connections", "Client connections that are open");
        self.watch_process_value(name, help, None, read);
    }

    /// Clients that are banned.
    pub fn watch_bans(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.watch_limit_gauge("sluicegate_bans_active", "Clients that are banned now", None, read);
    }

    /// Lines of the access log that were not written.
    pub fn watch_dropped_lines(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_access_log_dropped", "Access log lines that were not written");
        self.watch_counter(name, help, Vec::new(), read);
    }

    /// How many new configurations came to `result`.
    pub fn watch_reloads(&self, result: &'static str, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_reloads", "New configurations, by what came of them");
        self.watch_process_value(name, help, Some(("result", result.to_owned())), read);
    }

    /// Which configuration of this process is in force, counted from 1.
    pub fn watch_generation(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let help = "Configurations that were in force so far";
        self.watch_process_value("sluicegate_config_generation", help, None, read);
    }

    /// When the configuration in force was taken over, in seconds since 1970.
    pub fn watch_reload_time(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let name = "sluicegate_config_last_reload_success_timestamp_seconds";
        self.watch_process_value(name, "When the configuration in force was taken over", None, read);
    }

    /// Gateways that still have requests, the one in force included.
    pub fn watch_gateways(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let help = "Configurations that requests in flight are still judged by";
        self.watch_process_value("sluicegate_config_live", help, None, read);
    }

    /// What belongs to the process, whichever gateway is in force: to be called once. A counter has a label.
    fn watch_process_value(
        &self,
        name: &'static str,
        help: &'static str,
        label: Option<(&'static str, String)>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let (counter, labels) = (label.is_some(), label.into_iter().collect());
        self.process_values.lock().push(WatchedValue {
            name,
            help,
            is_counter: counter,
            labels,
            read: Box::new(read),
        });
    }

    fn watch_limit_gauge(
        &self,
        name: &'static str,
        help: &'static str,
        limit: Option<usize>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let labels = limit.map(|limit| self.limit_label(limit)).unwrap_or_default();
        self.watch_gauge(name, help, labels, read);
    }

    fn watch_gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: Vec<(&'static str, String)>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.gateway_values.lock().push(WatchedValue {
            name,
            help,
            is_counter: false,
            labels,
            read: Box::new(read),
        });
    }

    fn watch_counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: Vec<(&'static str, String)>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.gateway_values.lock().push(WatchedValue {
            name,
            help,
            is_counter: true,
            labels,
            read: Box::new(read),
        });
    }

    fn limit_label(&self, limit: usize) -> Vec<(&'static str, String)> {
        self.labels.limits.get(limit).map(|name| ("limit", name.clone())).into_iter().collect()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("labels", &self.labels).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
