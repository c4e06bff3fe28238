//! Passive ejection: after too many errors in a row a server gets no requests for a while, unless it is the last one.

use http::StatusCode;

use super::server_state::EJECTED;
use super::{Server, ServerFault, Upstream};
use sluicegate_base::clock::Now;
use sluicegate_model::EjectConfig;

impl Upstream {
    /// Records a response. A status of `eject.status` is an error if the request was complete, and does not count
    /// otherwise; every other status ends a row of errors, also one that is obeyed.
    #[inline]
    pub fn record_response(&self, server: &Server, status: StatusCode, is_complete: bool) {
        match &self.eject {
            Some(eject) if eject.status.contains(status.as_u16()) && !self.obeys(status) => {
                if is_complete {
                    self.record_fault(server, ServerFault::Status(status));
                }
            }
            _ => server.state.record_success(),
        }
    }

    /// Records an error, logs it, and ejects the server after too many in a row.
    #[cold]
    pub fn record_fault(&self, server: &Server, fault: ServerFault) {
        let now = Now::read_clock();
        let (errors, suppressed) = server.state.record_error(now, fault);
        if let Some(suppressed) = suppressed {
            tracing::warn!(
                upstream = %self.name, server = %server.name, suppressed,
                "an exchange with a server failed: {fault}"
            );
        }
        if let Some(eject) = &self.eject
            && errors >= eject.errors
        {
            self.eject_server(server, eject, fault, now);
        }
    }

    fn eject_server(&self, server: &Server, eject: &EjectConfig, fault: ServerFault, now: Now) {
        let _guard = self.state.ejection_lock.lock();
        let is_ejected = |one: &Server| one.current_flags() & EJECTED != 0;
        let ejected = self.servers.iter().filter(|one| is_ejected(one)).count();
        let most = ((self.servers.len() as f64 * eject.max / 100.0) as usize).max(1);
        let others = self.servers.iter().filter(|one| one.position != server.position);
        if is_ejected(server) || ejected >= most || !others.into_iter().any(|one| one.is_up()) {
            return;
        }
        let span = u64::try_from(eject.span.as_nanos()).unwrap_or(u64::MAX);
        server.state.mark_ejected(Now(now.0.saturating_add(span)));
        tracing::warn!(
            upstream = %self.name, server = %server.name, seconds = eject.span.as_secs_f64(),
            "a server is ejected: {} errors in a row, the last one: {fault}", eject.errors
        );
    }
}
