//! The clock, the time of day, sets of networks, and escaping.

pub mod clock;
pub mod escape;
pub mod ip_set;
pub mod wall_clock;
