//! The values that the meters of a location read.

use super::llm_fields::{DOCUMENT_TEXTS, MODELS, STREAM_TEXTS, USAGE_NUMBERS, UsageField};
use sluicegate_base::json::JsonPaths;
use sluicegate_base::json_pointer::JsonPointer;

/// The most numbers that a meter reads.
pub const METER_POINTERS_MAX: usize = 24;

/// The parts that are read from the responses of language models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LlmParts {
    /// Nothing is read.
    Nothing,
    /// The usage, and the texts that tell it where it is missing.
    Usage,
    /// These, and the name of the model.
    UsageAndModel,
}

/// The values to read from the responses of a location, for all of its limits.
#[derive(Debug, Clone)]
pub struct MeterPlan {
    /// The usage fields of the first paths; empty if the usage of language models is not read.
    usage: Vec<UsageField>,
    pointers: Vec<JsonPointer>,
    /// Paths to the name of the model.
    models: usize,
    /// Paths of a body that is one document, and of the documents of a stream: usage, then numbers, models and texts.
    document_paths: JsonPaths,
    stream_paths: JsonPaths,
}

// === impl MeterPlan ===

impl MeterPlan {
    /// A plan for these parts and for the numbers at these pointers; equal ones count once, and those
    /// beyond [`METER_POINTERS_MAX`] are left out. `None`: there are too many paths.
    pub fn new(llm: LlmParts, pointers: &[JsonPointer]) -> Option<MeterPlan> {
        let reads_llm = llm != LlmParts::Nothing;
        let models = || MODELS.split(' ').filter(|_| llm == LlmParts::UsageAndModel);
        let mut own: Vec<JsonPointer> = Vec::new();
        for pointer in pointers {
            if !own.contains(pointer) && own.len() < METER_POINTERS_MAX {
                own.push(pointer.clone());
            }
        }
        let ways = || {
            let numbers = USAGE_NUMBERS.iter().filter(|_| reads_llm);
            numbers.flat_map(|(places, names, field)| {
                let of_name =
                    move |name| places.split(' ').map(move |place| (format!("{place}{name}"), *field));
                names.split(' ').flat_map(of_name)
            })
        };
        let compile = |texts: &str| {
            let mut paths = JsonPaths::default();
            for (way, _) in ways() {
                paths.add_member(&way)?;
            }
            for pointer in &own {
                paths.add_pointer(pointer)?;
            }
            for way in models() {
                paths.add_member(way)?;
            }
            for way in texts.split_whitespace().filter(|_| reads_llm) {
                paths.add_text(way)?;
            }
            Some(paths)
        };
        let (document_paths, stream_paths) = (compile(DOCUMENT_TEXTS)?, compile(STREAM_TEXTS)?);
        let usage = ways().map(|(_, field)| field).collect();
        Some(MeterPlan { usage, pointers: own, models: models().count(), document_paths, stream_paths })
    }

    /// The number by which a meter knows a pointer.
    pub fn find_pointer(&self, pointer: &JsonPointer) -> Option<usize> {
        self.pointers.iter().position(|own| own == pointer)
    }

    /// The usage field of a path.
    pub(super) fn usage_field(&self, path: usize) -> Option<UsageField> {
        self.usage.get(path).copied()
    }

    pub(super) fn paths(&self, is_stream: bool) -> &JsonPaths {
        if is_stream { &self.stream_paths } else { &self.document_paths }
    }

    /// The path of the first pointer.
    pub(super) fn first_pointer(&self) -> usize {
        self.usage.len()
    }

    pub(super) fn count_pointers(&self) -> usize {
        self.pointers.len()
    }

    /// True if a path leads to the name of the model.
    pub(super) fn is_model(&self, path: usize) -> bool {
        (self.first_text() - self.models..self.first_text()).contains(&path)
    }

    /// The path of the first text.
    pub(super) fn first_text(&self) -> usize {
        self.first_pointer() + self.pointers.len() + self.models
    }
}
