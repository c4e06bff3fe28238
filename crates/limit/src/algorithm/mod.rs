//! The algorithms, one file or folder each, and the parts that several of them use.
//!
//! A new algorithm needs:
//!
//! - its entry, the counter of one key: `TableEntry`, and `PersistentEntry` for snapshots;
//! - its parameters: `TableParams`, `MeterParams` and `RateParams`, and `SettleParams` in a file `settle` if responses
//!   may settle its charges;
//! - in `counters`: a variant of `Meters`, an arm in `Meters::new`, and a place in each list of the macros there;
//! - in `reload`: an arm in `is_continued_by`;
//! - to be shared, in the crate `store`: a variant of `RuleShape` with its arms in `script/rule`, the state in
//!   `script/reply`, the item in `script/call`, and the same in `take.lua`.

pub(crate) mod adaptive;
pub mod burst_need;
pub(crate) mod calendar_window;
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
pub mod shares;
pub(crate) mod slab;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;
pub(crate) mod warm_up;
pub(crate) mod window_quota;
