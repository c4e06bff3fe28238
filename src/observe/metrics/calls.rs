//! Calls of the rate-limit service.

use std::sync::Arc;

use super::Metrics;
use super::cells::Counters;
use super::values::SERVICE_CALLS;

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
    AuthAdmitted,
    AuthWaited,
    AuthRejected,
    AuthBanned,
    /// An access rule or the request itself forbids it, something broke, or the gateway is overloaded.
    AuthFault,
    AuthBad,
    /// The proxy sends no valid token.
    AuthDenied,
    ThrottleAdmitted,
    ThrottleRejected,
    /// There is no room for the counter of another key.
    ThrottleFault,
    ThrottleBad,
    /// A Redis client without a valid token.
    RespDenied,
    /// A Redis client sent a command that there is not, or no command at all.
    RespNoCall,
    RlsAdmitted,
    RlsWaited,
    RlsRejected,
    RlsBanned,
    RlsFault,
    /// It took longer than its caller accepts.
    RlsLate,
    RlsBad,
    RlsHealthDone,
    RlsHealthBad,
    RlsDenied,
    RlsNoCall,
}

/// The labels `door`, `call` and `result` of each [`CallResult`].
const CALL_LABELS: [[&str; 3]; 41] = [
    ["check", "check", "admit"],
    ["check", "check", "wait"],
    ["check", "check", "reject"],
    ["check", "check", "ban"],
    ["check", "check", "fault"],
    ["check", "check", "bad_call"],
    ["check", "release", "done"],
    ["check", "release", "no_lease"],
    ["check", "release", "bad_call"],
    ["check", "settle", "done"],
    ["check", "settle", "no_lease"],
    ["check", "settle", "bad_call"],
    ["check", "renew", "done"],
    ["check", "renew", "no_lease"],
    ["check", "renew", "bad_call"],
    ["check", "any", "denied"],
    ["check", "any", "no_call"],
    ["auth", "auth", "admit"],
    ["auth", "auth", "wait"],
    ["auth", "auth", "reject"],
    ["auth", "auth", "ban"],
    ["auth", "auth", "fault"],
    ["auth", "auth", "bad_call"],
    ["auth", "auth", "denied"],
    ["resp", "throttle", "admit"],
    ["resp", "throttle", "reject"],
    ["resp", "throttle", "fault"],
    ["resp", "throttle", "bad_call"],
    ["resp", "any", "denied"],
    ["resp", "any", "no_call"],
    ["rls", "should_rate_limit", "admit"],
    ["rls", "should_rate_limit", "wait"],
    ["rls", "should_rate_limit", "reject"],
    ["rls", "should_rate_limit", "ban"],
    ["rls", "should_rate_limit", "fault"],
    ["rls", "should_rate_limit", "late"],
    ["rls", "should_rate_limit", "bad_call"],
    ["rls", "health", "done"],
    ["rls", "health", "bad_call"],
    ["rls", "any", "denied"],
    ["rls", "any", "no_call"],
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
    /// Calls of the rate-limit service by their results.
    pub fn watch_calls(&self, counts: &Arc<ServiceCallCounts>) {
        for (slot, values) in CALL_LABELS.into_iter().enumerate() {
            let labels = ["door", "call", "result"].into_iter().zip(values);
            let labels = labels.map(|(name, value)| (name, value.to_owned())).collect();
            let counts = counts.clone();
            self.watch_value(SERVICE_CALLS, labels, move || counts.0.sum(slot));
        }
    }
}
