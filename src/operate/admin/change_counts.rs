//! Counts the changes that the admin API made or refused.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate_observe::metrics::{Metrics, values};

/// The results of changes, as the metric names them.
const RESULTS: [&str; 2] = ["ok", "refused"];

/// The changes so far, by the name of the endpoint and by result.
#[derive(Debug)]
pub(super) struct ChangeCounts(Vec<(&'static str, [AtomicU64; RESULTS.len()])>);

impl ChangeCounts {
    pub fn new(endpoints: impl Iterator<Item = &'static str>) -> ChangeCounts {
        ChangeCounts(endpoints.map(|name| (name, Default::default())).collect())
    }

    pub fn count_change(&self, name: &str, is_ok: bool) {
        if let Some((_, counts)) = self.0.iter().find(|(known, _)| *known == name) {
            counts[usize::from(!is_ok)].fetch_add(1, Relaxed);
        }
    }

    /// Registers all counts with `metrics`, and with the metrics that continue them. Call it once.
    pub fn register_metrics(self: &Arc<ChangeCounts>, metrics: &Metrics) {
        for (at, (name, _)) in self.0.iter().enumerate() {
            for (result, word) in RESULTS.into_iter().enumerate() {
                let counts = self.clone();
                let labels = vec![("call", name.to_string()), ("result", word.to_owned())];
                let read = move || counts.0[at].1[result].load(Relaxed);
                metrics.watch_process(values::ADMIN_CHANGES, labels, read);
            }
        }
    }
}
