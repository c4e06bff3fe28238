//! The protocol without sockets: nodes beside a model of the store's step, against one bucket.

mod excess;
mod interleavings;
mod oracle;
mod region_orders;
mod region_traces;
mod regions;
mod script_agrees;
mod simulation;
mod store_model;
