//! Proof before deploy: logs of the past against limits of the future.
//!
//! [`log`] reads access logs as requests in the order of their arrival, [`replay`] judges them by a configuration on a
//! held clock, [`recommend`] finds limits that would have spared nearly all keys, and [`page`] writes reports as one
//! self-contained page. Nothing is sent, and no gateway has to run.

pub mod log;
pub mod page;
pub mod recommend;
pub mod replay;
