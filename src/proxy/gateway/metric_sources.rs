//! The labels of a gateway's metrics, and the values that they read at each scrape.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{REQUESTS_CLOSED, REQUESTS_OPENED};
use crate::admission::ban::Bans;
use crate::admission::operator_bans::OperatorBans;
use crate::base::clock::Now;
use crate::config::{self, Config};
use crate::limit::Limit;
use crate::observe::access_log::AccessLog;
use crate::observe::metrics::cells::Counters;
use crate::observe::metrics::{MetricLabels, Metrics, ServerMetric, StopMetric};
use crate::observe::traces::Tracer;
use crate::proxy::reject::Fault;
use crate::shared::{SharedLimit, Store};
use crate::upstream::Upstream;

pub(super) fn build_labels(config: &Config, upstreams: &[Arc<Upstream>]) -> MetricLabels {
    let servers = |upstream: &Arc<Upstream>| {
        let names = upstream.servers.iter().map(|server| server.name.to_string()).collect();
        (upstream.name.to_string(), names)
    };
    MetricLabels {
        workers: config.server.workers,
        locations: config.locations.iter().map(|location| location.name.clone()).collect(),
        limits: config.limits.iter().map(|limit| limit.name.clone()).collect(),
        charging: config.limits.iter().map(|limit| limit.charge.is_some()).collect(),
        upstreams: upstreams.iter().map(servers).collect(),
        faults: Fault::ALL.iter().map(|fault| fault.cause()).collect(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Registers the values of limits, requests, the access log and the spans.
pub(super) fn watch_gateway(
    metrics: &Metrics,
    limits: &[Arc<Limit>],
    shared: &[Option<Arc<SharedLimit>>],
    access_log: &Arc<AccessLog>,
    tracer: Option<&Arc<Tracer>>,
    request_counts: &Arc<Counters<2>>,
) {
    for limit in limits {
        let (queue, keys, overflow) = (limit.clone(), limit.clone(), limit.clone());
        let shared_limit = shared[limit.id.0].clone();
        metrics.watch_queue_depth(limit.id, move || queue.waiter_count() as u64);
        // The keys of a shared limit are counted in the store.
        if limit.config.shared.is_none() {
            metrics.watch_keys(limit.id, move || keys.key_count() as u64);
        }
        if limit.config.charge.is_some() {
            let reserved = limit.clone();
            metrics.watch_reserved_units(limit.id, move || reserved.reserved_units());
        }
        metrics.watch_overflow(limit.id, move || {
            overflow.overflow_count() + shared_limit.as_ref().map_or(0, |shared| shared.overflow_count())
        });
        // A grant is not shown: its name holds a key, and no client may choose a label.
        let is_in_file = |variant: &usize| limit.config.variant_grant(*variant).is_none();
        for variant in limit.adaptive_variants().into_iter().filter(is_in_file) {
            let (slots, tier) = (limit.clone(), limit.config.variant_tier(variant));
            metrics.watch_slots(limit.id, tier, move || slots.slot_count(variant));
        }
    }
    let request_counts = request_counts.clone();
    // Read the closed count first: a request that ends in between must not make the number negative.
    metrics.watch_in_flight(move || {
        let closed = request_counts.sum(REQUESTS_CLOSED);
        request_counts.sum(REQUESTS_OPENED).saturating_sub(closed)
    });
    let access_log = access_log.clone();
    metrics.watch_dropped_lines(move || access_log.dropped_lines());
    if let Some(counts) = tracer.map(|tracer| tracer.counts.clone()) {
        let exported = counts.clone();
        metrics.watch_spans(move || exported.exported.load(Relaxed), move || counts.dropped.load(Relaxed));
    }
}

/// Registers the number of active bans.
pub(super) fn watch_bans(metrics: &Metrics, bans: Option<&Arc<Bans>>, operator_bans: &Arc<OperatorBans>) {
    let (bans, operator_bans) = (bans.cloned(), operator_bans.clone());
    metrics.watch_bans(move || {
        let now = Now::read_clock();
        let automatic = bans.as_ref().map_or(0, |bans| bans.active_count(now));
        (automatic + operator_bans.active_count(now)) as u64
    });
}

/// Registers the values of the store, and of the limits that are counted there.
pub(super) fn watch_shared_limits(
    metrics: &Metrics,
    store: Option<&Arc<Store>>,
    limits: &[Arc<Limit>],
    shared: &[Option<Arc<SharedLimit>>],
) {
    let Some(store) = store.cloned() else { return };
    let debts = store.debts().clone();
    metrics.watch_debts(move || debts.key_count() as u64);
    metrics.watch_store(move || store.reading());
    for shared_limit in shared.iter().flatten() {
        let limit = shared_limit.id();
        for (name, how) in config::OnFailure::WORDS {
            let shared_limit = shared_limit.clone();
            metrics.watch_degraded_decisions(limit, name, move || shared_limit.fallback_count(how));
        }
        let (cache_hits, lost_refunds, queue, keys) =
            (shared_limit.clone(), shared_limit.clone(), shared_limit.clone(), shared_limit.clone());
        let (differs, collides) = (shared_limit.fleet.clone(), shared_limit.fleet.clone());
        metrics.watch_differing_numbers(limit, move || differs.differs().into());
        metrics.watch_name_collisions(limit, move || collides.collides().into());
        metrics.watch_reject_cache_hits(limit, move || cache_hits.cache_hit_count());
        metrics.watch_lost_refunds(limit, move || lost_refunds.lost_count());
        metrics.watch_queue_depth(limit, move || queue.waiting_count() as u64);
        if limits[limit.0].config.charge.is_some() {
            let overruns = shared_limit.clone();
            metrics.watch_overruns(limit, move || overruns.overrun_units());
        }
        // A shared concurrency limit knows only the slots that are taken here, not its keys: 0 would be wrong.
        let config = &limits[limit.0].config;
        if !matches!(config.algorithm, config::Algorithm::Concurrency { .. }) {
            metrics.watch_keys(limit, move || keys.keys() as u64);
        }
    }
}

/// Registers the states of servers, and the retries.
pub(super) fn watch_upstreams(metrics: &Metrics, upstreams: &[Arc<Upstream>]) {
    for upstream in upstreams.iter().filter(|upstream| !upstream.is_demo()) {
        for (word, reason) in config::RetryReason::WORDS {
            let upstream = upstream.clone();
            metrics.watch_retries(upstream.id, word, move || upstream.retry_count(reason));
        }
        let unbudgeted = upstream.clone();
        metrics.watch_over_budget(upstream.id, move || unbudgeted.retries_over_budget());
        if let Some(obey) = &upstream.obey {
            metrics.watch_stops(upstream.id, |metric| {
                let gate = obey.gate().clone();
                Box::new(move || match metric {
                    StopMetric::Stopped => u64::from(gate.stop_left_ns(Now::read_clock()) > 0),
                    StopMetric::Stops => gate.counts().stops,
                    StopMetric::Held => gate.counts().held,
                    StopMetric::Rejected => gate.counts().refused,
                })
            });
        }
        if upstream.queue().is_some() {
            let queued = upstream.clone();
            metrics.watch_upstream_queue(upstream.id, move || queued.waiting_count() as u64);
        }
        for server in &upstream.servers {
            metrics.watch_server(upstream.id, server.position, |metric| {
                let server = server.clone();
                Box::new(move || match metric {
                    ServerMetric::Up => u64::from(server.is_healthy()),
                    ServerMetric::Ejected => u64::from(server.is_ejected()),
                    ServerMetric::Draining => u64::from(server.is_draining()),
                    ServerMetric::InFlight => u64::from(server.in_flight()),
                    ServerMetric::Ejections => server.ejection_count(),
                    ServerMetric::StrayData => server.stray_data_count(),
                    ServerMetric::ChecksPassed => server.check_counts()[0],
                    ServerMetric::ChecksFailed => server.check_counts()[1],
                })
            });
        }
    }
}
