//! A request from its head to its last byte: judged, queued, then rejected or forwarded.
//!
//! [`judge`] is the outer tower service of a connection and [`forward`] the inner one: `judge` decides, waits in queues
//! and rejects; `forward` takes only what was admitted. The [`request_state`] travels with the request, at last inside
//! the response body; dropping it releases every slot, counts the request and writes its access-log line.

pub mod forward;
pub mod gateway;
pub mod judge;
pub mod reject;
pub mod request_state;
pub mod worker;
