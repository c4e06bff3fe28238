//! One server of an upstream: its address, and what all workers together have open to it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config;
use crate::deadline;

/// A server behind the gateway.
pub struct Server {
    /// Its place among all servers of the configuration.
    pub index: usize,
    /// Its place in its upstream.
    pub place: usize,
    /// `host:port`, as it stands in logs and metrics.
    pub name: Arc<str>,
    /// The Host header of `host_header: upstream`.
    pub authority: HeaderValue,
    pub weight: u32,
    pub backup: bool,
    pub connect_timeout: Duration,
    /// Ticks an unused connection is kept.
    pub idle_span: u64,
    /// Idle connections kept per worker.
    pub keepalive: usize,
    max_connections: u32,
    host: Host,
    port: u16,
    in_flight: AtomicU32,
    connections: AtomicU32,
}

enum Host {
    Address(IpAddr),
    Name { name: String, refresh: Duration, resolved: Mutex<Resolved> },
}

#[derive(Default)]
struct Resolved {
    addresses: Vec<SocketAddr>,
    at: Option<Instant>,
    turn: usize,
}

impl Server {
    pub fn new(
        index: usize,
        place: usize,
        server: &config::UpstreamServer,
        upstream: &config::Upstream,
    ) -> Server {
        let host = match server.host.parse() {
            Ok(address) => Host::Address(address),
            Err(_) => Host::Name {
                name: server.host.clone(),
                refresh: upstream.dns_refresh,
                resolved: Mutex::default(),
            },
        };
        let name = match host {
            Host::Address(IpAddr::V6(_)) => format!("[{}]:{}", server.host, server.port),
            _ => format!("{}:{}", server.host, server.port),
        };
        Server {
            index,
            place,
            authority: HeaderValue::from_str(&name).unwrap_or(HeaderValue::from_static("upstream")),
            name: name.into(),
            weight: server.weight.max(1),
            backup: server.backup,
            connect_timeout: upstream.timeouts.connect,
            idle_span: deadline::ticks(upstream.timeouts.idle),
            keepalive: upstream.keepalive,
            max_connections: upstream.max_connections.unwrap_or(u32::MAX),
            host,
            port: server.port,
            in_flight: AtomicU32::new(0),
            connections: AtomicU32::new(0),
        }
    }

    /// The addresses to try; a name is resolved again when its last answer is older than `dns_refresh`.
    ///
    /// # Errors
    /// The resolver's, when there is no older answer to fall back on.
    pub(super) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let (name, refresh, resolved) = match &self.host {
            Host::Address(ip) => return Ok(vec![SocketAddr::new(*ip, self.port)]),
            Host::Name { name, refresh, resolved } => (name, *refresh, resolved),
        };
        if let Some(known) = resolved.lock().fresh(refresh) {
            return Ok(known);
        }
        match tokio::net::lookup_host((name.as_str(), self.port)).await {
            Ok(found) => {
                let mut resolved = resolved.lock();
                resolved.addresses = found.collect();
                resolved.at = Some(Instant::now());
                Ok(resolved.rotated())
            }
            Err(error) => {
                let mut resolved = resolved.lock();
                if resolved.addresses.is_empty() { Err(error) } else { Ok(resolved.rotated()) }
            }
        }
    }

    /// Requests being answered by this server, over all workers.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn has_room(&self) -> bool {
        self.max_connections == u32::MAX || self.in_flight() < self.max_connections
    }

    /// Counts a request in; `None` when `max_connections` are busy.
    pub(super) fn enter(self: &Arc<Self>) -> Option<InFlight> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let entered = InFlight(self.clone());
        (before < self.max_connections).then_some(entered)
    }

    /// Opens a place for a connection; `None` when `max_connections` are open.
    pub(super) fn open(self: &Arc<Self>) -> Option<Open> {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        let opened = Open(self.clone());
        (before < self.max_connections).then_some(opened)
    }
}

impl Resolved {
    fn fresh(&mut self, refresh: Duration) -> Option<Vec<SocketAddr>> {
        let at = self.at?;
        (at.elapsed() < refresh && !self.addresses.is_empty()).then(|| self.rotated())
    }

    /// Each caller starts with another address, so that all of a name's addresses get connections.
    fn rotated(&mut self) -> Vec<SocketAddr> {
        let mut addresses = self.addresses.clone();
        if !addresses.is_empty() {
            self.turn = (self.turn + 1) % addresses.len();
            addresses.rotate_left(self.turn);
        }
        addresses
    }
}

/// One request in flight at a server; gone when dropped.
pub(super) struct InFlight(Arc<Server>);

impl InFlight {
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One open connection to a server; gone when dropped.
pub(super) struct Open(Arc<Server>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
