//! The meter of one response.

use std::sync::Arc;

use http::HeaderValue;

use super::event_framing::FramePiece;
use super::framing::BodyFraming;
use super::llm_fields::{USAGE_PATHS, UsageField};
use super::llm_usage::{LlmUsage, SaidUsage};
use super::plan::{METER_POINTERS_MAX, MeterPlan};
use crate::base::json::{JsonPaths, JsonScanner, JsonTextTally, JsonValue, JsonVisitor, PathSet};

/// Paths of numbers stand in front of those of texts.
const METER_VALUES_MAX: usize = USAGE_PATHS.len() + METER_POINTERS_MAX;

/// Reads what a response used, from the pieces of its body.
#[derive(Debug)]
pub struct ResponseMeter {
    plan: Arc<MeterPlan>,
    state: Box<MeterState>,
}

/// What a body has said, as if it ended here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeterReading {
    pub usage: LlmUsage,
    /// Bytes of texts: decoded, in the document that has not ended as well. All bytes of an opaque body are text.
    pub text_bytes: u64,
    /// Those of them that came after the last document that said its output. If the body ends early, the output that
    /// it said does not include them.
    pub text_bytes_after_usage: u64,
}

#[derive(Debug)]
struct MeterState {
    framing: BodyFraming,
    scanner: JsonScanner,
    document: MeteredDocument,
    totals: MeterTotals,
    /// The last number at each pointer, and the pointers that have one.
    numbers: [Option<u128>; METER_POINTERS_MAX],
}

/// What the whole documents of a body have said.
#[derive(Debug, Clone, Copy, Default)]
struct MeterTotals {
    usage: SaidUsage,
    text_bytes: u64,
    text_bytes_after_usage: u64,
}

/// What the current document has said so far.
#[derive(Debug)]
struct MeteredDocument {
    numbers: [u128; METER_VALUES_MAX],
    said: PathSet,
    texts: JsonTextTally,
}

struct DocumentVisitor<'a> {
    paths: &'a JsonPaths,
    document: &'a mut MeteredDocument,
}

// === impl ResponseMeter ===

impl ResponseMeter {
    /// A meter for a body of this type. One that is compressed or of another type than JSON, server-sent events and
    /// JSON by lines is opaque.
    pub fn new(
        plan: Arc<MeterPlan>,
        content_type: Option<&HeaderValue>,
        content_encoding: Option<&HeaderValue>,
    ) -> ResponseMeter {
        let framing = BodyFraming::new(content_type, content_encoding);
        let state = MeterState {
            framing,
            scanner: JsonScanner::default(),
            document: MeteredDocument::default(),
            totals: MeterTotals::default(),
            numbers: Default::default(),
        };
        ResponseMeter { plan, state: Box::new(state) }
    }

    /// Reads the next piece of the body.
    pub fn scan(&mut self, bytes: &[u8]) {
        let MeterState { framing, scanner, document, totals, numbers } = &mut *self.state;
        if matches!(framing, BodyFraming::Opaque) {
            totals.count_text(bytes.len() as u64);
            return;
        }
        let is_stream = !matches!(framing, BodyFraming::Document);
        let (plan, paths) = (&*self.plan, self.plan.paths(is_stream));
        framing.scan(bytes, |piece| match piece {
            FramePiece::Data(data) => scanner.scan(paths, data, &mut DocumentVisitor { paths, document }),
            FramePiece::End => {
                if scanner.is_whole() {
                    totals.add_document(plan, document);
                    for (at, number) in numbers.iter_mut().enumerate().take(plan.count_pointers()) {
                        *number = document.number(plan.first_pointer() + at).or(*number);
                    }
                }
                scanner.restart();
                document.restart();
            }
        });
    }

    /// What the body has said. A last document that is whole counts, also where the end of its event or line is
    /// missing.
    pub fn read(&self) -> MeterReading {
        let MeterState { scanner, document, totals, .. } = &*self.state;
        let mut totals = *totals;
        if scanner.is_whole() {
            totals.add_document(&self.plan, document);
        } else if !scanner.is_invalid() {
            totals.count_text(document.text_bytes(&self.plan));
        }
        MeterReading {
            usage: totals.usage.usage(),
            text_bytes: totals.text_bytes,
            text_bytes_after_usage: totals.text_bytes_after_usage,
        }
    }

    /// The number at a pointer of the plan, in millionths, rounded up: that of the last document that has one.
    pub fn read_number(&self, pointer: usize) -> Option<u128> {
        let MeterState { scanner, document, numbers, .. } = &*self.state;
        let said = *numbers.get(pointer)?;
        let last = (scanner.is_whole() && pointer < self.plan.count_pointers())
            .then(|| document.number(self.plan.first_pointer() + pointer));
        last.flatten().or(said)
    }
}

// === impl MeterTotals ===

impl MeterTotals {
    fn count_text(&mut self, bytes: u64) {
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        self.text_bytes_after_usage = self.text_bytes_after_usage.saturating_add(bytes);
    }

    fn add_document(&mut self, plan: &MeterPlan, document: &MeteredDocument) {
        self.count_text(document.text_bytes(plan));
        if !plan.reads_llm() || document.said.is_empty() {
            return;
        }
        for (path, (_, field)) in USAGE_PATHS.iter().enumerate() {
            let Some(millionths) = document.number(path) else { continue };
            self.usage.set(*field, u64::try_from(millionths.div_ceil(1_000_000)).unwrap_or(u64::MAX));
            if *field == UsageField::Output {
                self.text_bytes_after_usage = 0;
            }
        }
    }
}

// === impl MeteredDocument ===

impl Default for MeteredDocument {
    fn default() -> Self {
        let texts = JsonTextTally::default();
        MeteredDocument { numbers: [0; METER_VALUES_MAX], said: PathSet::default(), texts }
    }
}

impl MeteredDocument {
    fn restart(&mut self) {
        self.said = PathSet::default();
        self.texts.restart();
    }

    fn number(&self, path: usize) -> Option<u128> {
        self.said.contains(path).then(|| self.numbers[path])
    }

    fn text_bytes(&self, plan: &MeterPlan) -> u64 {
        let counted = self.texts.counted();
        let sum = counted.iter().fold(0u64, |sum, path| sum.saturating_add(self.texts.bytes(path)));
        let first = plan.first_text();
        if !(counted.contains(first) && counted.contains(first + 1)) {
            return sum;
        }
        // Two names of one text.
        sum - self.texts.bytes(first).min(self.texts.bytes(first + 1))
    }
}

// === impl DocumentVisitor ===

impl JsonVisitor for DocumentVisitor<'_> {
    fn begin_member(&mut self, paths: PathSet, segments: usize) {
        self.document.said.remove(paths);
        self.document.texts.begin_member(self.paths, paths, segments);
    }

    fn begin_element(&mut self, paths: PathSet, segments: usize) {
        self.document.texts.begin_element(self.paths, paths, segments);
    }

    fn find_value(&mut self, paths: PathSet, value: JsonValue<'_>) {
        let JsonValue::Number(number) = value else { return };
        let Some(millionths) = number.millionths else { return };
        self.document.said.insert(paths);
        paths.iter().for_each(|path| self.document.numbers[path] = millionths);
    }

    fn count_text(&mut self, paths: PathSet, bytes: usize) {
        self.document.texts.count_text(paths, bytes);
    }
}
