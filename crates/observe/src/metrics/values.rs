//! Values that each scrape reads: their metrics, and how they are registered.

use super::cells::HistogramReading;
use super::{Metrics, ValueLabel, WatchedValue};
use sluicegate_model::{LimitId, ServerId, UpstreamId};

/// A metric that is read at each scrape.
#[derive(Debug, Clone, Copy)]
pub struct ValueMetric {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) is_counter: bool,
}

const fn counter(name: &'static str, help: &'static str) -> ValueMetric {
    ValueMetric { name, help, is_counter: true }
}

const fn gauge(name: &'static str, help: &'static str) -> ValueMetric {
    ValueMetric { name, help, is_counter: false }
}

// === The process, over all workers ===

/// Open client connections, over all workers.
pub const CONNECTIONS: ValueMetric = gauge("sluicegate_connections", "Open client connections");
/// Labelled by `result`.
pub const RELOADS: ValueMetric = counter("sluicegate_reloads", "Reloads of the configuration, by result");
/// Labelled by `call` and `result`.
pub const ADMIN_CHANGES: ValueMetric =
    counter("sluicegate_admin_changes", "Changes by calls of the admin API, by result");
/// The number of the configuration in force, counted from 1.
pub const GENERATION: ValueMetric =
    gauge("sluicegate_config_generation", "Configurations of this process so far");
/// Seconds since 1970.
pub const RELOAD_TIME: ValueMetric = gauge(
    "sluicegate_config_last_reload_success_timestamp_seconds",
    "When the configuration in force took effect",
);
/// Configurations in memory: that in force, and older ones that requests still use.
pub const LIVE_GATEWAYS: ValueMetric =
    gauge("sluicegate_config_live", "Configurations that requests still use");

// === A gateway ===

/// Requests that are being handled.
pub const IN_FLIGHT: ValueMetric = gauge("sluicegate_requests_in_flight", "Requests in flight");
/// Bans in force, those of operators included.
pub const BANS: ValueMetric = gauge("sluicegate_bans_active", "Clients that are banned now");
/// 1 while the snapshot of the counters cannot be written, else 0.
pub const SNAPSHOT_FAILING: ValueMetric =
    gauge("sluicegate_snapshot_failing", "1 while the snapshot of the counters cannot be written");
/// Lines of the access log that were dropped because its output was too slow or failed.
pub const DROPPED_LINES: ValueMetric =
    counter("sluicegate_access_log_dropped", "Access log lines that were not written");
/// Spans that the collector took.
pub const SPANS_EXPORTED: ValueMetric = counter("sluicegate_spans_exported", "Spans that the collector took");
/// Spans that were lost, because the queue was full or the collector did not take them.
pub const SPANS_DROPPED: ValueMetric = counter(
    "sluicegate_spans_dropped",
    "Spans that were lost: the queue was full, or the collector did not take them",
);
/// Keys with units that were admitted without the store and are not charged there yet.
pub const DEBT_KEYS: ValueMetric =
    gauge("sluicegate_redis_debt_keys", "Keys with units admitted without Redis and not charged yet");
/// Labelled by `protocol`, `call` and `result`.
pub(super) const SERVICE_CALLS: ValueMetric =
    counter("sluicegate_service_calls", "Calls of the rate-limit service, by result");
/// Leases that callers of the rate-limit service hold.
pub const SERVICE_LEASES: ValueMetric =
    gauge("sluicegate_service_leases", "Leases that callers of the service hold");
/// Keys that the rate-limit service counts for CL.THROTTLE.
pub const THROTTLE_KEYS: ValueMetric =
    gauge("sluicegate_service_throttle_keys", "Keys that CL.THROTTLE counts");

/// Seconds since the keys of an issuer were fetched; without keys, since they are needed.
pub const ISSUER_KEYS_AGE: ValueMetric =
    gauge("sluicegate_issuer_keys_age_seconds", "Seconds since the keys of an issuer were fetched");
/// Labelled by `issuer` and `result`.
pub const ISSUER_FETCHES: ValueMetric =
    counter("sluicegate_issuer_fetches", "Fetches of the keys of an issuer, by result");

/// Labelled by `use`, `name` and `file`; in seconds since 1970.
pub const CERTIFICATE_EXPIRES: ValueMetric =
    gauge("sluicegate_certificate_expires_timestamp_seconds", "When the first certificate of a file expires");
/// Labelled by `result`.
pub const ACME_ORDERS: ValueMetric = counter("sluicegate_acme_orders", "Orders of certificates, by result");
/// Labelled by `result`.
pub const NOTIFY: ValueMetric =
    counter("sluicegate_notify", "Events for the receiver of notify, by what became of them");

// === Limits ===

/// Labelled by `limit`, `at` (a percentage) and `then`.
pub const QUOTA_STEPS: ValueMetric =
    counter("sluicegate_quota_steps", "Steps of quotas that keys have reached");

/// Requests that wait in the queues of a limit now.
pub const QUEUE_DEPTH: ValueMetric =
    gauge("sluicegate_queue_depth", "Requests waiting in the queues of a limit");
/// Keys with counters of a limit; absent for a shared concurrency limit, which does not know them.
pub const KEYS: ValueMetric = gauge("sluicegate_keys", "Keys that hold counters of a limit");
/// Requests judged on an overflow counter, because there was no room for their own.
pub const OVERFLOW: ValueMetric =
    counter("sluicegate_limit_overflow", "Requests judged on a shared overflow counter");
/// Labelled by `tier` if the tier has its own numbers.
pub const ADAPTIVE_SLOTS: ValueMetric =
    gauge("sluicegate_concurrency_limit", "Requests in flight that an adaptive limit allows");
/// Units that requests in flight have reserved; absent for a limit without `charge`.
pub const RESERVED_UNITS: ValueMetric =
    gauge("sluicegate_reserved_units", "Units that requests in flight have reserved");
/// Labelled by `how`, the fallback that decided.
pub const DEGRADED_DECISIONS: ValueMetric =
    counter("sluicegate_degraded_decisions", "Decisions while the store did not reply");
/// Repeated rejections by a shared limit without a call to the store.
pub const REJECT_CACHE_HITS: ValueMetric =
    counter("sluicegate_reject_cache_hits", "Rejections without asking the store again");
/// Decisions of a leased limit by what this process held.
pub const LEASED_DECISIONS: ValueMetric =
    counter("sluicegate_leased_decisions", "Decisions by leases, without a call of the store");
/// Calls that took, renewed or returned leases.
pub const LEASE_CALLS: ValueMetric = counter("sluicegate_lease_calls", "Calls about leases");
/// Units of leases in the hands of this process.
pub const LEASED_UNITS: ValueMetric = gauge("sluicegate_leased_units", "Units of leases that are not spent");
/// Refunds, corrections and late charges that did not reach the store.
pub const LOST_REFUNDS: ValueMetric =
    counter("sluicegate_redis_gives_lost", "Charges that could not be refunded");
/// 1 while an operator has paused the limit, else 0.
pub const PAUSED: ValueMetric = gauge("sluicegate_limit_paused", "1 while an operator has paused the limit");
/// 1 while other gateways count a shared limit with other numbers, else 0.
pub const NUMBERS_DIFFER: ValueMetric =
    gauge("sluicegate_limit_numbers_differ", "1 while other gateways count with other numbers");
/// 1 while other gateways use the name of a shared limit for another key or algorithm, else 0.
pub const NAME_COLLIDES: ValueMetric =
    gauge("sluicegate_limit_collides", "1 while others use the name for another key or algorithm");

/// Labelled by `kind`, `name` and `owner`: always 1, to be joined by the name.
pub const OWNER_INFO: ValueMetric =
    gauge("sluicegate_owner_info", "The team that owns a limit, location or upstream");

// === Upstreams ===

/// Labelled by `reason`.
pub const RETRIES: ValueMetric = counter("sluicegate_upstream_retries", "Requests that were retried");
/// Retries that the budget of an upstream did not allow.
pub const RETRIES_OVER_BUDGET: ValueMetric =
    counter("sluicegate_upstream_retries_over_budget", "Retries the budget did not allow");
/// 1 during a pause of an upstream, else 0.
pub const STOPPED: ValueMetric =
    gauge("sluicegate_upstream_stopped", "Whether an upstream has stopped requests for now");
/// Pauses of an upstream that have begun.
pub const STOPS: ValueMetric = counter("sluicegate_upstream_stops", "Stops that an upstream asked for");
/// Requests that waited for the end of a pause.
pub const STOP_HELD: ValueMetric =
    counter("sluicegate_upstream_held", "Requests that waited for the end of a stop");
/// Requests that a pause rejected.
pub const STOP_REJECTIONS: ValueMetric =
    counter("sluicegate_upstream_stop_rejections", "Requests that a stop rejected");
/// Requests that wait in the queue of an upstream now; absent without `queue`.
pub const UPSTREAM_QUEUE_DEPTH: ValueMetric =
    gauge("sluicegate_upstream_queue_depth", "Requests waiting in the queue of an upstream");

// === Servers ===

/// 1 while a server passes its health checks, else 0.
pub const SERVER_UP: ValueMetric =
    gauge("sluicegate_upstream_up", "Whether a server passes its health checks");
/// 1 while a server is ejected for its errors, else 0.
pub const SERVER_EJECTED: ValueMetric =
    gauge("sluicegate_upstream_ejected", "Whether a server is ejected for its errors");
/// 1 while a server is draining, else 0.
pub const SERVER_DRAINING: ValueMetric =
    gauge("sluicegate_upstream_draining", "Whether a server is draining");
/// Requests in flight at a server.
pub const SERVER_IN_FLIGHT: ValueMetric =
    gauge("sluicegate_upstream_in_flight", "Requests in flight at a server");
/// Ejections of a server for its errors.
pub const EJECTIONS: ValueMetric = counter("sluicegate_upstream_ejections", "Ejections of a server");
/// Connections on which a server sent data without a request.
pub const STRAY_DATA: ValueMetric =
    counter("sluicegate_upstream_stray_data", "Connections with data of no request");
/// Labelled by `result`.
pub const HEALTH_CHECKS: ValueMetric =
    counter("sluicegate_upstream_health_checks", "Health checks of a server");

impl Metrics {
    /// Registers a value of the process, which continues in the metrics of later gateways. Call it once per value.
    pub fn watch_process(
        &self,
        metric: ValueMetric,
        labels: Vec<ValueLabel>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.process_values.lock().push(WatchedValue { metric, labels, read: Box::new(read) });
    }

    /// Registers a value of this gateway.
    pub fn watch_value(
        &self,
        metric: ValueMetric,
        labels: Vec<ValueLabel>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.gateway_values.lock().push(WatchedValue { metric, labels, read: Box::new(read) });
    }

    /// Registers a value of a limit, perhaps with a further label.
    pub fn watch_limit(
        &self,
        metric: ValueMetric,
        limit: LimitId,
        label: Option<(&'static str, &str)>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let name = self.labels.limits.get(limit.0).map(|name| ("limit", name.as_str()));
        self.watch_value(metric, own_labels([name, label]), read);
    }

    /// Registers a value of an upstream, or of one of its servers, perhaps with a further label. A name that an
    /// earlier one has is left out, because their sum would mean nothing.
    pub fn watch_upstream(
        &self,
        metric: ValueMetric,
        (upstream, server): (UpstreamId, Option<ServerId>),
        label: Option<(&'static str, &str)>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let is_first = |firsts: &[usize], index: usize| firsts.get(index) == Some(&index);
        if is_first(&self.series.upstreams, upstream.0)
            && server.is_none_or(|server| is_first(&self.series.servers[upstream.0], server.0))
        {
            let names = self.labels.upstreams.get(upstream.0);
            let name = names.map(|(name, _)| ("upstream", name.as_str()));
            let server = names.zip(server).and_then(|((_, servers), server)| servers.get(server.0));
            let server = server.map(|server| ("server", server.as_str()));
            self.watch_value(metric, own_labels([name, server, label]), read);
        }
    }
}

fn own_labels<const N: usize>(labels: [Option<(&'static str, &str)>; N]) -> Vec<ValueLabel> {
    labels.into_iter().flatten().map(|(name, value)| (name, value.to_owned())).collect()
}

/// The counts of the store that gateways share.
#[derive(Debug, Clone, Default)]
pub struct StoreReading {
    /// Calls by result.
    pub calls: Vec<(&'static str, u64)>,
    /// The servers, with true for each that replies.
    pub servers: Vec<(String, bool)>,
    /// The time of calls to each server.
    pub call_times: Vec<(String, HistogramReading)>,
    /// Keys that each server has dropped for want of memory.
    pub evicted_keys: Vec<(String, u64)>,
    /// Gateways that share the store.
    pub nodes: u64,
}

impl Metrics {
    /// The counts of the store.
    pub fn watch_store(&self, read: impl Fn() -> StoreReading + Send + Sync + 'static) {
        *self.store.lock() = Some(Box::new(read));
    }
}
