//! Admission: the limits of a request as one transaction, and the bans of clients that were rejected too often.

pub mod ban;
pub mod chain;
