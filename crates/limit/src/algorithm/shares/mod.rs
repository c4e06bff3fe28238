//! Limits with guaranteed shares: counters of which classes of callers have parts for themselves.

mod bucket_terms;
mod leaky_bucket;
mod token_bucket;
mod window_terms;
mod windows;

pub use bucket_terms::{BucketTerms, ClassTerms, ClassTokens, Tokens};
pub(crate) use leaky_bucket::ShareQueueParams;
pub(crate) use token_bucket::ShareBucketParams;
pub use window_terms::{UsedUnits, WindowTerms};
pub(crate) use windows::ShareWindowParams;

#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod tests;
