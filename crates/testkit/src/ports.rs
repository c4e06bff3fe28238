//! Addresses for servers that cannot take port 0, or that a file names before they run.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the kernel's ephemeral ports, which other tests' connections and listeners take at any moment; the bus ports
/// of Redis Cluster, 10,000 higher, are below them, too.
const PORTS: std::ops::Range<u32> = 10_000..21_000;

/// The next free address of this process's own sequence; test binaries start theirs far apart.
#[track_caller]
pub fn free_addr() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    let first = std::process::id().wrapping_mul(2_654_435_761) % count;
    (0..count)
        .map(|_| (first + NEXT.fetch_add(1, Ordering::Relaxed)) % count + PORTS.start)
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port as u16)))
        .find(|addr| TcpListener::bind(addr).is_ok())
        .expect("a free port")
}
