//! The values that the meters of a location read.

use super::llm_fields::{DOCUMENT_TEXTS, STREAM_TEXTS, USAGE_NUMBERS, UsageField};
use sluicegate_base::json::JsonPaths;
use sluicegate_base::json_pointer::JsonPointer;

/// The most numbers that a meter reads.
pub const METER_POINTERS_MAX: usize = 24;

/// The values to read from the responses of a location, for all of its limits.
#[derive(Debug, Clone)]
pub struct MeterPlan {
    /// The usage fields of the first paths; empty if the usage of language models is not read.
    usage: Vec<UsageField>,
    pointers: Vec<JsonPointer>,
    /// Paths of a body that is one document, and of the documents of a stream: usage, then numbers, then texts.
    document_paths: JsonPaths,
    stream_paths: JsonPaths,
}

// === impl MeterPlan ===

impl MeterPlan {
    /// A plan for the usage of language models and the numbers at these pointers; equal ones count once, and those
    /// beyond [`METER_POINTERS_MAX`] are left out. `None`: there are too many paths.
    pub fn new(reads_llm: bool, pointers: &[JsonPointer]) -> Option<MeterPlan> {
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
            for way in texts.split_whitespace().filter(|_| reads_llm) {
                paths.add_text(way)?;
            }
            Some(paths)
        };
        let (document_paths, stream_paths) = (compile(DOCUMENT_TEXTS)?, compile(STREAM_TEXTS)?);
        let usage = ways().map(|(_, field)| field).collect();
        Some(MeterPlan { usage, pointers: own, document_paths, stream_paths })
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

    /// The path of the first text.
    pub(super) fn first_text(&self) -> usize {
        self.first_pointer() + self.pointers.len()
    }
}
