//! Header fields that the gateway removes, adds or refuses.

pub mod forwarded;
pub mod hop_by_hop;
pub mod summary;
pub mod underscores;
