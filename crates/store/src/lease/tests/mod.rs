//! The protocol without sockets: nodes beside a model of the store's step, against one bucket.

mod excess;
mod interleavings;
mod oracle;
mod script_agrees;
mod simulation;
mod store_model;
