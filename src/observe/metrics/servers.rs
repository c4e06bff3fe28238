//! What is read of upstreams and their servers at the scrape.

use super::{Metrics, ValueReader};
use crate::config::{ServerId, UpstreamId};

/// What is told of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMetric {
    Up,
    Ejected,
    Draining,
    InFlight,
    Ejections,
    ChecksPassed,
    ChecksFailed,
}

impl ServerMetric {
    const ALL: [ServerMetric; 7] = [
        ServerMetric::Up,
        ServerMetric::Ejected,
        ServerMetric::Draining,
        ServerMetric::InFlight,
        ServerMetric::Ejections,
        ServerMetric::ChecksPassed,
        ServerMetric::ChecksFailed,
    ];

    /// Name, help, whether it only grows, and the result that it counts.
    fn metric_family(self) -> (&'static str, &'static str, bool, Option<&'static str>) {
        match self {
            ServerMetric::Up => {
                ("sluicegate_upstream_up", "Whether a server passes its health checks", false, None)
            }
            ServerMetric::Ejected => {
                ("sluicegate_upstream_ejected", "Whether a server is ejected for its errors", false, None)
            }
            ServerMetric::Draining => {
                ("sluicegate_upstream_draining", "Whether a server is drained", false, None)
            }
            ServerMetric::InFlight => {
                ("sluicegate_upstream_in_flight", "Requests being answered by a server", false, None)
            }
            ServerMetric::Ejections => {
                ("sluicegate_upstream_ejections", "How often a server was ejected", true, None)
            }
            ServerMetric::ChecksPassed => {
                ("sluicegate_upstream_health_checks", "Health checks of a server", true, Some("pass"))
            }
            ServerMetric::ChecksFailed => {
                ("sluicegate_upstream_health_checks", "Health checks of a server", true, Some("fail"))
            }
        }
    }
}

impl Metrics {
    /// Requests to an upstream that were tried again, for one reason.
    pub fn watch_retries(
        &self,
        upstream: UpstreamId,
        reason: &'static str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        if self.is_first(upstream, None) {
            let mut labels = self.upstream_label(upstream);
            labels.push(("reason", reason.to_owned()));
            self.watch_counter("sluicegate_upstream_retries", "Requests tried again", labels, read);
        }
    }

    /// Retries of an upstream that its budget did not allow.
    pub fn watch_over_budget(&self, upstream: UpstreamId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        if self.is_first(upstream, None) {
            let (name, help) =
                ("sluicegate_upstream_retries_over_budget", "Retries the budget did not allow");
            self.watch_counter(name, help, self.upstream_label(upstream), read);
        }
    }

    /// How a server stands; `reader` makes what reads one fact of it.
    pub fn watch_server(
        &self,
        upstream: UpstreamId,
        server: ServerId,
        reader: impl Fn(ServerMetric) -> ValueReader,
    ) {
        if !self.is_first(upstream, Some(server)) {
            return;
        }
        for fact in ServerMetric::ALL {
            let (name, help, grows, result) = fact.metric_family();
            let mut labels = self.upstream_label(upstream);
            let server = self.labels.upstreams.get(upstream.0).and_then(|(_, servers)| servers.get(server.0));
            labels.extend(server.map(|server| ("server", server.clone())));
            labels.extend(result.map(|result| ("result", result.to_owned())));
            if grows {
                self.watch_counter(name, help, labels, reader(fact));
            } else {
                self.watch_gauge(name, help, labels, reader(fact));
            }
        }
    }

    fn upstream_label(&self, upstream: UpstreamId) -> Vec<(&'static str, String)> {
        self.labels
            .upstreams
            .get(upstream.0)
            .map(|(name, _)| ("upstream", name.clone()))
            .into_iter()
            .collect()
    }

    /// False for a name that an earlier place has: a sum would tell nothing.
    fn is_first(&self, upstream: UpstreamId, server: Option<ServerId>) -> bool {
        let first = |firsts: &[usize], place: usize| firsts.get(place) == Some(&place);
        first(&self.series.upstreams, upstream.0)
            && server.is_none_or(|server| first(&self.series.servers[upstream.0], server.0))
    }
}
