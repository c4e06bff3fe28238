//! Calls of the rate-limit service.

use std::sync::Arc;

use super::Metrics;
use super::cells::Counters;
use super::values::SERVICE_CALLS;
use sluicegate_base::labelled::labelled_enum;

labelled_enum! {
    /// The result of a call of the rate-limit service; `labels` are the values of `protocol`, `call` and `result`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CallResult: labels -> [&'static str; 3] {
        CheckAdmitted = ["check", "check", "admit"],
        /// Admitted after a wait in a queue.
        CheckWaited = ["check", "check", "wait"],
        /// Rejected by a limit.
        CheckRejected = ["check", "check", "reject"],
        CheckBanned = ["check", "check", "ban"],
        /// Not judged, because something broke or the gateway is overloaded.
        CheckFault = ["check", "check", "fault"],
        CheckBad = ["check", "check", "bad_call"],
        ReleaseDone = ["check", "release", "done"],
        /// The lease has ended before.
        ReleaseUnknown = ["check", "release", "no_lease"],
        ReleaseBad = ["check", "release", "bad_call"],
        SettleDone = ["check", "settle", "done"],
        SettleUnknown = ["check", "settle", "no_lease"],
        SettleBad = ["check", "settle", "bad_call"],
        RenewDone = ["check", "renew", "done"],
        RenewUnknown = ["check", "renew", "no_lease"],
        RenewBad = ["check", "renew", "bad_call"],
        /// The call carries no valid token, or comes from a page in a browser.
        Denied = ["check", "any", "denied"],
        /// There is no such call.
        NoCall = ["check", "any", "no_call"],
        AuthAdmitted = ["auth", "auth", "admit"],
        AuthWaited = ["auth", "auth", "wait"],
        AuthRejected = ["auth", "auth", "reject"],
        AuthBanned = ["auth", "auth", "ban"],
        /// An access rule or the request itself forbids it, something broke, or the gateway is overloaded.
        AuthFault = ["auth", "auth", "fault"],
        AuthBad = ["auth", "auth", "bad_call"],
        /// The proxy sends no valid token.
        AuthDenied = ["auth", "auth", "denied"],
        ThrottleAdmitted = ["resp", "throttle", "admit"],
        ThrottleRejected = ["resp", "throttle", "reject"],
        /// There is no room for the counter of another key.
        ThrottleFault = ["resp", "throttle", "fault"],
        ThrottleBad = ["resp", "throttle", "bad_call"],
        /// A Redis client without a valid token.
        RespDenied = ["resp", "any", "denied"],
        /// A Redis client sent an unknown command, or no command at all.
        RespNoCall = ["resp", "any", "no_call"],
        RlsAdmitted = ["rls", "should_rate_limit", "admit"],
        RlsWaited = ["rls", "should_rate_limit", "wait"],
        RlsRejected = ["rls", "should_rate_limit", "reject"],
        RlsBanned = ["rls", "should_rate_limit", "ban"],
        RlsFault = ["rls", "should_rate_limit", "fault"],
        /// The answer took longer than the caller accepts.
        RlsLate = ["rls", "should_rate_limit", "late"],
        RlsBad = ["rls", "should_rate_limit", "bad_call"],
        RlsHealthDone = ["rls", "health", "done"],
        RlsHealthBad = ["rls", "health", "bad_call"],
        RlsDenied = ["rls", "any", "denied"],
        RlsNoCall = ["rls", "any", "no_call"],
    }
}

/// The calls of a process.
pub struct ServiceCallCounts(Counters<{ CallResult::ALL.len() }>);

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
        for (slot, result) in CallResult::ALL.into_iter().enumerate() {
            let labels = ["protocol", "call", "result"].into_iter().zip(result.labels());
            let labels = labels.map(|(name, value)| (name, value.to_owned())).collect();
            let counts = counts.clone();
            self.watch_value(SERVICE_CALLS, labels, move || counts.0.sum(slot));
        }
    }
}
