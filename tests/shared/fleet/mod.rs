//! Fleets of gateways with one Redis behind them.

mod adversity;
pub(crate) mod exact;
mod failures;
mod groups;
mod harness;
mod keys;
mod seen;
mod slots;
