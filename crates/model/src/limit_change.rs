//! Changes of a whole limit that operators make while the gateway runs: a pause, and numbers in place of the file's.

use serde::{Deserialize, Serialize};

use sluicegate_base::clock::Now;

/// A change of the limits with a name; without numbers a pause, during which they judge and count as a dry run does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitChange {
    /// The name.
    pub limit: String,
    /// The end, in ns since 1970.
    pub until_unix_ns: u64,
    /// The operator.
    pub by: String,
    /// The operator's reason; may be empty.
    pub reason: String,
    /// The numbers that hold in place of those of the file.
    pub numbers: Option<WrittenNumbers>,
}

/// Numbers as an operator wrote them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WrittenNumbers {
    /// The fields, in JSON.
    pub fields: String,
    /// What the file said in these fields when they were set; empty = not known yet.
    pub file_said: String,
    /// The moment of that, in ns since 1970.
    pub at_unix_ns: u64,
}

// === impl LimitChange ===

impl LimitChange {
    /// Nanoseconds until the end.
    pub fn left_ns(&self) -> u64 {
        self.until_unix_ns.saturating_sub(Now::read_clock().to_unix_ns())
    }
}
