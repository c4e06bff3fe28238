//! The steps of a quota.

use crate::value::scalars::Rate;

/// A part of a quota, and the consequence for requests from there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaStep {
    /// In millionths of the quota.
    pub at: u64,
    /// The consequence.
    pub then: StepAction,
}

/// The consequence of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepAction {
    /// The caller is told.
    Warn,
    /// Requests above it are admitted at this rate.
    Slow(Rate),
    /// Requests above it are rejected.
    Reject,
}

/// The most steps of a limit: a counter keeps a bit for each.
pub const STEPS_MAX: usize = 8;

// === impl QuotaStep ===

impl QuotaStep {
    /// 100%, as [`QuotaStep::at`] counts.
    pub const WHOLE: u64 = 1_000_000;

    /// The percentage, with as many decimals as it has.
    pub fn percent(&self) -> f64 {
        self.at as f64 / 10_000.0
    }
}

// === impl StepAction ===

impl StepAction {
    /// The words of the file, the gravest last.
    pub const WORDS: [&'static str; 3] = ["warn", "slow", "reject"];

    /// The word of the file.
    pub fn as_str(self) -> &'static str {
        match self {
            StepAction::Warn => "warn",
            StepAction::Slow(_) => "slow",
            StepAction::Reject => "reject",
        }
    }
}
