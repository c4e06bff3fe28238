//! Counters that many gateways share on Redis or Valkey.
//!
//! One call judges every shared limit of a request: a script there reads the packed state of each key, decides by the
//! store's own clock, and writes only if all accept. What it hands back is the state itself; the numbers that
//! answers tell are worked out here.

mod debts;
mod departures;
mod fleet;
mod handover;
mod last_answer;
mod link;
mod local_share;
pub mod script;
mod session;
mod shared_limit;
mod slots;

pub use debts::Debts;
pub use departures::{Departure, DepartureTicket};
pub use fleet::Fleet;
pub use handover::StoreHandover;
pub use link::{KeyGroup, Link, Store, StoreFault, StoreReport};
pub use script::LuaScript;
pub use script::call::{CallItem, PackedCall, RateAnswer, ScriptOp, ScriptReply, SlotCount};
pub use script::rule::RateRule;
pub use session::{Session, StoreAnswer, StoreOutbox, StoreQuestion, StoreRefund};
pub use shared_limit::SharedLimit;
pub use slots::SlotKey;

/// What a key is called in the store: 128 bits of a hash that all gateways agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedKey(pub [u8; 16]);

#[cfg(test)]
mod tests;
