//! The harness of the black-box tests: a running gateway, a recording upstream, a raw-socket client.
//!
//! Everything uses std threads and blocking sockets, on loopback and on ports that the kernel picks. A test that must
//! wait for a moment waits for the event that marks it, always with a deadline.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]
#![allow(clippy::new_without_default, reason = "nothing here has a usual value")]

pub mod caddy;
pub mod client;
pub mod client2;
pub mod collector;
pub mod dice;
pub mod fleet;
pub mod gateway;
pub mod h2_raw;
pub mod haproxy;
pub mod http;
pub mod json_schema;
pub mod nginx;
pub mod pki;
pub mod ports;
pub mod proxy;
pub mod redis;
pub mod redis_groups;
pub mod run;
pub mod timing;
pub mod tls;
pub mod unix;
pub mod upstream;
pub mod upstream2;
pub mod volley;
pub mod wire;

use std::time::Duration;

pub use client::{Ask, Client, get, post};
pub use client2::Client2;
pub use collector::{Collector, SpanSeen};
pub use dice::Dice;
pub use fleet::{Fired, Fleet, Until};
pub use gateway::{Gateway, Successor, forwarding, with_timeouts};
pub use h2_raw::{H2, Outcome};
pub use haproxy::Haproxy;
pub use http::{Headers, Response};
pub use pki::Certified;
pub use ports::free_addr;
pub use proxy::Proxy;
pub use redis::{Redis, has_slots};
pub use redis_groups::{Cluster, Sentinel};
pub use run::{Finished, Run, Scratch, program};
pub use timing::{Noise, SWEEP, assert_between, at_once, eventually, ms, undisturbed};
pub use tls::Authority;
pub use upstream::{Gate, Refusing, Reply, Seen, Upstream};
pub use upstream2::{Act, Seen2, Start, Upstream2};
pub use volley::{Shot, statuses, volley, volley_at};
pub use wire::End;

/// The timeout of every step of a test.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Descriptors for the thousand sockets that some tests hold at once.
pub fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.map(|most| most.min(8192)).or(Some(8192));
    setrlimit(Resource::Nofile, limit).expect("the limit of descriptors can be raised");
}
