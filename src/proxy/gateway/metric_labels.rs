//! What the metrics of a gateway are labelled with, and what they read only when they are asked.

use std::sync::Arc;

use super::{CLOSED, OPENED};
use crate::admission::ban::Bans;
use crate::base::clock::Now;
use crate::config::{self, Config};
use crate::limit::Limit;
use crate::observe::access_log::AccessLog;
use crate::observe::metrics::cells::Counters;
use crate::observe::metrics::{Labels, Metrics, ServerFact};
use crate::proxy::reject::Fault;
use crate::shared::{SharedLimit, Store};
use crate::upstream::Upstream;

pub(super) fn labels(config: &Config, upstreams: &[Arc<Upstream>]) -> Labels {
    let servers = |upstream: &Arc<Upstream>| {
        let names = upstream.servers.iter().map(|server| server.name.to_string()).collect();
        (upstream.name.to_string(), names)
    };
    Labels {
        workers: config.server.workers,
        locations: config.locations.iter().map(|location| location.name.clone()).collect(),
        limits: config.limits.iter().map(|limit| limit.name.clone()).collect(),
        upstreams: upstreams.iter().map(servers).collect(),
        faults: Fault::ALL.iter().map(|fault| fault.cause()).collect(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Hands the metrics what they read only when they are asked.
pub(super) fn watch(
    metrics: &Metrics,
    limits: &[Arc<Limit>],
    bans: Option<&Arc<Bans>>,
    access_log: &Arc<AccessLog>,
    visits: &Arc<Counters<2>>,
) {
    for limit in limits {
        let (queue, keys, overflow) = (limit.clone(), limit.clone(), limit.clone());
        metrics.watch_queue_depth(limit.index, move || queue.waiting() as u64);
        // The counters of a shared limit are elsewhere.
        if limit.config.shared.is_none() {
            metrics.watch_keys(limit.index, move || keys.keys() as u64);
        }
        metrics.watch_overflow(limit.index, move || overflow.overflow());
        for variant in limit.adaptive() {
            let (slots, tier) = (limit.clone(), limit.config.tier_of(variant));
            metrics.watch_slots(limit.index, tier, move || slots.slots(variant));
        }
    }
    if let Some(bans) = bans.cloned() {
        metrics.watch_bans(move || bans.active(Now::read()) as u64);
    }
    let visits = visits.clone();
    // Closed first: a visit that ends in between must not make the number negative.
    metrics.watch_in_flight(move || {
        let closed = visits.sum(CLOSED);
        visits.sum(OPENED).saturating_sub(closed)
    });
    let access_log = access_log.clone();
    metrics.watch_dropped_lines(move || access_log.dropped());
}

/// The same of what is counted in the store.
pub(super) fn watch_shared(
    metrics: &Metrics,
    store: Option<&Arc<Store>>,
    limits: &[Arc<Limit>],
    sides: &[Option<Arc<SharedLimit>>],
) {
    let Some(store) = store.cloned() else { return };
    let debts = store.debts().clone();
    metrics.watch_debts(move || debts.keys() as u64);
    metrics.watch_store(move || store.reading());
    for side in sides.iter().flatten() {
        let limit = side.index();
        for (name, how) in config::OnFailure::WORDS {
            let side = side.clone();
            metrics.watch_instead(limit, name, move || side.instead(how));
        }
        let (spared, lost, queue, keys) = (side.clone(), side.clone(), side.clone(), side.clone());
        let (differs, collides) = (side.fleet.clone(), side.fleet.clone());
        metrics.watch_differs(limit, move || differs.differs().into());
        metrics.watch_collides(limit, move || collides.collides().into());
        metrics.watch_spared(limit, move || spared.spared());
        metrics.watch_lost(limit, move || lost.lost());
        metrics.watch_queue_depth(limit, move || queue.waiting() as u64);
        // Of slots no key is remembered but those held, which are no counters: 0 would be wrong.
        let config = &limits[limit].config;
        if !matches!(config.algorithm, config::Algorithm::Concurrency { .. }) {
            metrics.watch_keys(limit, move || keys.keys() as u64);
        }
    }
}

/// The same of how servers stand, and what is tried again.
pub(super) fn watch_upstreams(metrics: &Metrics, upstreams: &[Arc<Upstream>]) {
    for upstream in upstreams.iter().filter(|upstream| !upstream.is_demo()) {
        for (word, reason) in config::Reason::WORDS {
            let upstream = upstream.clone();
            metrics.watch_retries(upstream.index, word, move || upstream.retried(reason));
        }
        let unbudgeted = upstream.clone();
        metrics.watch_unbudgeted(upstream.index, move || unbudgeted.unbudgeted());
        for server in &upstream.servers {
            metrics.watch_server(upstream.index, server.place, |what| {
                let server = server.clone();
                Box::new(move || match what {
                    ServerFact::Up => u64::from(server.is_healthy()),
                    ServerFact::Ejected => u64::from(server.is_ejected()),
                    ServerFact::Draining => u64::from(server.is_draining()),
                    ServerFact::InFlight => u64::from(server.in_flight()),
                    ServerFact::Ejections => server.ejections(),
                    ServerFact::ChecksPassed => server.checks()[0],
                    ServerFact::ChecksFailed => server.checks()[1],
                })
            });
        }
    }
}
