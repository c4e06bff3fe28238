//! Which cells a label has: places that read alike share them, and so do gateways that follow each other.

use std::sync::Arc;

use super::cells::{CellStorage, Histogram};
use super::{MetricLabels, Metrics, ServerCounters};

/// Of each place the first one of the same label: places that read alike are one series, since no series may
/// come twice.
pub(super) struct SeriesIndex {
    /// The last is "none".
    pub locations: Vec<usize>,
    pub limits: Vec<usize>,
    pub upstreams: Vec<usize>,
    pub servers: Vec<Vec<usize>>,
}

/// The cells of the gateway before.
pub(super) struct PreviousCells<'a> {
    pub previous: Option<&'a Metrics>,
    pub workers: usize,
}

// === impl Series ===

impl SeriesIndex {
    pub fn new(labels: &MetricLabels) -> SeriesIndex {
        let mut locations = first_places(&labels.locations);
        locations.push(labels.locations.len());
        let names: Vec<&String> = labels.upstreams.iter().map(|(name, _)| name).collect();
        SeriesIndex {
            locations,
            limits: first_places(&labels.limits),
            upstreams: first_places(&names),
            servers: labels.upstreams.iter().map(|(_, servers)| first_places(servers)).collect(),
        }
    }
}

fn first_places<T: PartialEq>(labels: &[T]) -> Vec<usize> {
    labels.iter().filter_map(|label| labels.iter().position(|known| known == label)).collect()
}

// === impl Known ===

impl PreviousCells<'_> {
    /// The cells of each label; where `of` says it was known before, the same.
    pub fn reuse_cells<L: PartialEq + 'static, C: CellStorage>(
        &self,
        labels: &[L],
        of: impl Fn(&Metrics) -> (&Vec<L>, &Vec<Arc<C>>),
    ) -> Vec<Arc<C>> {
        let cell = |label: &L| {
            self.reuse_cell(|before| {
                let (labels, cells) = of(before);
                cells.get(labels.iter().position(|known| known == label)?)
            })
        };
        labels.iter().map(cell).collect()
    }

    /// The response times of an upstream.
    pub fn reuse_times(&self, upstream: &str) -> Arc<Histogram> {
        self.reuse_cell(|before| before.upstream_times.get(upstream_place(before, upstream)?))
    }

    /// What the servers of an upstream answered.
    pub fn reuse_server_cells(&self, upstream: &str, servers: &[String]) -> Vec<Arc<ServerCounters>> {
        let cell = |server: &String| {
            self.reuse_cell(|before| {
                let upstream = upstream_place(before, upstream)?;
                let place = before.labels.upstreams[upstream].1.iter().position(|known| known == server)?;
                before.upstream_requests.get(upstream)?.get(place)
            })
        };
        servers.iter().map(cell).collect()
    }

    /// Cells that have no label, in `blocks` if they are new.
    pub fn reuse_unlabelled<C: CellStorage>(
        &self,
        blocks: usize,
        of: impl Fn(&Metrics) -> &Arc<C>,
    ) -> Arc<C> {
        self.previous.map_or_else(|| Arc::new(C::zeroed_for(blocks)), |before| of(before).clone())
    }

    fn reuse_cell<C: CellStorage>(&self, of: impl Fn(&Metrics) -> Option<&Arc<C>>) -> Arc<C> {
        let known = self.previous.and_then(of).cloned();
        known.unwrap_or_else(|| Arc::new(C::zeroed_for(self.workers)))
    }
}

fn upstream_place(before: &Metrics, upstream: &str) -> Option<usize> {
    before.labels.upstreams.iter().position(|(known, _)| known == upstream)
}
