//! The metrics of traces.

use super::Metrics;

impl Metrics {
    /// Spans that the collector took, and spans that were lost.
    pub fn watch_spans(
        &self,
        exported: impl Fn() -> u64 + Send + Sync + 'static,
        dropped: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let help = "Spans that the collector took";
        self.watch_counter("sluicegate_spans_exported", help, Vec::new(), exported);
        let help = "Spans that were lost: the queue was full, or the collector did not take them";
        self.watch_counter("sluicegate_spans_dropped", help, Vec::new(), dropped);
    }
}
