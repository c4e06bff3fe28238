//! The labels of a gateway's metrics, and the values that they read at each scrape.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Gateway, NotifyResult, REQUESTS_CLOSED, REQUESTS_OPENED};
use crate::reject::Fault;
use sluicegate_base::certificate::earliest_end;
use sluicegate_base::clock::Now;
use sluicegate_http::upstream::{Server, Upstream};
use sluicegate_limit::Limit;
use sluicegate_limit::pushback::Pauses;
use sluicegate_model::{self as model, Config};
use sluicegate_observe::metrics::{MetricLabels, values};
use sluicegate_store::SharedLimit;

pub(super) fn build_labels(config: &Config, upstreams: &[Arc<Upstream>]) -> MetricLabels {
    let servers = |upstream: &Arc<Upstream>| {
        let names = upstream.servers.iter().map(|server| server.name.to_string()).collect();
        (upstream.name.to_string(), names)
    };
    MetricLabels {
        workers: config.server.workers,
        locations: config.locations.iter().map(|location| location.name.clone()).collect(),
        limits: config.limits.iter().map(|limit| limit.name.clone()).collect(),
        classes: config.limits.iter().map(|limit| limit.class_names().map(str::to_owned).collect()).collect(),
        charging: config.limits.iter().map(|limit| limit.charge.is_some()).collect(),
        upstreams: upstreams.iter().map(servers).collect(),
        faults: Fault::ALL.iter().map(|fault| fault.cause()).collect(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

// === impl Gateway ===

impl Gateway {
    /// Registers the values that are read at each scrape.
    pub(super) fn watch_values(&self) {
        self.watch_limits();
        self.watch_requests();
        self.watch_bans();
        self.watch_shared_limits();
        self.watch_upstreams();
        self.watch_calls();
        self.watch_issuers();
        self.watch_certificates();
        self.watch_notify();
        self.watch_steps();
        self.watch_owners();
    }

    fn watch_owners(&self) {
        let Config { limits, locations, upstreams, .. } = &self.config;
        let limits = limits.iter().map(|one| ("limit", &one.name, &one.owner));
        let locations = locations.iter().map(|one| ("location", &one.name, &one.owner));
        let upstreams = upstreams.iter().map(|one| ("upstream", &one.name, &one.owner));
        let all: BTreeSet<_> = limits.chain(locations).chain(upstreams).collect();
        for (kind, name, owner) in all {
            let Some(owner) = owner else { continue };
            let labels = [("kind", kind), ("name", name), ("owner", owner)];
            let labels = labels.map(|(label, value)| (label, value.to_owned())).into();
            self.metrics.watch_value(values::OWNER_INFO, labels, || 1);
        }
    }

    fn watch_notify(&self) {
        for (word, result) in NotifyResult::WORDS.into_iter().filter(|_| self.config.notify.is_some()) {
            let (events, labels) = (self.step_events.clone(), vec![("result", word.to_owned())]);
            let read = move || events.results[result as usize].load(Relaxed);
            self.metrics.watch_value(values::NOTIFY, labels, read);
        }
    }

    fn watch_steps(&self) {
        for (limit, notes) in self.step_notes() {
            for step in &limit.config.steps {
                let (at, then) = (step.percent().to_string(), step.then.as_str().to_owned());
                let labels = vec![("limit", limit.name.to_string()), ("at", at), ("then", then)];
                let (notes, at) = (notes.clone(), step.at);
                self.metrics.watch_value(values::QUOTA_STEPS, labels, move || notes.told_count(at));
            }
        }
    }

    fn watch_certificates(&self) {
        for (name, file) in self.config.certificate_files() {
            let path = file.path.display().to_string();
            let labels = vec![("use", file.usage.to_owned()), ("name", name), ("file", path)];
            let expires_at = file.expires_at;
            self.metrics.watch_value(values::CERTIFICATE_EXPIRES, labels, move || expires_at);
        }
        for (name, acme) in self.config.acme_certificates() {
            let path = acme.certificate_path().display().to_string();
            let labels = vec![("use", "listener".to_owned()), ("name", name), ("file", path)];
            let current = acme.current.clone();
            let expires_at =
                move || current.load().as_ref().and_then(|key| earliest_end(&key.cert)).unwrap_or(0);
            self.metrics.watch_value(values::CERTIFICATE_EXPIRES, labels, expires_at);
        }
        for (is_issued, result) in [(true, "issued"), (false, "failed")] {
            let Some(acme) = self.acme.clone() else { continue };
            let count = move || if is_issued { &acme.issued } else { &acme.failed }.load(Relaxed);
            self.metrics.watch_value(values::ACME_ORDERS, vec![("result", result.to_owned())], count);
        }
    }

    fn watch_issuers(&self) {
        for set in self.key_sets() {
            let issuer = || ("issuer", set.config.issuer.clone());
            let of_age = set.clone();
            self.metrics.watch_value(values::ISSUER_KEYS_AGE, vec![issuer()], move || of_age.status().age_s);
            for (failed, result) in [(false, "ok"), (true, "failed")] {
                let (set, labels) = (set.clone(), vec![issuer(), ("result", result.to_owned())]);
                self.metrics.watch_value(values::ISSUER_FETCHES, labels, move || set.fetch_count(failed));
            }
        }
    }

    fn watch_limits(&self) {
        let metrics = &self.metrics;
        for limit in &self.limits {
            let watch = |metric, read: fn(&Limit) -> u64| {
                let limit = limit.clone();
                metrics.watch_limit(metric, limit.id, None, move || read(&limit));
            };
            watch(values::QUEUE_DEPTH, |limit| limit.waiter_count() as u64);
            watch(values::PAUSED, |limit| limit.config.pause.is_some().into());
            // The keys of a shared limit are counted in the store.
            if limit.config.shared.is_none() {
                watch(values::KEYS, |limit| limit.key_count() as u64);
            }
            if limit.config.charge.is_some() {
                watch(values::RESERVED_UNITS, Limit::reserved_units);
            }
            let (overflow, shared_limit) = (limit.clone(), self.shared[limit.id.0].clone());
            metrics.watch_limit(values::OVERFLOW, limit.id, None, move || {
                let shared = shared_limit.as_ref().map_or(0, |shared| shared.counts.overflow.load(Relaxed));
                overflow.overflow_count() + shared
            });
            // A grant is not shown: its name holds a key, and no client may choose a label.
            let is_in_file = |variant: &usize| limit.config.variant_grant(*variant).is_none();
            for variant in limit.adaptive_variants().into_iter().filter(is_in_file) {
                let (slots, tier) = (limit.clone(), limit.config.variant_tier(variant));
                let tier = tier.map(|tier| ("tier", tier));
                metrics
                    .watch_limit(values::ADAPTIVE_SLOTS, limit.id, tier, move || slots.slot_count(variant));
            }
        }
    }

    /// Registers the values of requests, the access log and the spans.
    fn watch_requests(&self) {
        let metrics = &self.metrics;
        let request_counts = self.load.request_counts.clone();
        // Read the closed count first: a request that ends in between must not make the number negative.
        metrics.watch_value(values::IN_FLIGHT, Vec::new(), move || {
            let closed = request_counts.sum(REQUESTS_CLOSED);
            request_counts.sum(REQUESTS_OPENED).saturating_sub(closed)
        });
        let access_log = self.access_log.clone();
        metrics.watch_value(values::DROPPED_LINES, Vec::new(), move || access_log.dropped_lines());
        if let Some(counts) = self.tracer.as_ref().map(|tracer| tracer.counts.clone()) {
            let exported = counts.clone();
            metrics.watch_value(values::SPANS_EXPORTED, Vec::new(), move || exported.exported.load(Relaxed));
            metrics.watch_value(values::SPANS_DROPPED, Vec::new(), move || counts.dropped.load(Relaxed));
        }
    }

    fn watch_bans(&self) {
        let (bans, operator_bans) = (self.bans.clone(), self.operator_bans.clone());
        self.metrics.watch_value(values::BANS, Vec::new(), move || {
            let now = Now::read_clock();
            let automatic = bans.as_ref().map_or(0, |bans| bans.active_count(now));
            (automatic + operator_bans.active_count(now)) as u64
        });
    }

    /// Registers the values of the store, and of the limits that are counted there.
    fn watch_shared_limits(&self) {
        let metrics = &self.metrics;
        let Some(store) = self.store.clone() else { return };
        let debts = store.debts().clone();
        metrics.watch_value(values::DEBT_KEYS, Vec::new(), move || debts.key_count() as u64);
        metrics.watch_store(move || store.reading());
        for shared_limit in self.shared.iter().flatten() {
            let limit = shared_limit.id();
            for (name, how) in model::OnFailure::WORDS {
                let shared_limit = shared_limit.clone();
                let read = move || shared_limit.counts.fallbacks[how as usize].load(Relaxed);
                metrics.watch_limit(values::DEGRADED_DECISIONS, limit, Some(("how", name)), read);
            }
            let watch = |metric, read: fn(&SharedLimit) -> u64| {
                let shared_limit = shared_limit.clone();
                metrics.watch_limit(metric, limit, None, move || read(&shared_limit));
            };
            watch(values::NUMBERS_DIFFER, |limit| limit.fleet.differs().into());
            watch(values::NAME_COLLIDES, |limit| limit.fleet.collides().into());
            watch(values::REJECT_CACHE_HITS, |limit| limit.counts.cache_hits.load(Relaxed));
            watch(values::LOST_REFUNDS, SharedLimit::lost_count);
            watch(values::QUEUE_DEPTH, |limit| limit.waiting_count() as u64);
            let config = &self.limits[limit.0].config;
            if config.leased {
                watch(values::LEASED_DECISIONS, |limit| limit.counts.leased.load(Relaxed));
                watch(values::LEASE_CALLS, |limit| limit.lease_calls());
                watch(values::LEASED_UNITS, |limit| limit.leased_units());
            }
            if config.charge.is_some() {
                let overruns = shared_limit.clone();
                metrics.watch_overruns(limit, move || overruns.counts.overrun.load(Relaxed));
            }
            // A shared concurrency limit knows only the slots that are taken here, not its keys: 0 would be wrong.
            if !matches!(config.algorithm, model::Algorithm::Concurrency { .. }) {
                watch(values::KEYS, |limit| limit.keys() as u64);
            }
        }
    }

    /// Registers the states of servers, and the retries.
    fn watch_upstreams(&self) {
        let metrics = &self.metrics;
        for upstream in self.upstreams.iter().filter(|upstream| !upstream.is_demo()) {
            let id = (upstream.id, None);
            for (word, reason) in model::RetryReason::WORDS {
                let upstream = upstream.clone();
                let read = move || upstream.retry_count(reason);
                metrics.watch_upstream(values::RETRIES, id, Some(("reason", word)), read);
            }
            let watch = |metric, read: fn(&Upstream) -> u64| {
                let upstream = upstream.clone();
                metrics.watch_upstream(metric, id, None, move || read(&upstream));
            };
            watch(values::RETRIES_OVER_BUDGET, Upstream::retries_over_budget);
            if upstream.queue().is_some() {
                watch(values::UPSTREAM_QUEUE_DEPTH, |upstream| upstream.waiting_count() as u64);
            }
            if let Some(pushback) = &upstream.pushback {
                let watch = |metric, read: fn(&Pauses) -> u64| {
                    let pauses = pushback.pauses().clone();
                    metrics.watch_upstream(metric, id, None, move || read(&pauses));
                };
                watch(values::STOPPED, |pauses| u64::from(pauses.pause_left_ns(Now::read_clock()) > 0));
                watch(values::STOPS, |pauses| pauses.counts().pauses);
                watch(values::STOP_HELD, |pauses| pauses.counts().waits);
                watch(values::STOP_REJECTIONS, |pauses| pauses.counts().refused);
            }
            for server in &upstream.servers {
                let watch = |metric, result: Option<&str>, read: fn(&Server) -> u64| {
                    let (id, server) = ((upstream.id, Some(server.position)), server.clone());
                    let result = result.map(|result| ("result", result));
                    metrics.watch_upstream(metric, id, result, move || read(&server));
                };
                watch(values::SERVER_UP, None, |server| server.is_healthy().into());
                watch(values::SERVER_EJECTED, None, |server| server.is_ejected().into());
                watch(values::SERVER_DRAINING, None, |server| server.is_draining().into());
                watch(values::SERVER_IN_FLIGHT, None, |server| server.in_flight().into());
                watch(values::EJECTIONS, None, Server::ejection_count);
                watch(values::STRAY_DATA, None, Server::stray_data_count);
                watch(values::HEALTH_CHECKS, Some("pass"), |server| server.check_counts()[0]);
                watch(values::HEALTH_CHECKS, Some("fail"), |server| server.check_counts()[1]);
            }
        }
    }

    fn watch_calls(&self) {
        let (calls, metrics) = (&self.calls, &self.metrics);
        if self.config.service.is_some() {
            let (held, counted) = (calls.leases.clone(), calls.throttles.clone());
            metrics.watch_calls(&calls.counts);
            metrics.watch_value(values::SERVICE_LEASES, Vec::new(), move || held.count() as u64);
            metrics.watch_value(values::THROTTLE_KEYS, Vec::new(), move || counted.key_count() as u64);
        }
    }
}
