//! Calls of Envoy's rate limit service and of its health.

use std::sync::Arc;

use super::Metrics;
use super::cells::Counters;

/// A call of Envoy's rate limit service, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RlsCallResult {
    Admitted,
    /// Admitted after a wait in a queue.
    Waited,
    /// Over a limit.
    Rejected,
    Banned,
    /// Not judged, because something broke or the gateway is overloaded.
    Fault,
    /// It took longer than its caller accepts.
    Late,
    Bad,
    HealthDone,
    HealthBad,
    /// It carries no valid token, or comes from a page in a browser.
    Denied,
    /// There is no such call.
    NoCall,
}

/// The labels `call` and `result` of each [`RlsCallResult`].
const CALL_LABELS: [(&str, &str); 11] = [
    ("should_rate_limit", "admit"),
    ("should_rate_limit", "wait"),
    ("should_rate_limit", "reject"),
    ("should_rate_limit", "ban"),
    ("should_rate_limit", "fault"),
    ("should_rate_limit", "late"),
    ("should_rate_limit", "bad_call"),
    ("health", "done"),
    ("health", "bad_call"),
    ("any", "denied"),
    ("any", "no_call"),
];

/// The calls of a process.
pub struct RlsCallCounts(Counters<{ CALL_LABELS.len() }>);

// === impl RlsCallCounts ===

impl RlsCallCounts {
    pub fn new(workers: usize) -> RlsCallCounts {
        RlsCallCounts(Counters::new(workers))
    }

    #[inline]
    pub fn count_call(&self, worker: usize, result: RlsCallResult) {
        self.0.add(worker, result as usize, 1);
    }
}

// === impl Metrics ===

impl Metrics {
    /// Calls of Envoy's rate limit service by their results.
    pub fn watch_rls_calls(&self, counts: &Arc<RlsCallCounts>) {
        let (name, help) = ("sluicegate_service_calls", "Calls of the rate-limit service, by result");
        for (slot, (call, result)) in CALL_LABELS.into_iter().enumerate() {
            let labels = [("door", "rls"), ("call", call), ("result", result)];
            let labels = labels.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
            let counts = counts.clone();
            self.watch_counter(name, help, labels, move || counts.0.sum(slot));
        }
    }
}
