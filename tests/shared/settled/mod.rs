//! Charges that the response settles, in the store.

mod charges;
mod cuts;
mod handovers;
