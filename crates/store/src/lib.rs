//! Counters that gateways share through Redis or Valkey, here called the store.
//!
//! One call of one script judges all shared limits of a request that lie in one [`KeyGroup`], by the store's own
//! clock and all or nothing. The script decides and writes; it returns the raw state of each entry, from which the
//! gateway computes the remainder and the retry time in integers. A [`SharedKey`] is a hash of the same text that the
//! local table hashes, without a secret, so that all gateways agree; one packed string holds an entry ([`RateRule`])
//! for each rate that counts by it. Names of keys hold no text of a client, and no message holds the user or password
//! of the store.
//!
//! [`Store`] belongs to the process: the servers, whether they answer, how many gateways live. [`Link`] belongs to a
//! worker: its connections. A call has one deadline, and is sent again only if the server said that it did not run, so
//! nothing is charged twice; a charge with a late reply is refunded (`session/late_replies`). A [`Session`] connects a
//! worker to the store: it asks about the limits of requests; its flusher refunds unused charges ([`StoreUnits`]),
//! settles those that depend on responses ([`StoreSettlement`]), and reports the slots that the worker holds, in
//! absolute numbers.
//!
//! A [`SharedLimit`] is the process's view of one limit: the rejections that still hold, the requests that wait for
//! departures handed out here or for slots ([`SharedSlotQueue`]), the slots of all workers, and the local share that
//! judges while no answer comes, or else as its `on_failure` says. A share counts until its windows end and starts
//! from the last answers. Units that it admitted are [`Debts`] to the store: the flusher charges them under sequence
//! numbers, so that a charge may be sent again; until then each question counts them in. A heartbeat tells the store
//! which limits this gateway counts. Its reply fills the [`Fleet`] of each limit: how many gateways count it, and
//! whether their numbers, keys or algorithms differ. The configuration rejects limits with numbers that exceed the
//! script's arithmetic.
//!
//! A rate that is leased ([`SharedLimit::is_leased`]) is counted by a script of its own, `lease.lua`; what the process
//! holds of it is in the room `lease`, and `session/leasing` makes the calls. A leased queue counts as an exact one;
//! the departures that a gateway takes in advance are those of `departures`, and `session/departures` makes the calls.
//!
//! Besides counters, gateways share [`operator_entries`], of which a reset of a key ([`ResetEntry`]) is one, reports
//! about themselves ([`node_reports`]), the pauses that upstreams ask for ([`SharedPauses`]), and a secret
//! ([`share_secret`]). All of these have one tag, and so one hash slot in a Cluster.

#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]
#![warn(clippy::unwrap_used)]

/// The atomic types of the files that `tests/interleavings` compiles with those of loom.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
mod background_take;
mod debts;
mod departures;
mod fleet;
mod handover;
mod key_reset;
mod last_answer;
mod lease;
mod link;
mod local_share;
pub mod node_reports;
pub mod operator_entries;
mod process_slots;
pub mod script;
mod secret;
mod session;
mod settlements;
mod shared_limit;
mod slot_polls;
mod slot_queue;
mod slots;
mod upstream_pauses;

pub use background_take::{BackgroundTake, TakeOutcome, WantedUnits};
pub use debts::Debts;
pub use departures::{Departure, DepartureTicket};
pub use fleet::Fleet;
pub use handover::StoreHandover;
pub use key_reset::{KnownResets, ResetEntry, StoreReset};
pub use lease::{LeaseLeft, LeaseOutcome};
pub use link::{
    BreakerState, KeyGroup, Link, NamedWindow, OutageReport, Store, StoreFault, StoreServerState, WindowScan,
};
pub use process_slots::SlotKey;
pub use script::LuaScript;
pub use script::call::{CallItem, GatewayTurn, PackedCall, RateAnswer, ScriptOp, ScriptReply, SlotCount};
pub use script::rule::RateRule;
pub use script::settle::{SettleItem, SettledKey};
pub use secret::share_secret;
pub use session::{Session, StoreAnswer, StoreOutbox, StoreQuestion};
pub use settlements::{SettlementQueue, StoreSettlement, StoreUnits};
pub use shared_limit::{LimitCounts, SharedLimit};
pub use slot_queue::{AskTurn, SharedSlotQueue, SlotNewcomer, SlotTerms, SlotTicket};
pub use upstream_pauses::{SharedPause, SharedPauses, share_pauses};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip128::SipHasher13;

/// The name of a key in the store: a 128-bit hash that all gateways agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedKey(pub [u8; 16]);

// === impl SharedKey ===

impl SharedKey {
    /// The key that new keys of a network share, by the `prefix` of a
    /// [`CounterKey`](sluicegate_limit::table::CounterKey).
    pub fn of_network(prefix: u64) -> SharedKey {
        SharedKey(SipHasher13::new().hash(&prefix.to_le_bytes()).as_bytes())
    }

    /// The key in 22 letters, the tag that all its names in the store have in common.
    fn tag(&self) -> [u8; 22] {
        let mut tag = [0; 22];
        // Cannot fail: 16 bytes are 22 letters.
        URL_SAFE_NO_PAD.encode_slice(self.0, &mut tag).expect("16 bytes are 22 letters");
        tag
    }
}

#[cfg(test)]
mod tests;
