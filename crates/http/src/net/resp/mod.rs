//! RESP, the protocol of Redis (redis.io/docs/latest/develop/reference/protocol-spec): commands of clients, and replies
//! in its versions 2 and 3.

mod reply;
mod request;

pub use reply::{ProtocolVersion, ReplyWriter};
pub use request::{CommandReader, ProtocolFault, REQUEST_MAX, RequestStep};

#[cfg(test)]
mod tests;
