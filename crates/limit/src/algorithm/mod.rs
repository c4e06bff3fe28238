//! The algorithms, one file or folder each, and the parts that several of them use.

pub(crate) mod adaptive;
pub mod burst_need;
pub mod concurrency;
pub(crate) mod fixed_window;
pub(crate) mod gradient;
pub(crate) mod leaky_bucket;
pub(crate) mod meter;
pub(crate) mod open_charges;
pub mod queue;
pub(crate) mod rate;
pub(crate) mod schedule;
pub(crate) mod settle;
pub(crate) mod slab;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;
pub(crate) mod warm_up;
pub(crate) mod window_quota;
