//! The scripts in Redis, at times that a test chooses.

mod calls;
mod clock;
mod give;
pub mod model;
pub mod settle;
mod shares;
mod slot_shares;
mod slots;
mod state;
pub mod support;
mod turns;
mod vectors;
