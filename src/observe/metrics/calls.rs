//! Calls of the rate-limit service.

use std::sync::Arc;

use super::Metrics;
use super::cells::Counters;

/// A call of the rate-limit service, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallResult {
    CheckAdmitted,
    /// Admitted after a wait in a queue.
    CheckWaited,
    /// Rejected by a limit.
    CheckRejected,
    CheckBanned,
    /// Not judged, because something broke or the gateway is overloaded.
    CheckFault,
    CheckBad,
    ReleaseDone,
    /// The lease has ended before.
    ReleaseUnknown,
    ReleaseBad,
    SettleDone,
    SettleUnknown,
    SettleBad,
    RenewDone,
    RenewUnknown,
    RenewBad,
    /// It carries no valid token, or comes from a page in a browser.
    Denied,
    /// There is no such call.
    NoCall,
}

/// The labels `call` and `result` of each [`CallResult`].
const CALL_LABELS: [(&str, &str); 17] = [
    ("check", "admit"),
    ("check", "wait"),
    ("check", "reject"),
    ("check", "ban"),
    ("check", "fault"),
    ("check", "bad_call"),
    ("release", "done"),
    ("release", "no_lease"),
    ("release", "bad_call"),
    ("settle", "done"),
    ("settle", "no_lease"),
    ("settle", "bad_call"),
    ("renew", "done"),
    ("renew", "no_lease"),
    ("renew", "bad_call"),
    ("any", "denied"),
    ("any", "no_call"),
];

/// The calls of a process.
pub struct ServiceCallCounts(Counters<{ CALL_LABELS.len() }>);

// === impl ServiceCallCounts ===

impl ServiceCallCounts {
    pub fn new(workers: usize) -> ServiceCallCounts {
        ServiceCallCounts(Counters::new(workers))
    }

    pub fn count_call(&self, worker: usize, result: CallResult) {
        self.0.add(worker, result as usize, 1);
    }
}

// === impl Metrics ===

impl Metrics {
    /// Calls of the rate-limit service by their results, and the leases that its callers hold.
    pub fn watch_calls(
        &self,
        counts: &Arc<ServiceCallCounts>,
        leases: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let (name, help) = ("sluicegate_service_calls", "Calls of the rate-limit service, by result");
        for (slot, (call, result)) in CALL_LABELS.into_iter().enumerate() {
            let labels = [("door", "check"), ("call", call), ("result", result)];
            let labels = labels.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
            let counts = counts.clone();
            self.watch_counter(name, help, labels, move || counts.0.sum(slot));
        }
        let (name, help) = ("sluicegate_service_leases", "Leases that callers of the service hold");
        self.watch_gauge(name, help, Vec::new(), leases);
    }
}
