//! RESP, the protocol of Redis (redis.io/docs/latest/develop/reference/protocol-spec): commands of clients, and replies
//! in its versions 2 and 3.

mod fault;
mod inline;
mod reply;
mod request;

pub use fault::ProtocolFault;
pub use reply::{ProtocolVersion, ReplyWriter};
pub use request::{CommandReader, REQUEST_MAX, RequestStep};

#[cfg(test)]
mod tests;
