//! Admission: the limits of a request as one transaction and the settlement of the units of its response, the bans of
//! clients that were rejected too often, and the bans of operators.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

pub mod ban;
pub mod ban_target;
pub mod chain;
pub mod leases;
pub mod operator_bans;
pub mod settlement;
