//! The limits and the chain, driven by virtual time: contract vectors, properties, queues, threads.

mod dry_run;
mod model;
mod peeks;
mod properties;
mod queues;
mod support;
mod threads;
mod vectors;
