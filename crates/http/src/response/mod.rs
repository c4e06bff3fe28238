//! The usage that a response reports, read from its body while it passes.
//!
//! A [`ResponseMeter`] scans the body of one response in the pieces in which it comes; it keeps none of them, and
//! allocates once, when it begins. `framing` finds the documents: one of JSON, one in each server-sent event or
//! message of AWS, or one a line. A document says its usage and its numbers when it is whole; one that is not valid
//! says nothing. A [`MeterPlan`] names the values to read, for all limits of a location.

mod framing;
mod llm_fields;
mod llm_usage;
mod meter;
mod plan;

pub use llm_usage::LlmUsage;
pub use meter::{MeterReading, ResponseMeter};
pub use plan::{LlmParts, METER_POINTERS_MAX, MeterPlan};

#[cfg(test)]
mod tests;
