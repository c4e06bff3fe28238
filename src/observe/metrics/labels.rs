//! Which cells a label has: places that read alike share them, and so do gateways that follow each other.

use std::sync::Arc;

use super::cells::{Cells, Histogram};
use super::{Answers, Labels, Metrics};

/// Of each place the first one of the same label: places that read alike are one series, since no series may
/// come twice.
pub(super) struct Series {
    /// The last is "none".
    pub locations: Vec<usize>,
    pub limits: Vec<usize>,
    pub upstreams: Vec<usize>,
    pub servers: Vec<Vec<usize>>,
}

/// The cells of the gateway before.
pub(super) struct Known<'a> {
    pub before: Option<&'a Metrics>,
    pub workers: usize,
}

// === impl Series ===

impl Series {
    pub fn new(labels: &Labels) -> Series {
        let mut locations = firsts(&labels.locations);
        locations.push(labels.locations.len());
        let names: Vec<&String> = labels.upstreams.iter().map(|(name, _)| name).collect();
        Series {
            locations,
            limits: firsts(&labels.limits),
            upstreams: firsts(&names),
            servers: labels.upstreams.iter().map(|(_, servers)| firsts(servers)).collect(),
        }
    }
}

fn firsts<T: PartialEq>(labels: &[T]) -> Vec<usize> {
    labels.iter().filter_map(|label| labels.iter().position(|known| known == label)).collect()
}

// === impl Known ===

impl Known<'_> {
    /// The cells of each label; where `of` says it was known before, the same.
    pub fn cells<L: PartialEq + 'static, C: Cells>(
        &self,
        labels: &[L],
        of: impl Fn(&Metrics) -> (&Vec<L>, &Vec<Arc<C>>),
    ) -> Vec<Arc<C>> {
        let cell = |label: &L| {
            self.cell(|before| {
                let (labels, cells) = of(before);
                cells.get(labels.iter().position(|known| known == label)?)
            })
        };
        labels.iter().map(cell).collect()
    }

    /// The response times of an upstream.
    pub fn times(&self, upstream: &str) -> Arc<Histogram> {
        self.cell(|before| before.upstream_times.get(place_of(before, upstream)?))
    }

    /// What the servers of an upstream answered.
    pub fn servers(&self, upstream: &str, servers: &[String]) -> Vec<Arc<Answers>> {
        let cell = |server: &String| {
            self.cell(|before| {
                let upstream = place_of(before, upstream)?;
                let place = before.labels.upstreams[upstream].1.iter().position(|known| known == server)?;
                before.upstream_requests.get(upstream)?.get(place)
            })
        };
        servers.iter().map(cell).collect()
    }

    /// Cells that have no label, in `blocks` if they are new.
    pub fn of_all<C: Cells>(&self, blocks: usize, of: impl Fn(&Metrics) -> &Arc<C>) -> Arc<C> {
        self.before.map_or_else(|| Arc::new(C::cells(blocks)), |before| of(before).clone())
    }

    fn cell<C: Cells>(&self, of: impl Fn(&Metrics) -> Option<&Arc<C>>) -> Arc<C> {
        let known = self.before.and_then(of).cloned();
        known.unwrap_or_else(|| Arc::new(C::cells(self.workers)))
    }
}

fn place_of(before: &Metrics, upstream: &str) -> Option<usize> {
    before.labels.upstreams.iter().position(|(known, _)| known == upstream)
}
