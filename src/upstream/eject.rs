//! Passive ejection: a server whose answers go wrong in a row gets none for a while, never the last one.

use std::borrow::Cow;
use std::fmt;

use http::StatusCode;

use super::standing::EJECTED;
use super::{Server, Upstream};
use crate::clock::Now;
use crate::config::Eject;

/// What went wrong with a request that a server was sent, or should have been. A client's failing is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Unreachable,
    ConnectTimeout,
    Timeout,
    Broke,
    BadAnswer,
    Status(StatusCode),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Trouble {
    fn as_str(self) -> &'static str {
        match self {
            Trouble::Unreachable => "it cannot be connected to",
            Trouble::ConnectTimeout => "the connect timed out",
            Trouble::Timeout => "it did not answer in time",
            Trouble::Broke => "it closed the connection before its answer",
            Trouble::BadAnswer => "it sent an answer that is not valid HTTP",
            Trouble::Status(StatusCode::BAD_GATEWAY) => "it answered 502",
            Trouble::Status(StatusCode::SERVICE_UNAVAILABLE) => "it answered 503",
            Trouble::Status(_) => "it answered 504",
        }
    }
}

impl Upstream {
    /// Takes note of an answer. 502, 503 and 504 are errors, since a server that works does not send them; every other
    /// ends a row of errors (as Envoy counts consecutive gateway failures).
    #[inline]
    pub fn answered(&self, server: &Server, status: StatusCode) {
        match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                self.failed(server, Trouble::Status(status));
            }
            _ => server.standing.success(),
        }
    }

    /// Takes note of an error, and ejects the server if it was one too many in a row.
    #[cold]
    pub fn failed(&self, server: &Server, trouble: Trouble) {
        let now = Now::read();
        let errors = server.standing.error(now, Cow::Borrowed(trouble.as_str()));
        if let Some(eject) = &self.eject
            && errors >= eject.errors
        {
            self.eject(server, eject, trouble, now);
        }
    }

    fn eject(&self, server: &Server, eject: &Eject, trouble: Trouble, now: Now) {
        let _alone = self.memory.ejecting.lock();
        let is_ejected = |one: &Server| one.settled_state() & EJECTED != 0;
        let ejected = self.servers.iter().filter(|one| is_ejected(one)).count();
        let most = ((self.servers.len() as f64 * eject.max / 100.0) as usize).max(1);
        let others = self.servers.iter().filter(|one| one.place != server.place);
        if is_ejected(server) || ejected >= most || !others.into_iter().any(|one| one.is_up()) {
            return;
        }
        let span = u64::try_from(eject.span.as_nanos()).unwrap_or(u64::MAX);
        server.standing.eject(Now(now.0.saturating_add(span)));
        tracing::warn!(
            upstream = %self.name, server = %server.name, seconds = eject.span.as_secs_f64(),
            "a server is ejected: {} errors in a row, the last one: {trouble}", eject.errors
        );
    }
}
