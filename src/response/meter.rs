//! The meter of one response.

use std::sync::Arc;

use http::HeaderValue;

use super::event_framing::FramePiece;
use super::framing::BodyFraming;
use super::llm_fields::UsageField;
use super::llm_usage::{LlmUsage, SaidUsage};
use super::plan::{METER_POINTERS_MAX, MeterPlan};
use crate::base::json::{JsonPaths, JsonScanner, JsonTextTally, JsonValue, JsonVisitor, PATHS_MAX, PathSet};

/// One in millionths.
const ONE: u128 = 1_000_000;

/// Reads what a response used, from the pieces of its body.
#[derive(Debug)]
pub struct ResponseMeter {
    plan: Arc<MeterPlan>,
    state: Box<MeterState>,
}

/// What a body has said, as if it ended here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeterReading {
    pub usage: LlmUsage,
    /// The usage is that of the whole response: it came without text, as the last event of a stream has it, or the
    /// body is one document.
    pub is_final: bool,
    /// Bytes of texts: decoded, in the document that has not ended as well. All bytes of an opaque body are text.
    pub text_bytes: u64,
    /// Those of them that came after the last document that said its output. If the body ends early, the output that
    /// it said does not include them.
    pub text_bytes_after_usage: u64,
    /// Bytes of documents in a body that has neither a usage nor a text that is known.
    pub unread_bytes: u64,
    pub is_document: bool,
    /// The body was to be one document, and is none.
    pub is_broken: bool,
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
    is_final: bool,
    has_text: bool,
    /// Bytes of all documents.
    bytes: u64,
    text_bytes: u64,
    text_bytes_after_usage: u64,
}

/// What the current document has said so far.
#[derive(Debug)]
struct MeteredDocument {
    /// By path.
    numbers: [u128; PATHS_MAX],
    said: PathSet,
    texts: JsonTextTally,
}

struct DocumentVisitor<'a> {
    plan: &'a MeterPlan,
    paths: &'a JsonPaths,
    document: &'a mut MeteredDocument,
}

// === impl ResponseMeter ===

impl ResponseMeter {
    /// A meter for a body of this type. One that is compressed or of another type than JSON, server-sent events,
    /// messages of AWS and JSON by lines is opaque.
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
            FramePiece::Data(data) => {
                totals.bytes = totals.bytes.saturating_add(data.len() as u64);
                scanner.scan(paths, data, &mut DocumentVisitor { plan, paths, document });
            }
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
        let MeterState { framing, scanner, document, totals, .. } = &*self.state;
        let (mut totals, is_whole) = (*totals, scanner.is_whole());
        if is_whole {
            totals.add_document(&self.plan, document);
        } else if !scanner.is_invalid() {
            totals.count_text(document.text_bytes(&self.plan));
            totals.has_text |= document.has_text();
        }
        let (usage, is_document) = (totals.usage.usage(), matches!(framing, BodyFraming::Document));
        MeterReading {
            usage,
            is_final: totals.is_final || is_document && is_whole,
            text_bytes: totals.text_bytes,
            text_bytes_after_usage: totals.text_bytes_after_usage,
            unread_bytes: if usage.is_said() || totals.has_text { 0 } else { totals.bytes },
            is_document,
            is_broken: is_document && !is_whole,
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
        let (text_bytes, mut output) = (document.text_bytes(plan), None);
        self.count_text(text_bytes);
        self.has_text |= document.has_text();
        for path in document.said.iter() {
            let Some(field) = plan.usage_field(path) else { continue };
            let tokens = u64::try_from(document.numbers[path].div_ceil(ONE)).unwrap_or(u64::MAX);
            self.usage.set(field, tokens);
            if matches!(field, UsageField::Output | UsageField::Thoughts) {
                output = output.max(Some(tokens));
            }
        }
        if let Some(output) = output {
            self.text_bytes_after_usage = 0;
            self.is_final = output > 0 && text_bytes == 0;
        }
    }
}

// === impl MeteredDocument ===

impl Default for MeteredDocument {
    fn default() -> Self {
        let texts = JsonTextTally::default();
        MeteredDocument { numbers: [0; PATHS_MAX], said: PathSet::default(), texts }
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

    /// Whether it has a text that is known, if only an empty one.
    fn has_text(&self) -> bool {
        !self.texts.counted().is_empty()
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
        // Of a list of tokens, each element counts.
        let is_listed = |path: usize| self.plan.usage_field(path) == Some(UsageField::ListedInput);
        let millionths = match value {
            JsonValue::Number(number) => number.millionths,
            JsonValue::Container => {
                let first = paths.iter().next().filter(|_| paths.iter().all(is_listed));
                first.map(|path| self.document.number(path).unwrap_or(0).saturating_add(ONE))
            }
            _ => None,
        };
        let Some(millionths) = millionths else { return };
        self.document.said.insert(paths);
        paths.iter().for_each(|path| self.document.numbers[path] = millionths);
    }

    fn count_text(&mut self, paths: PathSet, bytes: usize) {
        self.document.texts.count_text(paths, bytes);
    }
}
