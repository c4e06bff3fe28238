//! Each algorithm over the wire, and chains of them.

mod chain;
mod concurrency;
mod fair;
mod queue;
mod rates;
mod slots;
mod windows;
