//! Simulations of limits before they are deployed. Nothing is sent, and no gateway has to run.
//!
//! [`scenario`] judges the requests of scenario files on a virtual clock. [`log`] reads access logs as requests in the
//! order of their arrival, [`replay`] judges them by a configuration on a held clock, [`recommend`] finds limits that
//! would have spared nearly all keys, and [`page`] writes reports as one self-contained page.

pub mod log;
pub mod page;
pub mod recommend;
pub mod replay;
pub mod scenario;
