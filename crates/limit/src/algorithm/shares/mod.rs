//! Limits with guaranteed shares: counters of which classes of callers have parts for themselves.

mod leaky_bucket;
mod token_bucket;
mod windows;

pub(crate) use leaky_bucket::ShareQueueParams;
pub(crate) use token_bucket::ShareBucketParams;
pub(crate) use windows::ShareWindowParams;

#[cfg(test)]
mod tests;
