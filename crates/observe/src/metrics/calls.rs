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
        /// Admitted at once.
        CheckAdmitted = ["check", "check", "admit"],
        /// Admitted after a wait in a queue.
        CheckWaited = ["check", "check", "wait"],
        /// Rejected by a limit.
        CheckRejected = ["check", "check", "reject"],
        /// Rejected because of a ban.
        CheckBanned = ["check", "check", "ban"],
        /// Not judged, because something broke or the gateway is overloaded.
        CheckFault = ["check", "check", "fault"],
        /// Not understood: its body is invalid or too large.
        CheckBad = ["check", "check", "bad_call"],
        /// The lease is released.
        ReleaseDone = ["check", "release", "done"],
        /// The lease has ended before.
        ReleaseUnknown = ["check", "release", "no_lease"],
        /// Not understood: its body is invalid or too large.
        ReleaseBad = ["check", "release", "bad_call"],
        /// The charges of the lease are settled.
        SettleDone = ["check", "settle", "done"],
        /// The lease has ended before.
        SettleUnknown = ["check", "settle", "no_lease"],
        /// Not understood, or about a limit with nothing to settle.
        SettleBad = ["check", "settle", "bad_call"],
        /// The time of the lease is renewed.
        RenewDone = ["check", "renew", "done"],
        /// The lease has ended before.
        RenewUnknown = ["check", "renew", "no_lease"],
        /// Not understood: its body is invalid or too large.
        RenewBad = ["check", "renew", "bad_call"],
        /// The call carries no valid token, or comes from a page in a browser.
        Denied = ["check", "any", "denied"],
        /// There is no such call.
        NoCall = ["check", "any", "no_call"],
        /// Admitted at once.
        AuthAdmitted = ["auth", "auth", "admit"],
        /// Admitted after a wait in a queue.
        AuthWaited = ["auth", "auth", "wait"],
        /// Rejected by a limit.
        AuthRejected = ["auth", "auth", "reject"],
        /// Rejected because of a ban.
        AuthBanned = ["auth", "auth", "ban"],
        /// An access rule or the request itself forbids it, something broke, or the gateway is overloaded.
        AuthFault = ["auth", "auth", "fault"],
        /// Not understood: the proxy does not describe the request, or is not trusted.
        AuthBad = ["auth", "auth", "bad_call"],
        /// The proxy sends no valid token.
        AuthDenied = ["auth", "auth", "denied"],
        /// Admitted: the key has room.
        ThrottleAdmitted = ["resp", "throttle", "admit"],
        /// Rejected: the key has no room.
        ThrottleRejected = ["resp", "throttle", "reject"],
        /// There is no room for the counter of another key.
        ThrottleFault = ["resp", "throttle", "fault"],
        /// Not understood: an argument is missing or invalid.
        ThrottleBad = ["resp", "throttle", "bad_call"],
        /// A Redis client without a valid token.
        RespDenied = ["resp", "any", "denied"],
        /// A Redis client sent an unknown command, or no command at all.
        RespNoCall = ["resp", "any", "no_call"],
        /// Admitted at once by all descriptors.
        RlsAdmitted = ["rls", "should_rate_limit", "admit"],
        /// Admitted after a wait in a queue.
        RlsWaited = ["rls", "should_rate_limit", "wait"],
        /// Rejected by a limit.
        RlsRejected = ["rls", "should_rate_limit", "reject"],
        /// Rejected because of a ban.
        RlsBanned = ["rls", "should_rate_limit", "ban"],
        /// Not judged, because something broke or the gateway is overloaded.
        RlsFault = ["rls", "should_rate_limit", "fault"],
        /// The answer took longer than the caller accepts.
        RlsLate = ["rls", "should_rate_limit", "late"],
        /// Not understood: the message is invalid or not supported.
        RlsBad = ["rls", "should_rate_limit", "bad_call"],
        /// An answered check of the service's health.
        RlsHealthDone = ["rls", "health", "done"],
        /// A check of the service's health that is not understood.
        RlsHealthBad = ["rls", "health", "bad_call"],
        /// The caller sends no valid token, or is a page in a browser.
        RlsDenied = ["rls", "any", "denied"],
        /// There is no such method.
        RlsNoCall = ["rls", "any", "no_call"],
    }
}

/// The calls of a process.
pub struct ServiceCallCounts(Counters<{ CallResult::ALL.len() }>);

// === impl ServiceCallCounts ===

impl ServiceCallCounts {
    /// The counts of so many workers, all zero.
    pub fn new(workers: usize) -> ServiceCallCounts {
        ServiceCallCounts(Counters::new(workers))
    }

    /// Counts a call; only the worker itself may call it, see [`Counters::add`].
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
