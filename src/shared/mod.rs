//! Counters that many gateways share on Redis or Valkey.
//!
//! One call judges every shared limit of a request: a script there reads the packed state of each key, decides by the
//! store's own clock, and writes only if all accept. What it hands back is the state itself; the numbers that
//! answers tell are worked out here.

mod debts;
mod departures;
mod fleet;
mod handover;
mod link;
mod local_share;
mod remembered;
pub mod script;
mod session;
mod shared_limit;
mod slots;

pub use debts::Debts;
pub use departures::{Departure, Ticket};
pub use fleet::Fleet;
pub use handover::KnownStore;
pub use link::{Failure, Group, Link, Report, Store};
pub use script::Script;
pub use script::call::{Answer, Held, Item, Op, Packed, Reply};
pub use script::rule::Rule;
pub use session::{Desk, Give, Question, Said, Session};
pub use shared_limit::SharedLimit;
pub use slots::Place;

/// What a key is called in the store: 128 bits of a hash that all gateways agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedKey(pub [u8; 16]);

#[cfg(test)]
mod tests;
