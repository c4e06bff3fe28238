//! Maps labels to cells: equal labels share their cells, and the next gateway adopts those of the previous one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::cells::CellStorage;
use super::{MetricLabels, Metrics, ServerCounters};

/// Maps each index in the configuration to the first index with the same label: equal labels are one series, because a
/// series must be unique.
pub(super) struct SeriesIndex {
    /// The last one is the location "none".
    pub locations: Vec<usize>,
    pub limits: Vec<usize>,
    /// The first label of each limit in `decision_labels`, and the number of those that follow it.
    pub decisions: Vec<(usize, u8)>,
    /// The limit and the class of each series of decisions; an empty class = the limit has no shares.
    pub decision_labels: Vec<(String, String)>,
    pub upstreams: Vec<usize>,
    pub upstream_names: Vec<String>,
    pub servers: Vec<Vec<usize>>,
}

/// The cells of the previous gateway.
pub(super) struct PreviousCells<'a> {
    pub previous: Option<&'a Metrics>,
    pub workers: usize,
}

// === impl SeriesIndex ===

impl SeriesIndex {
    pub(super) fn new(labels: &MetricLabels) -> SeriesIndex {
        let mut locations = first_indices(&labels.locations);
        locations.push(labels.locations.len());
        let upstream_names: Vec<String> = labels.upstreams.iter().map(|(name, _)| name.clone()).collect();
        let (mut decisions, mut decision_labels) = (Vec::new(), Vec::new());
        for (index, limit) in labels.limits.iter().enumerate() {
            let first = decision_labels.len();
            match labels.classes.get(index).filter(|classes| !classes.is_empty()) {
                None => decision_labels.push((limit.clone(), String::new())),
                Some(classes) => {
                    decision_labels.extend(classes.iter().map(|class| (limit.clone(), class.clone())));
                }
            }
            decisions.push((first, (decision_labels.len() - first - 1) as u8));
        }
        SeriesIndex {
            decisions,
            decision_labels,
            locations,
            limits: first_indices(&labels.limits),
            upstreams: first_indices(&upstream_names),
            upstream_names,
            servers: labels.upstreams.iter().map(|(_, servers)| first_indices(servers)).collect(),
        }
    }
}

/// The indices that are the first of their label, as [`SeriesIndex`] has them.
pub(super) fn firsts(series: &[usize]) -> impl Iterator<Item = usize> {
    series.iter().copied().enumerate().filter(|(index, first)| index == first).map(|(index, _)| index)
}

/// Gives each label the cells of the first one that is equal to it.
pub(super) fn share_equal<L: Eq + Hash, C>(labels: &[L], cells: Vec<Arc<C>>) -> Vec<Arc<C>> {
    first_indices(labels).iter().map(|first| cells[*first].clone()).collect()
}

pub(super) fn first_indices<T: Eq + Hash>(labels: &[T]) -> Vec<usize> {
    let mut first = HashMap::new();
    labels.iter().enumerate().map(|(index, label)| *first.entry(label).or_insert(index)).collect()
}

// === impl PreviousCells ===

impl PreviousCells<'_> {
    /// The cells of each label, adopted if `of` finds the label in the previous gateway.
    pub(super) fn reuse_cells<L: Eq + Hash + 'static, C: CellStorage + 'static>(
        &self,
        labels: &[L],
        of: impl Fn(&Metrics) -> (&Vec<L>, &Vec<Arc<C>>),
    ) -> Vec<Arc<C>> {
        let mut known: HashMap<&L, &Arc<C>> = HashMap::new();
        if let Some((labels, cells)) = self.previous.map(&of) {
            labels.iter().zip(cells).for_each(|(label, cell)| _ = known.entry(label).or_insert(cell));
        }
        let fresh = || Arc::new(C::zeroed_for(self.workers));
        let cell = |label: &L| known.get(label).map_or_else(fresh, |cell| Arc::clone(cell));
        labels.iter().map(cell).collect()
    }

    /// The cells of each location, and last those of requests without one.
    pub(super) fn reuse_location_cells<C: CellStorage + 'static>(
        &self,
        locations: &[String],
        of: impl Fn(&Metrics) -> &Vec<Arc<C>>,
    ) -> Vec<Arc<C>> {
        let mut cells = self.reuse_cells(locations, |all| (&all.labels.locations, of(all)));
        cells.push(self.reuse_cell(self.workers, |before| of(before).last()));
        cells
    }

    /// The outcomes of the servers of an upstream.
    pub(super) fn reuse_server_cells(&self, upstream: &str, servers: &[String]) -> Vec<Arc<ServerCounters>> {
        let cell = |server: &String| {
            self.reuse_cell(self.workers, |before| {
                let upstream = before.series.upstream_names.iter().position(|known| known == upstream)?;
                let index = before.labels.upstreams[upstream].1.iter().position(|known| known == server)?;
                before.upstream_requests.get(upstream)?.get(index)
            })
        };
        servers.iter().map(cell).collect()
    }

    /// The cells that `of` finds in the previous gateway; new ones have `blocks` blocks.
    pub(super) fn reuse_cell<C: CellStorage>(
        &self,
        blocks: usize,
        of: impl Fn(&Metrics) -> Option<&Arc<C>>,
    ) -> Arc<C> {
        let known = self.previous.and_then(of).cloned();
        known.unwrap_or_else(|| Arc::new(C::zeroed_for(blocks)))
    }
}
