//! One server of an upstream: its address, and what all workers together have open to it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::tls::Tls;
use crate::config::{self, Protocol};
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
    pub(super) tls: Option<Tls>,
    pub(super) speech: Speech,
    /// How long a connection of HTTP/2 with requests on it may be silent before its server is asked for a sign of life.
    pub(super) ping_interval: Duration,
    /// Ticks an unused connection is kept.
    pub idle_span: u64,
    /// Idle connections kept per worker.
    pub keepalive: usize,
    max_connections: u32,
    host: Host,
    port: u16,
    in_flight: AtomicU32,
}

/// Which HTTP a server's connections speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speech {
    Http1,
    Http2,
    /// Each connection's handshake tells.
    Negotiated,
}

impl Speech {
    fn of(protocol: Protocol, has_tls: bool) -> Speech {
        match (protocol, has_tls) {
            (Protocol::Http1, _) | (Protocol::Auto, false) => Speech::Http1,
            (Protocol::Http2, _) => Speech::Http2,
            (Protocol::Auto, true) => Speech::Negotiated,
        }
    }
}

enum Host {
    Address(IpAddr),
    Name(Box<Name>),
}

/// A name and what it stands for. One look-up at a time for all workers: a resolver that hangs must cost neither a
/// thread for each request, nor the requests that an older answer could serve.
struct Name {
    name: String,
    refresh: Duration,
    resolved: Mutex<Resolved>,
    looked_up: Notify,
}

#[derive(Default)]
struct Resolved {
    addresses: Vec<SocketAddr>,
    at: Option<Instant>,
    turn: usize,
    looking_up: bool,
}

/// A look-up under way; over when dropped.
struct LookUp(Arc<Server>);

impl Server {
    pub fn new(
        index: usize,
        place: usize,
        server: &config::UpstreamServer,
        upstream: &config::Upstream,
    ) -> Server {
        let host = match server.host.parse() {
            Ok(address) => Host::Address(address),
            Err(_) => Host::Name(Box::new(Name {
                name: server.host.clone(),
                refresh: upstream.dns_refresh,
                resolved: Mutex::default(),
                looked_up: Notify::new(),
            })),
        };
        let name = match host {
            Host::Address(IpAddr::V6(_)) => format!("[{}]:{}", server.host, server.port),
            _ => format!("{}:{}", server.host, server.port),
        };
        let tls = upstream.tls.as_ref().filter(|_| server.tls);
        Server {
            tls: tls.map(|tls| Tls::new(&server.host, tls, upstream.protocol)),
            speech: Speech::of(upstream.protocol, tls.is_some()),
            ping_interval: ping_interval(&upstream.timeouts),
            index,
            place,
            authority: authority(&name, tls.is_some()),
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
        }
    }

    /// The addresses to try. When a name's last answer is older than `dns_refresh`, it is resolved again behind the
    /// back of the requests, which take the older answer.
    ///
    /// # Errors
    /// When a name has no address, and never had one.
    pub(super) async fn addresses(self: &Arc<Self>) -> io::Result<Vec<SocketAddr>> {
        let host = match &self.host {
            Host::Address(ip) => return Ok(vec![SocketAddr::new(*ip, self.port)]),
            Host::Name(host) => host,
        };
        let looked_up = {
            let mut resolved = host.resolved.lock();
            let looked_up = host.looked_up.notified();
            if !resolved.is_fresh(host.refresh) && !std::mem::replace(&mut resolved.looking_up, true) {
                tokio::spawn(look_up(LookUp(self.clone())));
            }
            if !resolved.addresses.is_empty() {
                return Ok(resolved.rotated());
            }
            looked_up
        };
        looked_up.await;
        let found = host.resolved.lock().rotated();
        if found.is_empty() { Err(io::Error::new(io::ErrorKind::NotFound, "no address")) } else { Ok(found) }
    }

    /// Requests being answered by this server, over all workers.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn has_room(&self) -> bool {
        self.max_connections == u32::MAX || self.in_flight() < self.max_connections
    }

    /// Counts a request in; `None` when `max_connections` are busy.
    ///
    /// As with nginx, connections that stand unused do not count: those of another worker could not be used here,
    /// and would refuse requests to a server that has nothing to do.
    pub(super) fn enter(self: &Arc<Self>) -> Option<InFlight> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let entered = InFlight(self.clone());
        (before < self.max_connections).then_some(entered)
    }
}

/// `host:port` without the port that its scheme has anyway, as clients write it.
fn authority(name: &str, has_tls: bool) -> HeaderValue {
    let host = name.strip_suffix(if has_tls { ":443" } else { ":80" }).unwrap_or(name);
    HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static("upstream"))
}

/// Half the time that a server may be silent anyway: servers of gRPC take more than two pings in one silence for an
/// attack, unless minutes lie between them.
fn ping_interval(timeouts: &config::UpstreamTimeouts) -> Duration {
    const LEAST: Duration = Duration::from_secs(10);
    const MOST: Duration = Duration::from_secs(300);
    (timeouts.response.max(timeouts.body) / 2).clamp(LEAST, MOST)
}

async fn look_up(under_way: LookUp) {
    let server = &under_way.0;
    let Host::Name(host) = &server.host else { return };
    match tokio::net::lookup_host((host.name.as_str(), server.port)).await {
        Ok(found) => {
            let mut resolved = host.resolved.lock();
            resolved.addresses = found.collect();
            resolved.at = Some(Instant::now());
        }
        Err(error) => tracing::debug!(name = %host.name, %error, "an upstream's name could not be resolved"),
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        let Host::Name(host) = &self.0.host else { return };
        host.resolved.lock().looking_up = false;
        host.looked_up.notify_waiters();
    }
}

impl Resolved {
    fn is_fresh(&self, refresh: Duration) -> bool {
        !self.addresses.is_empty() && self.at.is_some_and(|at| at.elapsed() < refresh)
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
