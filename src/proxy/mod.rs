//! A request from its head to its last byte: judged, queued, then rejected or forwarded.

pub mod forward;
pub mod gateway;
pub mod judge;
pub mod reject;
pub mod request_state;
pub mod worker;
