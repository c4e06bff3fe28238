//! Leases: a gateway takes units of a shared limit in advance, and then admits requests without asking the store.
//!
//! The store counts the units in the hands of gateways as if they were still in the bucket: refill stops when both
//! together fill it. A lease has an end, which a gateway counts from the moment of its question and the store from its
//! answer, so a gateway never spends what the store has given to others. Of a limit that is used up, gateways hold
//! parts of its rate instead of units. However many gateways there are, and whatever happens to calls and answers, what
//! is charged in any span Δ is at most burst + rate·Δ. Units of windows count in the window in which they were taken,
//! and a lease ends with it: what is charged in a window, and in those before that count, is at most the limit.
//!
//! A [`LeaseNode`] is what one process holds of one key. It is a step like those of the algorithms: state, time and
//! cost in, outcome and state out; its calls and answers are values that others carry. The other half of the protocol
//! is `script/lease.lua`, which runs in the store.

mod encoding;
mod home;
mod leases;
mod node;
mod terms;

pub(crate) use home::{HomeCall, HomeReport, HomeTerms};
pub use leases::LeaseOutcome;
pub(crate) use leases::{LeaseCallGuard, LeaseName, LeaseRequest, LimitLeases};
pub use node::LeaseLeft;
pub(crate) use node::{LeaseAnswer, LeaseCall, LeaseNode, LeaseSpend, PendingRun};
pub(crate) use terms::LeaseTerms;
#[cfg(test)]
pub(crate) use terms::LeaseWindows;

#[cfg(test)]
mod tests;
