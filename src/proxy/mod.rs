//! A request from its head to its last byte: judged, queued, then rejected or forwarded.
//!
//! [`service`] runs the phases of a request. [`judge`] decides, waits in queues and rejects; [`forward`] takes only
//! admitted requests. The [`request_state`] travels with the request, at last inside the response body; dropping it
//! releases every slot, counts the request and writes its access-log line.

mod ban_strike;
pub mod calls;
pub mod forward;
pub mod gateway;
pub mod header_edits;
pub mod heavy_keys;
pub mod in_flight;
pub mod inbound;
pub mod judge;
mod judged_chain;
pub mod limit_report;
pub mod pipeline;
pub mod reject;
pub mod rejection_response;
mod request_report;
pub mod request_state;
mod response_charges;
pub mod service;
pub mod worker;
