//! Sends the spans of sampled requests to the collector, in batches, from the control thread.
//!
//! No request waits for it. Spans that the collector does not take are dropped and counted, and the log tells when it
//! stops taking spans and when it takes them again.

mod collector;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use collector::Collector;
use sluicegate_base::system_roots::load_system_roots;
use sluicegate_observe::traces::span::SpanRecord;
use sluicegate_observe::traces::{SpanCounts, Tracer, otlp};

/// Spans of one export.
const BATCH_MAX: usize = 512;
/// The time in which the spans of one export gather.
const GATHER: Duration = Duration::from_secs(1);
/// The pause between two exports. It bounds the work that callers cause by sampling all their requests.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause after an export that failed.
const FAULT_PAUSE: Duration = Duration::from_secs(1);
/// Time to send the last spans at the end of the process.
const LAST_EXPORT: Duration = Duration::from_secs(1);

/// The task that exports the spans of one tracer. Dropped, it goes on until no request uses that tracer.
pub(super) struct SpanExport {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl SpanExport {
    /// `None` if the spans of `tracer` are exported already.
    pub(super) fn start(tracer: &Tracer) -> Option<SpanExport> {
        let (settings, spans) = tracer.config.otlp.clone().zip(tracer.take_receiver())?;
        let (stop, stopped) = watch::channel(false);
        let counts = tracer.counts.clone();
        let task = tokio::spawn(async move {
            // Reading the authorities of the system blocks.
            let roots = match settings.tls {
                true => spawn_blocking(load_system_roots).await.ok(),
                false => None,
            };
            let collector = Collector::new(settings, roots);
            Exporter { collector, counts, stopped, is_failing: false }.run(spans).await;
        });
        Some(SpanExport { stop, task })
    }

    /// Sends the remaining spans, and waits at most a second for it.
    pub(super) async fn flush_and_end(mut self) {
        let _ = self.stop.send(true);
        if timeout(LAST_EXPORT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

struct Exporter {
    collector: Collector,
    counts: Arc<SpanCounts>,
    stopped: watch::Receiver<bool>,
    /// The last export failed.
    is_failing: bool,
}

impl Exporter {
    async fn run(mut self, mut spans: mpsc::Receiver<SpanRecord>) {
        let mut batch = Vec::new();
        let mut stopped = self.stopped.clone();
        loop {
            let is_last = tokio::select! {
                is_open = gather_batch(&mut spans, &mut batch) => !is_open,
                () = wait_for_stop(&mut stopped) => {
                    while let Ok(span) = spans.try_recv() {
                        batch.push(span);
                    }
                    true
                }
            };
            for some in batch.chunks(BATCH_MAX) {
                self.export_batch(some).await;
            }
            batch.clear();
            if is_last {
                return;
            }
            tokio::select! {
                () = sleep(if self.is_failing { FAULT_PAUSE } else { PAUSE }) => {}
                () = wait_for_stop(&mut stopped) => {}
            }
        }
    }

    async fn export_batch(&mut self, batch: &[SpanRecord]) {
        let result = self.collector.post(otlp::encode_batch(batch).into()).await;
        let collector = &self.collector.settings.authority;
        match &result {
            Ok(()) if self.is_failing => tracing::info!(collector, "the collector takes spans again"),
            Err(reason) if !self.is_failing => {
                tracing::warn!(collector, "the collector does not take spans: {reason}");
            }
            _ => {}
        }
        self.is_failing = result.is_err();
        let count = if result.is_ok() { &self.counts.exported } else { &self.counts.dropped };
        count.fetch_add(batch.len() as u64, Relaxed);
    }
}

/// Resolves when the process ends; never if the exporter was only replaced.
async fn wait_for_stop(stopped: &mut watch::Receiver<bool>) {
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        pending().await
    }
}

/// Waits for spans, and for more of them as long as they gather. False: there will be no more. Dropping the future
/// loses none.
async fn gather_batch(spans: &mut mpsc::Receiver<SpanRecord>, batch: &mut Vec<SpanRecord>) -> bool {
    if spans.recv_many(batch, BATCH_MAX).await == 0 {
        return false;
    }
    let end = Instant::now() + GATHER;
    while batch.len() < BATCH_MAX {
        match timeout_at(end, spans.recv_many(batch, BATCH_MAX - batch.len())).await {
            Ok(0) => return false,
            Ok(_) => {}
            Err(_elapsed) => break,
        }
    }
    true
}
