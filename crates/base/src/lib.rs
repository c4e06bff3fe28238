//! The clock, the time of day, calendars, sets of networks, files, certificates, escaping, incremental JSON, its
//! pointers and its forms, labels of enums, random numbers, hashes in place of values, and secrets.
//!
//! Time is passed on. A request reads the clock when its head is there, at its turns in a queue, and for its log line;
//! every function that judges takes the time as an argument. The clock is tokio's, so a paused runtime drives every
//! limit in tests. A negative span counts as zero. Only [`wall_clock`] knows the time of day; it corrects the clock
//! every ten seconds, for windows aligned to the time of day and for nothing else.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

pub mod address;
pub mod calendar;
pub mod certificate;
pub mod clock;
pub mod escape;
pub mod file;
pub mod glob;
pub mod ip_set;
pub mod json;
pub mod json_pointer;
pub mod json_shape;
pub mod labelled;
pub mod random;
pub mod secrets;
pub mod system_roots;
pub mod time_text;
pub mod value_hash;
pub mod wall_clock;
