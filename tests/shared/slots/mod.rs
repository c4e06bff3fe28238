//! Concurrency slots that gateways share, and the requests that wait for them.

mod chains;
mod queue_outages;
mod queues;
mod turns;
