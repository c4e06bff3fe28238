//! The harness of the black-box tests: a running gateway, a recording upstream, a raw-socket client.
//!
//! Everything is std threads and blocking sockets, on loopback and on ports the kernel picks. A test that
//! needs a moment to have come waits for the event that says so, always with a deadline.

pub mod client;
pub mod gateway;
pub mod http;
pub mod nginx;
pub mod timing;
pub mod upstream;
pub mod volley;
pub mod wire;

use std::time::Duration;

pub use client::{Ask, Client, get, post};
pub use gateway::{Finished, Gateway, Run, forwarding};
pub use http::{Headers, Response};
pub use timing::{Noise, eventually, ms};
pub use upstream::{Gate, Refusing, Reply, Seen, Upstream};
pub use volley::{Shot, statuses, volley, volley_at};
pub use wire::End;

/// How long anything in a test may take before the test is called broken.
pub const PATIENCE: Duration = Duration::from_secs(10);
