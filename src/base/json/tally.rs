//! Bytes of the texts of a document while they come.

use super::paths::{JsonPaths, PATHS_MAX, PathSet, WILDCARDS_MAX};

/// Bytes of the texts at each path of one document. A member that comes again takes back what was counted in the first.
#[derive(Debug, Clone)]
pub struct JsonTextTally {
    /// For each path, by the wildcards on the way to the innermost element that is open: what was counted inside this
    /// element, and in front of the next one on the way.
    bytes: [[u64; WILDCARDS_MAX + 1]; PATHS_MAX],
    /// The paths that have anything counted.
    counted: PathSet,
}

// === impl JsonTextTally ===

impl Default for JsonTextTally {
    fn default() -> Self {
        JsonTextTally { bytes: [[0; WILDCARDS_MAX + 1]; PATHS_MAX], counted: PathSet::default() }
    }
}

impl JsonTextTally {
    /// Begins another document.
    pub fn restart(&mut self) {
        self.counted = PathSet::default();
    }

    /// For [`JsonVisitor::begin_member`](super::JsonVisitor::begin_member).
    pub fn begin_member(&mut self, paths: &JsonPaths, begun: PathSet, segments: usize) {
        for path in PathSet(begun.0 & self.counted.0).iter() {
            self.bytes[path][paths.wildcards_before(path, segments)..].fill(0);
        }
    }

    /// For [`JsonVisitor::begin_element`](super::JsonVisitor::begin_element): what the element before it had belongs to
    /// the array now.
    pub fn begin_element(&mut self, paths: &JsonPaths, begun: PathSet, segments: usize) {
        for path in PathSet(begun.0 & self.counted.0).iter() {
            let inner = paths.wildcards_before(path, segments);
            let bytes = &mut self.bytes[path];
            let closed: u64 = bytes[inner..].iter().sum();
            bytes[inner - 1] += closed;
            bytes[inner..].fill(0);
        }
    }

    /// For [`JsonVisitor::count_text`](super::JsonVisitor::count_text).
    pub fn count_text(&mut self, counted: PathSet, bytes: usize) {
        for path in PathSet(counted.0 & !self.counted.0).iter() {
            self.bytes[path].fill(0);
        }
        self.counted.insert(counted);
        for path in counted.iter() {
            // The innermost place: all wildcards of the path are behind.
            self.bytes[path][WILDCARDS_MAX] += bytes as u64;
        }
    }

    /// Bytes of the texts at this path.
    pub fn bytes(&self, path: usize) -> u64 {
        if self.counted.contains(path) { self.bytes[path].iter().sum() } else { 0 }
    }

    /// The paths that have anything counted.
    pub fn counted(&self) -> PathSet {
        self.counted
    }
}
