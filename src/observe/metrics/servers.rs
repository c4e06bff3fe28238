//! Values of upstreams and their servers, which the scrape reads.

use super::{Metrics, ValueReader};
use crate::config::{ServerId, UpstreamId};

/// A metric of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMetric {
    Up,
    Ejected,
    Draining,
    InFlight,
    Ejections,
    StrayData,
    ChecksPassed,
    ChecksFailed,
}

/// A metric of an upstream that is obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMetric {
    Stopped,
    Stops,
    Held,
    Rejected,
}

impl ServerMetric {
    const ALL: [ServerMetric; 8] = [
        ServerMetric::Up,
        ServerMetric::Ejected,
        ServerMetric::Draining,
        ServerMetric::InFlight,
        ServerMetric::Ejections,
        ServerMetric::StrayData,
        ServerMetric::ChecksPassed,
        ServerMetric::ChecksFailed,
    ];

    /// The name, the help, whether it is a counter, and the value of the label `result`.
    fn metric_family(self) -> (&'static str, &'static str, bool, Option<&'static str>) {
        match self {
            ServerMetric::Up => {
                ("sluicegate_upstream_up", "Whether a server passes its health checks", false, None)
            }
            ServerMetric::Ejected => {
                ("sluicegate_upstream_ejected", "Whether a server is ejected for its errors", false, None)
            }
            ServerMetric::Draining => {
                ("sluicegate_upstream_draining", "Whether a server is draining", false, None)
            }
            ServerMetric::InFlight => {
                ("sluicegate_upstream_in_flight", "Requests in flight at a server", false, None)
            }
            ServerMetric::Ejections => ("sluicegate_upstream_ejections", "Ejections of a server", true, None),
            ServerMetric::StrayData => {
                ("sluicegate_upstream_stray_data", "Connections with data of no request", true, None)
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
    /// Retried requests to an upstream, for one reason.
    pub fn watch_retries(
        &self,
        upstream: UpstreamId,
        reason: &'static str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        if self.is_first(upstream, None) {
            let mut labels = self.upstream_label(upstream);
            labels.push(("reason", reason.to_owned()));
            self.watch_counter("sluicegate_upstream_retries", "Requests that were retried", labels, read);
        }
    }

    /// Retries of an upstream that its retry budget did not allow.
    pub fn watch_over_budget(&self, upstream: UpstreamId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        if self.is_first(upstream, None) {
            let (name, help) =
                ("sluicegate_upstream_retries_over_budget", "Retries the budget did not allow");
            self.watch_counter(name, help, self.upstream_label(upstream), read);
        }
    }

    /// Stops that an upstream asked for; `reader` returns the function that reads one of the metrics.
    pub fn watch_stops(&self, upstream: UpstreamId, reader: impl Fn(StopMetric) -> ValueReader) {
        if !self.is_first(upstream, None) {
            return;
        }
        let labels = || self.upstream_label(upstream);
        let (name, help) =
            ("sluicegate_upstream_stopped", "Whether an upstream has stopped requests for now");
        self.watch_gauge(name, help, labels(), reader(StopMetric::Stopped));
        for (metric, name, help) in [
            (StopMetric::Stops, "sluicegate_upstream_stops", "Stops that an upstream asked for"),
            (StopMetric::Held, "sluicegate_upstream_held", "Requests that waited for the end of a stop"),
            (StopMetric::Rejected, "sluicegate_upstream_stop_rejections", "Requests that a stop rejected"),
        ] {
            self.watch_counter(name, help, labels(), reader(metric));
        }
    }

    /// Requests that wait in the queue of an upstream.
    pub fn watch_upstream_queue(&self, upstream: UpstreamId, read: impl Fn() -> u64 + Send + Sync + 'static) {
        if self.is_first(upstream, None) {
            let (name, help) =
                ("sluicegate_upstream_queue_depth", "Requests waiting in the queue of an upstream");
            self.watch_gauge(name, help, self.upstream_label(upstream), read);
        }
    }

    /// The metrics of a server; `reader` returns the function that reads one of them.
    pub fn watch_server(
        &self,
        upstream: UpstreamId,
        server: ServerId,
        reader: impl Fn(ServerMetric) -> ValueReader,
    ) {
        if !self.is_first(upstream, Some(server)) {
            return;
        }
        for metric in ServerMetric::ALL {
            let (name, help, is_counter, result) = metric.metric_family();
            let mut labels = self.upstream_label(upstream);
            let server = self.labels.upstreams.get(upstream.0).and_then(|(_, servers)| servers.get(server.0));
            labels.extend(server.map(|server| ("server", server.clone())));
            labels.extend(result.map(|result| ("result", result.to_owned())));
            if is_counter {
                self.watch_counter(name, help, labels, reader(metric));
            } else {
                self.watch_gauge(name, help, labels, reader(metric));
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

    /// False for a name that an earlier entry has, because their sum would mean nothing.
    fn is_first(&self, upstream: UpstreamId, server: Option<ServerId>) -> bool {
        let first = |firsts: &[usize], index: usize| firsts.get(index) == Some(&index);
        first(&self.series.upstreams, upstream.0)
            && server.is_none_or(|server| first(&self.series.servers[upstream.0], server.0))
    }
}
