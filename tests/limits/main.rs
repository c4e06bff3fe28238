//! The limits and the chain, driven by virtual time: contract vectors, properties, queues, threads.

mod any;
mod chains;
mod dry_run;
mod fair;
mod flood;
mod model;
mod models_windows;
mod peeks;
mod phases;
mod promises;
mod properties;
mod queues;
mod reload;
mod reload_queues;
mod resets;
mod slot_chains;
mod slot_model;
mod slot_queues;
mod slot_reloads;
mod support;
mod threads;
mod vectors;
mod views;
mod warm;
mod windows;
mod windows_vectors;
