//! The meter of one response.

use std::sync::Arc;

use http::HeaderValue;
use smallvec::SmallVec;

use super::framing::{BodyFraming, FramePiece};
use super::llm_fields::UsageField;
use super::llm_usage::{LlmUsage, SaidUsage};
use super::plan::{METER_POINTERS_MAX, MeterPlan};
use sluicegate_base::json::{JsonScanner, JsonValue, JsonVisitor, PATHS_MAX, PathSet};

/// One in millionths.
const ONE: u128 = 1_000_000;
/// The data of the event that ends a stream of OpenAI, which is no JSON.
const END_MARK: &[u8] = b"[DONE]";

/// Reads the usage of a response from the pieces of its body.
#[derive(Debug)]
pub struct ResponseMeter {
    plan: Arc<MeterPlan>,
    state: Box<MeterState>,
}

/// The reading of a body, as if it ended here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeterReading {
    /// The tokens that the body says; none if it is opaque.
    pub usage: LlmUsage,
    /// The usage is that of the whole response: it came without text, as the last event of a stream has it, or the
    /// body is one document.
    pub is_final: bool,
    /// Decoded bytes of known texts, those in the unfinished document included.
    pub text_bytes: u64,
    /// Bytes of these texts after the last document that reported its output. If the body ends early, that output does
    /// not include them.
    pub text_bytes_after_usage: u64,
    /// Bytes of documents in an opaque body, or in one without usage and known text; of a stream of plain text, the
    /// bytes of the documents without a known text.
    pub unread_bytes: u64,
    /// The body is one document, and not a stream of several.
    pub is_document: bool,
    /// The body has neither usage nor known text, or was to be one document and is none.
    pub is_unclear: bool,
}

#[derive(Debug)]
struct MeterState {
    framing: BodyFraming,
    scanner: JsonScanner,
    document: MeteredDocument,
    totals: MeterTotals,
    /// The last number at each pointer, and the pointers that have one.
    numbers: [Option<u128>; METER_POINTERS_MAX],
    /// The last name of the model; empty = none.
    model: ModelName,
}

/// Longer names than most are allocated.
type ModelName = SmallVec<[u8; 64]>;

/// The sums over the whole documents of a body.
#[derive(Debug, Clone, Copy, Default)]
struct MeterTotals {
    usage: SaidUsage,
    is_final: bool,
    /// A document was no JSON: a stream of plain text, of which the usage could be the words of a client.
    is_plain: bool,
    /// Bytes of documents without a known text.
    unread_bytes: u64,
    text_bytes: u64,
    text_bytes_after_usage: u64,
}

/// The readings of the current document so far.
#[derive(Debug)]
struct MeteredDocument {
    /// Numbers by path.
    numbers: [u128; PATHS_MAX],
    said: PathSet,
    bytes: u64,
    /// Bytes of its texts, and those of the first two paths, which are names of one text.
    text_bytes: u64,
    alike_bytes: [u64; 2],
    model: ModelName,
    /// The first bytes but white space, one more than those of the mark at the end of a stream.
    beginning: SmallVec<[u8; END_MARK.len() + 1]>,
}

struct DocumentVisitor<'a> {
    plan: &'a MeterPlan,
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
            model: ModelName::new(),
        };
        ResponseMeter { plan, state: Box::new(state) }
    }

    /// Reads the next piece of the body.
    pub fn scan(&mut self, bytes: &[u8]) {
        let MeterState { framing, scanner, document, totals, numbers, model } = &mut *self.state;
        if matches!(framing, BodyFraming::Opaque) {
            document.bytes = document.bytes.saturating_add(bytes.len() as u64);
            return;
        }
        let is_stream = !matches!(framing, BodyFraming::Document);
        let (plan, paths) = (&*self.plan, self.plan.paths(is_stream));
        framing.scan(bytes, |piece| match piece {
            FramePiece::Data(data) => {
                document.bytes = document.bytes.saturating_add(data.len() as u64);
                document.keep_beginning(data);
                scanner.scan(paths, data, &mut DocumentVisitor { plan, document });
            }
            FramePiece::End => {
                if scanner.is_whole() {
                    totals.add_document(plan, document);
                    for (at, number) in numbers.iter_mut().enumerate().take(plan.count_pointers()) {
                        *number = document.number(plan.first_pointer() + at).or(*number);
                    }
                    if !document.model.is_empty() {
                        std::mem::swap(model, &mut document.model);
                    }
                } else {
                    totals.count_unread(document);
                }
                totals.is_plain |= !scanner.is_whole() && !matches!(&document.beginning[..], b"" | END_MARK);
                scanner.restart();
                document.restart();
            }
        });
    }

    /// The reading of the body. A last document that is whole counts, also where the end of its event or line is
    /// missing.
    pub fn read(&self) -> MeterReading {
        let MeterState { framing, scanner, document, totals, .. } = &*self.state;
        let (mut totals, is_whole) = (*totals, scanner.is_whole());
        if is_whole {
            totals.add_document(&self.plan, document);
        } else if scanner.is_invalid() {
            totals.count_unread(document);
        } else {
            totals.count_text(document);
        }
        let is_opaque = self.is_opaque();
        if is_opaque {
            let MeterTotals { text_bytes, unread_bytes, .. } = totals;
            totals = MeterTotals::default();
            (totals.text_bytes, totals.text_bytes_after_usage) = (text_bytes, text_bytes);
            totals.unread_bytes = unread_bytes;
        }
        let (usage, is_document) = (totals.usage.usage(), matches!(framing, BodyFraming::Document));
        // The answer to a question for embeddings has no output.
        let is_clear = totals.text_bytes > 0 || usage.output.is_some() || is_document && usage.is_said();
        MeterReading {
            usage,
            is_final: totals.is_final || is_document && is_whole,
            text_bytes: totals.text_bytes,
            text_bytes_after_usage: totals.text_bytes_after_usage,
            unread_bytes: if is_clear && !is_opaque { 0 } else { totals.unread_bytes },
            is_document,
            is_unclear: !is_clear || is_document && !is_whole,
        }
    }

    /// True if nothing in the body is believed but its texts.
    fn is_opaque(&self) -> bool {
        let MeterState { framing, scanner, document, totals, .. } = &*self.state;
        match framing {
            BodyFraming::Opaque => true,
            BodyFraming::Document => false,
            _ => totals.is_plain || scanner.is_invalid() && !END_MARK.starts_with(&document.beginning),
        }
    }

    /// The model that the body names last, where its usage is believed.
    pub fn read_model(&self) -> Option<&str> {
        let MeterState { scanner, document, model, .. } = &*self.state;
        let is_last = scanner.is_whole() && !document.model.is_empty();
        let name = if is_last { &document.model } else { model };
        str::from_utf8(name).ok().filter(|name| !name.is_empty() && !self.is_opaque())
    }

    /// The number at a pointer of the plan, in millionths, rounded up: that of the last document that has one.
    pub fn read_number(&self, pointer: usize) -> Option<u128> {
        let MeterState { scanner, document, numbers, .. } = &*self.state;
        let said = *numbers.get(pointer)?;
        let last = (scanner.is_whole() && pointer < self.plan.count_pointers())
            .then(|| document.number(self.plan.first_pointer() + pointer));
        last.flatten().or(said).filter(|_| !self.is_opaque())
    }
}

// === impl MeterTotals ===

impl MeterTotals {
    fn count_unread(&mut self, document: &MeteredDocument) {
        self.unread_bytes = self.unread_bytes.saturating_add(document.bytes);
    }

    fn count_text(&mut self, document: &MeteredDocument) -> u64 {
        let bytes = document.text_bytes();
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        self.text_bytes_after_usage = self.text_bytes_after_usage.saturating_add(bytes);
        if bytes == 0 {
            self.count_unread(document);
        }
        bytes
    }

    fn add_document(&mut self, plan: &MeterPlan, document: &MeteredDocument) {
        let (text_bytes, mut output) = (self.count_text(document), None);
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
        MeteredDocument {
            numbers: [0; PATHS_MAX],
            said: PathSet::default(),
            bytes: 0,
            text_bytes: 0,
            alike_bytes: [0; 2],
            model: ModelName::new(),
            beginning: SmallVec::new(),
        }
    }
}

impl MeteredDocument {
    fn restart(&mut self) {
        self.said = PathSet::default();
        (self.bytes, self.text_bytes, self.alike_bytes) = (0, 0, [0; 2]);
        self.model.clear();
        self.beginning.clear();
    }

    fn keep_beginning(&mut self, data: &[u8]) {
        let room = self.beginning.inline_size() - self.beginning.len();
        self.beginning.extend(data.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).take(room));
    }

    fn number(&self, path: usize) -> Option<u128> {
        self.said.contains(path).then(|| self.numbers[path])
    }

    fn text_bytes(&self) -> u64 {
        self.text_bytes - self.alike_bytes[0].min(self.alike_bytes[1])
    }
}

// === impl DocumentVisitor ===

impl JsonVisitor for DocumentVisitor<'_> {
    fn begin_member(&mut self, paths: PathSet, _: usize) {
        self.document.said.remove(paths);
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
            JsonValue::Text(name) if paths.iter().any(|path| self.plan.is_model(path)) => {
                self.document.model = SmallVec::from_slice(name.as_bytes());
                None
            }
            _ => None,
        };
        let Some(millionths) = millionths else { return };
        self.document.said.insert(paths);
        paths.iter().for_each(|path| self.document.numbers[path] = millionths);
    }

    fn count_text(&mut self, paths: PathSet, bytes: usize) {
        for path in paths.iter() {
            self.document.text_bytes += bytes as u64;
            let alike = path.checked_sub(self.plan.first_text());
            if let Some(own) = alike.and_then(|at| self.document.alike_bytes.get_mut(at)) {
                *own += bytes as u64;
            }
        }
    }
}
