//! What became of the configurations so far.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::base::clock::Now;
use crate::base::wall_clock::unix_ns;
use crate::observe::metrics::Metrics;
use crate::proxy::gateway::Gateway;

const SECOND_NS: u64 = 1_000_000_000;

/// What is told of reloads.
pub struct History {
    started: Now,
    taken_over: AtomicU64,
    failed: AtomicU64,
    /// Seconds since 1970.
    taken_over_at: AtomicU64,
    last: Mutex<Option<Last>>,
    gateways: Mutex<Vec<Weak<Gateway>>>,
}

/// The last attempt to take a configuration over.
#[derive(Debug, Clone)]
pub struct Last {
    /// Seconds since 1970.
    pub at: u64,
    pub ok: bool,
    /// The same may be taken over later.
    pub is_hindered: bool,
    /// What changed, or why nothing did.
    pub told: String,
}

impl History {
    /// `gateway` is in force, the first one.
    pub fn new(gateway: &Arc<Gateway>) -> Arc<History> {
        Arc::new(History {
            started: Now::read(),
            taken_over: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            taken_over_at: AtomicU64::new(unix_s()),
            last: Mutex::default(),
            gateways: Mutex::new(vec![Arc::downgrade(gateway)]),
        })
    }

    /// Has `metrics` tell it.
    pub fn watch(self: Arc<History>, metrics: &Metrics) {
        let [ok, failed, generation, at, live] = [(); 5].map(|()| self.clone());
        metrics.watch_reloads("ok", move || ok.taken_over.load(Relaxed));
        metrics.watch_reloads("failed", move || failed.failed.load(Relaxed));
        metrics.watch_generation(move || generation.generation());
        metrics.watch_taken_over(move || at.taken_over_at.load(Relaxed));
        metrics.watch_gateways(move || live.live() as u64);
    }

    /// `gateway` was taken over, and differs from the one before by `told`.
    pub fn took_over(&self, gateway: &Arc<Gateway>, told: &str) {
        let mut gateways = self.gateways.lock();
        gateways.retain(|gateway| gateway.strong_count() > 0);
        gateways.push(Arc::downgrade(gateway));
        drop(gateways);
        self.taken_over.fetch_add(1, Relaxed);
        self.taken_over_at.store(unix_s(), Relaxed);
        self.note(true, false, told);
    }

    /// Nothing changed, for this reason.
    pub fn refused(&self, why: &str, is_hindered: bool) {
        self.failed.fetch_add(1, Relaxed);
        self.note(false, is_hindered, why);
    }

    fn note(&self, ok: bool, is_hindered: bool, told: &str) {
        *self.last.lock() = Some(Last { at: unix_s(), ok, is_hindered, told: told.to_owned() });
    }

    pub fn last(&self) -> Option<Last> {
        self.last.lock().clone()
    }

    /// Counted from 1.
    pub fn generation(&self) -> u64 {
        1 + self.taken_over.load(Relaxed)
    }

    /// Seconds since the process began to serve.
    pub fn uptime(&self) -> u64 {
        Now::read().since(self.started) / SECOND_NS
    }

    /// Gateways that still exist.
    fn live(&self) -> usize {
        self.gateways.lock().iter().filter(|gateway| gateway.strong_count() > 0).count()
    }
}

fn unix_s() -> u64 {
    unix_ns() / SECOND_NS
}
