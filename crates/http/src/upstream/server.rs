//! One server of an upstream: its settings, and the state that all workers share.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::HeaderValue;
use serde::{Deserialize, Serialize};

use super::dns::DnsName;
use super::server_state::{DOWN, DRAINING, EJECTED, SLOW_START, ServerState};
use super::tls::ServerTls;
use crate::net::deadline;
use sluicegate_base::clock::Now;
use sluicegate_model::{self as model, ServerId, UpstreamProtocol};

/// A server behind the gateway.
pub struct Server {
    /// The index among all servers of the configuration.
    pub index: usize,
    /// The position in the upstream.
    pub position: ServerId,
    /// `host:port` or `unix:/path`, as in logs and metrics.
    pub name: Arc<str>,
    /// The name of its upstream.
    pub upstream: Arc<str>,
    /// The Host header of `host_header: upstream`.
    pub authority: HeaderValue,
    /// The configured share of requests in relation to the other servers; at least 1.
    pub weight: u32,
    /// The server gets requests only while no other is up.
    pub backup: bool,
    /// The longest time to connect, TLS included.
    pub connect_timeout: Duration,
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) protocol: ServerProtocol,
    /// Each connection begins with a PROXY header, and serves one client connection.
    pub(super) announces_clients: bool,
    /// The time that a busy HTTP/2 connection may be silent before the server is pinged.
    pub(super) ping_interval: Duration,
    /// The time that an idle connection is kept, in ticks.
    pub idle_ticks: u64,
    /// Idle connections kept per worker.
    pub keepalive: usize,
    pub(super) dns_refresh: Duration,
    slow_start: Option<Duration>,
    /// The path of its unix socket; such a server has no other address.
    pub(super) unix_path: Option<PathBuf>,
    /// `None` if the host is a name.
    address: Option<SocketAddr>,
    pub(super) state: Arc<ServerState>,
    /// Distinguishes its connections from those of all other servers: unique in this process, and kept by a reload
    /// that keeps the server and its TLS settings.
    pub(super) id: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// The availability of a server for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Availability {
    Available,
    /// `max_connections` are busy.
    Full,
    /// Suspected because of recent errors.
    Ejected,
    /// Down, or draining.
    Unavailable,
}

/// The HTTP version of a server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ServerProtocol {
    Http1,
    Http2,
    /// Each TLS handshake decides.
    Negotiated,
}

impl ServerProtocol {
    fn from_config(protocol: UpstreamProtocol, has_tls: bool) -> ServerProtocol {
        match (protocol, has_tls) {
            (UpstreamProtocol::Http1, _) | (UpstreamProtocol::Auto, false) => ServerProtocol::Http1,
            (UpstreamProtocol::Http2, _) => ServerProtocol::Http2,
            (UpstreamProtocol::Auto, true) => ServerProtocol::Negotiated,
        }
    }
}

/// The host of a server on a unix socket, which has no name; nginx uses the same.
const UNIX_HOST: &str = "localhost";

/// A weight of 1 in units of the effective weight.
const WEIGHT_UNIT: u64 = 1024;
/// A slow start begins with this fraction of the weight: at zero the server would never be tried.
const SLOW_START_DIVISOR: u64 = 10;

impl Server {
    /// Keeps the state of the same server `before` a reload.
    pub(super) fn new(
        index: usize,
        position: ServerId,
        server: &model::UpstreamServerConfig,
        upstream: &model::UpstreamConfig,
        before: Option<&Server>,
    ) -> Server {
        let (host, port, unix) = match &server.address {
            model::ServerAddress::Tcp { host, port } => (host.as_str(), *port, None),
            model::ServerAddress::Unix(path) => (UNIX_HOST, 0, Some(path.clone())),
        };
        let address = host.parse().ok().map(|ip| SocketAddr::new(ip, port));
        let is_named = unix.is_none() && address.is_none();
        let new_state = || Arc::new(ServerState::new(is_named.then(|| DnsName::new(host, port))));
        let name = server.address.to_string();
        let tls = upstream.tls.as_ref().filter(|_| server.tls);
        // Other TLS rules need new connections, and so does the PROXY protocol.
        let same = before.filter(|before| match (&before.tls, tls) {
            _ if before.announces_clients != upstream.proxy_protocol => false,
            (Some(known), Some(tls)) => known.matches_settings(tls),
            _ => true,
        });
        let new_tls = |tls| Arc::new(ServerTls::new(host, tls, upstream.protocol));
        Server {
            id: same.map_or_else(|| NEXT_ID.fetch_add(1, Relaxed), |same| same.id),
            protocol: ServerProtocol::from_config(upstream.protocol, tls.is_some()),
            tls: tls.map(|tls| same.and_then(|same| same.tls.clone()).unwrap_or_else(|| new_tls(tls))),
            announces_clients: upstream.proxy_protocol,
            ping_interval: ping_interval(&upstream.timeouts),
            index,
            position,
            authority: match unix {
                Some(_) => HeaderValue::from_static(UNIX_HOST),
                None => strip_default_port(&name, upstream.tls.is_some() && server.tls),
            },
            name: name.into(),
            upstream: upstream.name.as_str().into(),
            weight: server.weight.max(1),
            backup: server.backup,
            connect_timeout: upstream.timeouts.connect,
            idle_ticks: deadline::ticks_for(upstream.timeouts.idle),
            keepalive: upstream.keepalive,
            dns_refresh: upstream.dns_refresh,
            slow_start: upstream.slow_start,
            unix_path: unix,
            address,
            state: before.map_or_else(new_state, |before| before.state.clone()),
        }
    }

    /// True if the configuration describes this server: name, TLS and protocol are the same.
    pub(super) fn matches_config(
        &self,
        server: &model::UpstreamServerConfig,
        upstream: &model::UpstreamConfig,
    ) -> bool {
        let has_tls = upstream.tls.is_some() && server.tls;
        *self.name == *server.address.to_string()
            && self.tls.is_some() == has_tls
            && self.protocol == ServerProtocol::from_config(upstream.protocol, has_tls)
    }

    /// The addresses to try; for a name those of the last look-up.
    ///
    /// # Errors
    /// The name has no address and never had one.
    pub(super) async fn resolve_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match &self.state.dns_name {
            Some(name) => name.addresses(self.dns_refresh).await,
            None => Ok(self.address.into_iter().collect()),
        }
    }

    /// Changes when the server's name loses an address; connections to a lost address are obsolete.
    #[inline]
    pub(super) fn lost_addresses(&self) -> u32 {
        self.state.dns_name.as_ref().map_or(0, |name| name.loss_count())
    }

    /// True if the server still has the address with this [`address_tag`](super::address_tag).
    pub(super) fn has_address(&self, tag: u32) -> bool {
        self.state.dns_name.as_ref().is_none_or(|name| name.has_address(tag))
    }

    /// Records data that the server sent without a request, and pauses the reuse of its connections: such data may be
    /// on its way on each of them, and would answer the next request.
    #[cold]
    pub(super) fn record_stray_data(&self) {
        if self.state.record_stray_data(Now::read_clock()) {
            tracing::warn!(
                upstream = %self.upstream, server = %self.name,
                "a server sent data without a request, such as a second answer or bytes behind the Content-Length; \
                 each time its connections are not reused for 10 s, because another client could get such data"
            );
        }
    }

    /// Requests in flight at this server, over all workers.
    pub fn in_flight(&self) -> u32 {
        self.state.in_flight.get()
    }

    /// True if it serves, and has as many requests as it may have.
    pub fn is_full(&self) -> bool {
        self.check_availability() == Availability::Full
    }

    /// True if it is below `max_connections`.
    pub(super) fn has_capacity(&self) -> bool {
        let most = self.state.max_connections();
        most == u32::MAX || self.in_flight() < most
    }

    /// Checks if the server accepts a request.
    #[inline]
    pub(super) fn check_availability(&self) -> Availability {
        let state = self.state.flags();
        if state & !SLOW_START != 0 && !self.is_usable(state) {
            return if state & (DOWN | DRAINING) == 0 {
                Availability::Ejected
            } else {
                Availability::Unavailable
            };
        }
        if self.has_capacity() { Availability::Available } else { Availability::Full }
    }

    /// True if the server may receive requests; ends an ejection that has expired.
    #[cold]
    fn is_usable(&self, state: u8) -> bool {
        if state & EJECTED != 0 {
            let now = Now::read_clock();
            if !self.state.is_ejection_over(now) {
                return false;
            }
            if self.state.clear_flag(EJECTED) {
                self.begin_slow_start(now);
                tracing::info!(upstream = %self.upstream, server = %self.name, "a server is no longer ejected");
            }
        }
        state & (DOWN | DRAINING) == 0
    }

    /// True if the server may receive requests.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.check_availability(), Availability::Available | Availability::Full)
    }

    /// The [`ServerState::flags`] without an ejection that has expired.
    pub(super) fn current_flags(&self) -> u8 {
        self.check_availability();
        self.state.flags()
    }

    /// The weight of a server with `slow_start` grows from now on.
    pub(super) fn begin_slow_start(&self, now: Now) {
        if self.slow_start.is_some() {
            self.state.begin_slow_start(now);
        }
    }

    /// The weight times [`WEIGHT_UNIT`], less during a slow start.
    #[inline]
    pub(super) fn effective_weight(&self) -> u64 {
        let full = u64::from(self.weight) * WEIGHT_UNIT;
        if self.state.flags() & SLOW_START == 0 { full } else { self.ramped_weight(full) }
    }

    #[cold]
    fn ramped_weight(&self, full: u64) -> u64 {
        let span = self.slow_start.map_or(0, |span| span.as_nanos());
        let elapsed = u128::from(self.state.slow_start_ns(Now::read_clock()));
        if elapsed >= span {
            self.state.clear_flag(SLOW_START);
            return full;
        }
        ((u128::from(full) * elapsed / span) as u64).max(full / SLOW_START_DIVISOR)
    }

    /// The effective weight, in percent of the configured one.
    pub(super) fn weight_percent(&self) -> u64 {
        self.effective_weight() * 100 / (u64::from(self.weight) * WEIGHT_UNIT)
    }

    /// Counts a request in; `None` when `max_connections` are busy.
    ///
    /// As in nginx, idle connections do not count: this worker cannot use those of another one, and they would block
    /// requests to an idle server.
    pub fn begin_request(self: &Arc<Self>) -> Option<ServerInFlight> {
        let before = self.state.in_flight.add();
        let counted = ServerInFlight(self.clone());
        (before < self.state.max_connections()).then_some(counted)
    }

    /// Counts a request in like [`Server::begin_request`], but never above the maximum, not even for a moment: the
    /// queue calls it under its lock, which the end of a request takes.
    pub(super) fn try_begin_request(self: &Arc<Self>) -> Option<ServerInFlight> {
        self.state.in_flight.try_add(self.state.max_connections()).then(|| ServerInFlight(self.clone()))
    }
}

/// `host:port` without the default port of its scheme, as clients write it.
fn strip_default_port(name: &str, has_tls: bool) -> HeaderValue {
    let host = name.strip_suffix(if has_tls { ":443" } else { ":80" }).unwrap_or(name);
    HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static("upstream"))
}

/// Half the longest timeout: gRPC servers treat more than two pings during one silence as an attack, unless minutes lie
/// between them.
fn ping_interval(timeouts: &model::UpstreamTimeouts) -> Duration {
    const LEAST: Duration = Duration::from_secs(10);
    const MOST: Duration = Duration::from_secs(300);
    (timeouts.response.max(timeouts.body) / 2).clamp(LEAST, MOST)
}

/// One request in flight at a server; uncounted when dropped.
pub struct ServerInFlight(Arc<Server>);

impl ServerInFlight {
    /// The server at which the request is in flight.
    #[inline]
    pub fn server(&self) -> &Arc<Server> {
        &self.0
    }
}

impl Drop for ServerInFlight {
    fn drop(&mut self) {
        let state = &self.0.state;
        state.in_flight.remove();
        state.signal_queue();
    }
}
