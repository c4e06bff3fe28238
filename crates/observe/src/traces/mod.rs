//! Traces: which requests leave a span, the trace context that their upstream gets, and the queue of finished spans.
//!
//! A request without a valid `traceparent` begins a trace, which the configured share of them samples; any other
//! follows the decision of its caller. Only a sampled request pays for its span: a worker puts the finished
//! [`SpanRecord`] into a queue of bounded size and never waits. The control thread encodes the records ([`otlp`]) and
//! sends them to the collector.

pub mod otlp;
pub mod parent;
pub mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use parent::{SAMPLED, TRACEPARENT, TraceParent};
use sluicegate_base::random::RandomNumbers;
use sluicegate_base::value_hash::ValueHasher;
use sluicegate_model::TracingConfig;
use span::SpanRecord;

/// Finished spans that may wait for the collector; each holds at most about 3 KB.
pub const SPANS_MAX: usize = 2048;

const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The tracing of a gateway.
pub struct Tracer {
    /// The configuration, by which a reload decides to keep this tracing.
    pub config: TracingConfig,
    /// A new trace is sampled if its random number is less; `None` = all are.
    sample_below: Option<u64>,
    /// Hashes the names of keys.
    hasher: ValueHasher,
    sender: mpsc::Sender<SpanRecord>,
    /// `None` = taken by the task that exports the spans.
    receiver: Mutex<Option<mpsc::Receiver<SpanRecord>>>,
    /// The counts of spans, which go on over reloads.
    pub counts: Arc<SpanCounts>,
}

/// The counts of spans by their fate.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// Taken by the collector.
    pub exported: AtomicU64,
    /// Lost, because the queue was full or the collector did not take them.
    pub dropped: AtomicU64,
}

/// One worker's end of the tracing.
pub struct WorkerTracer {
    tracer: Arc<Tracer>,
    /// Two generators with seeds of their own: the halves of two trace ids must not meet again.
    ids: [RandomNumbers; 2],
}

/// The place of a request's own span in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    /// The id of the trace, never 0.
    pub trace_id: u128,
    /// The id of the request's own span, never 0.
    pub span_id: u64,
    /// The span of the caller; `None` = the trace begins here.
    pub parent_id: Option<u64>,
    /// The flags of `traceparent`: 1 = sampled, 2 = the id of the trace is random.
    pub flags: u8,
}

// === impl Tracer ===

impl Tracer {
    /// The tracing by `config`, or that of `before` if nothing changes; `None` = no spans are made. Names of keys are
    /// hashed by `hasher`; without one, by that of `before` or a random one.
    pub fn continue_from(
        before: Option<&Arc<Tracer>>,
        config: &TracingConfig,
        hasher: Option<ValueHasher>,
    ) -> Option<Arc<Tracer>> {
        config.otlp.as_ref()?;
        let known = || before.map(|before| before.hasher.clone());
        let hasher = hasher.or_else(known).unwrap_or_else(ValueHasher::random);
        if let Some(same) = before.filter(|before| before.config == *config && before.hasher == hasher) {
            return Some(same.clone());
        }
        let (sender, receiver) = mpsc::channel(SPANS_MAX);
        Some(Arc::new(Tracer {
            config: config.clone(),
            sample_below: (config.sample < 100.0).then(|| (config.sample / 100.0 * u64::MAX as f64) as u64),
            hasher,
            sender,
            receiver: Mutex::new(Some(receiver)),
            counts: before.map(|before| before.counts.clone()).unwrap_or_default(),
        }))
    }

    /// The end of the queue, for the one task that exports the spans.
    pub fn take_receiver(&self) -> Option<mpsc::Receiver<SpanRecord>> {
        self.receiver.lock().take()
    }

    /// The hash that stands for the name of a key.
    pub fn hash_key(&self, name: &str) -> u64 {
        self.hasher.hash_value(name.as_bytes())
    }
}

// === impl WorkerTracer ===

impl WorkerTracer {
    /// The end of one worker, with random ids of its own.
    pub fn new(tracer: &Arc<Tracer>) -> WorkerTracer {
        WorkerTracer { tracer: tracer.clone(), ids: ["high half", "low half"].map(RandomNumbers::seeded) }
    }

    /// Decides whether a request with these headers leaves a span; call it once per request. `None` = it does not.
    pub fn begin_span(&self, headers: &HeaderMap) -> Option<SpanContext> {
        match TraceParent::read_header(headers) {
            Some(parent) => parent.is_sampled().then(|| SpanContext {
                trace_id: parent.trace_id,
                span_id: self.next_id(),
                parent_id: Some(parent.parent_id),
                flags: parent.flags,
            }),
            None => {
                let is_sampled = self.tracer.sample_below.is_none_or(|below| self.ids[0].next() < below);
                is_sampled.then(|| SpanContext { flags: SAMPLED, ..self.begin_trace() })
            }
        }
    }

    /// Writes the trace context for the upstream of a request: its span is the parent, if it has one. The context of an
    /// unsampled caller stays as it is.
    pub fn write_context(&self, span: Option<SpanContext>, headers: &mut HeaderMap) {
        let context = match span {
            Some(span) => span,
            None if TraceParent::read_header(headers).is_some() => return,
            None => self.begin_trace(),
        };
        if context.parent_id.is_none() {
            // It belongs to no trace that is known here (W3C Trace Context, section 3.3).
            headers.remove(TRACESTATE);
        }
        let parent =
            TraceParent { trace_id: context.trace_id, parent_id: context.span_id, flags: context.flags };
        headers.insert(TRACEPARENT, parent.to_value());
    }

    /// Queues the finished span that `build` makes. When the queue is full, it is only counted as dropped.
    pub fn queue_span(&self, build: impl FnOnce() -> SpanRecord) {
        match self.tracer.sender.try_reserve() {
            Ok(room) => room.send(build()),
            Err(_) => drop(self.tracer.counts.dropped.fetch_add(1, Relaxed)),
        }
    }

    /// The hash of a key, see [`Tracer::hash_key`].
    pub fn hash_key(&self, name: &str) -> u64 {
        self.tracer.hash_key(name)
    }

    /// A new trace that is not sampled.
    fn begin_trace(&self) -> SpanContext {
        let trace_id = u128::from(self.next_id()) << 64 | u128::from(self.ids[1].next());
        SpanContext { trace_id, span_id: self.next_id(), parent_id: None, flags: 0 }
    }

    /// Never 0, which is no id.
    fn next_id(&self) -> u64 {
        self.ids[0].next().max(1)
    }
}

#[cfg(test)]
mod tests;
