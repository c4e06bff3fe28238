//! Answers by location, origin and status class, and the responses of servers.

use super::labels::firsts;
use super::{Metrics, RETRIED_FIRST, STATUS_CLASSES, ServerCounters};
use sluicegate_base::labelled::labelled_enum;
use sluicegate_model::{ServerId, UpstreamId};

labelled_enum! {
    /// The origin of an answer; `labels` are its maker, and the cause of an answer in place of a server's.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AnswerOrigin: labels -> [&'static str; 2] {
        /// A server of an upstream, also if the response broke off later.
        Server = ["server", ""],
        /// A location: `respond`, `redirect`, the built-in upstream or the answer to a preflight.
        Location = ["location", ""],
        /// A limit that rejected the request at once.
        Limit = ["limit", "limit"],
        /// A limit that rejected the request after a wait.
        LimitQueue = ["limit", "queue"],
        /// A ban.
        Ban = ["limit", "ban"],
        /// The queue of an upstream, in which the wait took too long.
        ServerQueue = ["gateway", "queue"],
        /// No server took the request or answered it.
        NoServer = ["gateway", "server"],
        /// Another fault, of the client or of the gateway.
        Fault = ["gateway", "fault"],
        /// The rate-limit service; or no answer, because the client left before.
        Other = ["gateway", ""],
    }
}

/// The makers of answers, as metrics name them.
pub(super) const MAKERS: [&str; 4] = ["server", "limit", "location", "gateway"];
/// The causes of answers in place of a server's.
pub const OWN_CAUSES: [&str; 5] = ["limit", "ban", "queue", "server", "fault"];

/// Responses by status class, from 1xx to 5xx.
pub type ClassCounts = [u64; STATUS_CLASSES];

/// The answers of one location.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocationAnswers {
    /// Responses of servers.
    pub responses: ClassCounts,
    /// Answers in place of a server's, by [`OWN_CAUSES`].
    pub own: [u64; OWN_CAUSES.len()],
}

// === impl Metrics ===

impl Metrics {
    /// The name and the answers of each location, the last one of requests without a location.
    pub fn location_answers(&self) -> impl Iterator<Item = (&str, LocationAnswers)> {
        firsts(&self.series.locations).map(|index| (self.location_label(index), self.read_answers(index)))
    }

    pub(super) fn location_label(&self, index: usize) -> &str {
        self.labels.locations.get(index).map_or("none", String::as_str)
    }

    fn read_answers(&self, index: usize) -> LocationAnswers {
        LocationAnswers {
            responses: self.sum_answers(index, |[by, _]| by == "server"),
            own: OWN_CAUSES.map(|cause| self.sum_answers(index, |[_, own]| own == cause).iter().sum()),
        }
    }

    /// The answers at a location of the origins with such labels, by status class.
    pub(super) fn sum_answers(&self, index: usize, is_wanted: impl Fn([&str; 2]) -> bool) -> ClassCounts {
        let wanted = || AnswerOrigin::ALL.into_iter().filter(|origin| is_wanted(origin.labels()));
        let sum = |origin, class| self.requests[index].sum(origin as usize * STATUS_CLASSES + class);
        std::array::from_fn(|class| wanted().map(|origin| sum(origin, class)).sum())
    }

    #[inline]
    pub(super) fn server_cells(&self, upstream: UpstreamId, server: ServerId) -> Option<&ServerCounters> {
        let upstream = *self.series.upstreams.get(upstream.0)?;
        let server = *self.series.servers[upstream].get(server.0)?;
        Some(&self.upstream_requests[upstream][server])
    }

    /// The responses of a server, also those that another try followed.
    pub fn server_responses(&self, upstream: UpstreamId, server: ServerId) -> ClassCounts {
        let cells = self.server_cells(upstream, server);
        std::array::from_fn(|class| cells.map_or(0, |cells| cells.sum(class)))
    }

    /// The responses of an upstream without those that another try followed.
    pub fn upstream_responses(&self, upstream: UpstreamId) -> ClassCounts {
        let Some(&upstream) = self.series.upstreams.get(upstream.0) else { return ClassCounts::default() };
        let cells = || firsts(&self.series.servers[upstream]).map(|at| &self.upstream_requests[upstream][at]);
        let sum = |first: usize, class| cells().map(|cells| cells.sum(first + class)).sum::<u64>();
        std::array::from_fn(|class| sum(0, class).saturating_sub(sum(RETRIED_FIRST, class)))
    }
}
