//! Records the outcome of every reload, for metrics and `/status`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::operate::admin::status::LastReload;
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock::unix_seconds;
use sluicegate_model::Problem;
use sluicegate_observe::metrics::{Metrics, values};
use sluicegate_proxy::gateway::Gateway;

/// Problems of a file in the status.
pub(super) const PROBLEMS_MAX: usize = 100;
const SECOND_NS: u64 = 1_000_000_000;

/// The outcomes of reloads, and the gateways that still exist.
pub(super) struct ReloadHistory {
    started: Now,
    applied: AtomicU64,
    rejected: AtomicU64,
    /// Seconds since 1970.
    applied_at: AtomicU64,
    last: Mutex<Option<ReloadAttempt>>,
    gateways: Mutex<Vec<Weak<Gateway>>>,
}

/// The last attempt to put a configuration in force.
#[derive(Debug, Clone)]
pub(super) struct ReloadAttempt {
    pub shown: LastReload,
    /// The same configuration may succeed later.
    pub is_blocked: bool,
}

impl ReloadHistory {
    /// Begins with `gateway`, the first one in force.
    pub(super) fn new(gateway: &Arc<Gateway>) -> Arc<ReloadHistory> {
        Arc::new(ReloadHistory {
            started: Now::read_clock(),
            applied: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            applied_at: AtomicU64::new(unix_seconds()),
            last: Mutex::default(),
            gateways: Mutex::new(vec![Arc::downgrade(gateway)]),
        })
    }

    /// When the process began to serve, in milliseconds since 1970.
    pub(super) fn started_at_ms(&self) -> u64 {
        self.started.to_unix_ns() / 1_000_000
    }

    pub(super) fn register_metrics(self: Arc<ReloadHistory>, metrics: &Metrics) {
        let watch = |metric, result: Option<&str>, read: fn(&ReloadHistory) -> u64| {
            let history = self.clone();
            let labels = result.map(|result| ("result", result.to_owned())).into_iter().collect();
            metrics.watch_process(metric, labels, move || read(&history));
        };
        watch(values::RELOADS, Some("ok"), |history| history.applied.load(Relaxed));
        watch(values::RELOADS, Some("failed"), |history| history.rejected.load(Relaxed));
        watch(values::GENERATION, None, ReloadHistory::generation);
        watch(values::RELOAD_TIME, None, |history| history.applied_at.load(Relaxed));
        watch(values::LIVE_GATEWAYS, None, |history| {
            history.gateways.lock().iter().filter(|gateway| gateway.strong_count() > 0).count() as u64
        });
    }

    /// Records that `gateway` is in force, and its changes against the previous one.
    pub(super) fn record_applied(&self, changes: &str) {
        self.applied.fetch_add(1, Relaxed);
        self.applied_at.store(unix_seconds(), Relaxed);
        self.record_attempt("ok", false, changes, &[]);
    }

    /// Counts `gateway` among the live ones until it is gone.
    pub(super) fn track_gateway(&self, gateway: &Arc<Gateway>) {
        let mut gateways = self.gateways.lock();
        gateways.retain(|gateway| gateway.strong_count() > 0);
        gateways.push(Arc::downgrade(gateway));
    }

    /// Records a rejected configuration, the reason, and the problems of an invalid file.
    pub(super) fn record_rejected(&self, why: &str, problems: &[Problem], is_blocked: bool) {
        self.rejected.fetch_add(1, Relaxed);
        self.record_attempt("failed", is_blocked, why, problems);
    }

    fn record_attempt(&self, result: &'static str, is_blocked: bool, told: &str, problems: &[Problem]) {
        let shown = LastReload {
            at: unix_seconds(),
            result,
            told: told.to_owned(),
            problems: problems.iter().take(PROBLEMS_MAX).cloned().collect(),
        };
        *self.last.lock() = Some(ReloadAttempt { shown, is_blocked });
    }

    pub(super) fn last_attempt(&self) -> Option<ReloadAttempt> {
        self.last.lock().clone()
    }

    /// Counted from 1.
    pub(super) fn generation(&self) -> u64 {
        1 + self.applied.load(Relaxed)
    }

    /// Seconds since the process began to serve.
    pub(super) fn uptime_seconds(&self) -> u64 {
        Now::read_clock().ns_since(self.started) / SECOND_NS
    }
}
