//! Upstreams: groups of servers, balancing, health, retries, and each worker's own connections to servers.
//!
//! A reload replaces the settings of a server ([`Server`]) and keeps its state (`server_state`): requests in flight, up
//! or down, ejected, draining, slow start, the addresses of its name. Two configurations mean the same server if its
//! upstream, its `host:port`, TLS and protocol agree; [`Server::id`] also changes with its TLS settings.
//!
//! `balance` asks each server for its availability and its effective weight. Ejections and slow starts end by the clock
//! at the next look, without a timer or a task. [`BackgroundTasks`] holds the only tasks, on the control thread: health
//! checks and DNS refreshes. Each worker counts its own requests for the retry budget; only a retry takes a lock.
//!
//! An upstream with `sticky` gives each client a cookie that names its server (`sticky`); judging knows nothing of it.
//! An upstream with `obey` is asked less: its responses begin pauses ([`Pushback`]), which judging respects.
//!
//! An HTTP/1 connection has no task and serves one exchange at a time. HTTP/2 connections are shared by the requests of
//! a worker: one is filled before the next is opened, and requests that arrive before the first one is up wait for the
//! same connect. Only [`PooledConnection`] and the modules below it know which HTTP a server speaks: `translate`
//! converts a request as it is sent.

mod balance;
mod connect;
mod dns;
mod fault;
mod handover;
mod health;
mod http1;
mod http2;
mod lock_free;
mod pool;
mod pushback;
mod response;
mod retry_budget;
mod send_outcome;
mod server;
mod server_queue;
mod server_socket;
mod server_state;
mod status;
mod sticky;
mod tls;
mod translate;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::net::deadline;
use sluicegate_base::clock::Now;
use sluicegate_model::{self as model, Config, EjectConfig, ServerId, UpstreamId};

pub use balance::NoServer;
pub use connect::ConnectFault;
pub use fault::ServerFault;
pub use handover::SavedServer;
pub use pool::{PooledConnection, Pools};
pub use pushback::{PauseStatus, Pushback, UpstreamPause, WHOLE_UPSTREAM};
pub use response::{ResponseSlot, ServerBody};
pub use retry_budget::RetryPermit;
pub use send_outcome::{ExchangeFault, SendOutcome};
pub use server::{Server, ServerInFlight};
pub use server_queue::{ServerPlace, ServerWaiter};
pub use server_socket::ServerSocket;
pub use status::{DrainOutcome, QueueStatus, ResponseCounts, ServerStatus, UpstreamStatus};
pub use sticky::StickyCookie;
pub use tls::ServerTls;

use balance::Balancer;
use pushback::PushbackState;
use retry_budget::RetryBudget;
use server::Availability;
use server_queue::ServerQueue;
use server_state::{DOWN, DRAINING, EJECTED};

/// One configured upstream, shared by all workers.
pub struct Upstream {
    /// The name of the upstream.
    pub name: Arc<str>,
    /// The team that owns it.
    pub owner: Option<Arc<str>>,
    /// The index of the upstream in the configuration.
    pub id: UpstreamId,
    /// The servers, in file order.
    pub servers: Vec<Arc<Server>>,
    /// The rules for further tries of failed requests.
    pub retries: model::RetryConfig,
    /// The rule by which a server is chosen.
    pub balance: model::BalancePolicy,
    balancer: Balancer,
    /// Each connection to a server begins with a PROXY header, and serves one client connection.
    pub announces_clients: bool,
    health: Option<model::HealthConfig>,
    eject: Option<model::EjectConfig>,
    /// `None` = no response pauses the requests behind it.
    pub pushback: Option<Pushback>,
    queue: Option<model::ServerQueueConfig>,
    /// The maximum of each server; `u32::MAX` = no bound.
    max_connections: u32,
    /// Ticks.
    pub response_ticks: u64,
    /// The longest time from the request to the head of its response, as `response_ticks` has it in ticks.
    pub response_timeout: Duration,
    /// Ticks.
    pub body_ticks: u64,
    state: Arc<UpstreamState>,
}

/// The state of an upstream that survives a reload, beside that of its servers.
#[derive(Default)]
struct UpstreamState {
    budget: Arc<RetryBudget>,
    /// Retries by their reason.
    retry_counts: [AtomicU64; model::RetryReason::WORDS.len()],
    queue: Arc<ServerQueue>,
    /// Locked while a server is ejected or drained: the decision depends on the state of the others.
    ejection_lock: Mutex<()>,
    /// Made when a configuration first has `obey`.
    pushback: OnceLock<Arc<PushbackState>>,
}

impl Upstream {
    /// Builds all upstreams of `config`. The state of servers that `previous` contains as well is kept; all settings
    /// are those of `config`.
    pub fn build_all(config: &Config, previous: &[Arc<Upstream>]) -> Vec<Arc<Upstream>> {
        let mut first_server = 0;
        let build = |(index, upstream): (usize, &model::UpstreamConfig)| {
            let before = previous.iter().find(|one| *one.name == *upstream.name);
            let built =
                Upstream::new(upstream, config, UpstreamId(index), first_server, before.map(|one| &**one));
            first_server += built.servers.len();
            Arc::new(built)
        };
        config.upstreams.iter().enumerate().map(build).collect()
    }

    /// Builds the upstream at `index` of the `whole` configuration and numbers its servers from `first_server` on;
    /// `demo` has none.
    fn new(
        config: &model::UpstreamConfig,
        whole: &Config,
        id: UpstreamId,
        first_server: usize,
        previous: Option<&Upstream>,
    ) -> Upstream {
        let new_state = || {
            let budget = RetryBudget::new(whole.server.workers);
            Arc::new(UpstreamState { budget, ..UpstreamState::default() })
        };
        let state = previous.map_or_else(new_state, |upstream| upstream.state.clone());
        let max_connections = config.max_connections.unwrap_or(u32::MAX);
        let mut known: Vec<&Arc<Server>> = previous.iter().flat_map(|upstream| &upstream.servers).collect();
        let mut server = |(position, server): (usize, &model::UpstreamServerConfig)| {
            let before = known
                .iter()
                .position(|known| known.matches_config(server, config))
                .map(|at| known.remove(at));
            let server = Server::new(
                first_server + position,
                ServerId(position),
                server,
                config,
                before.map(|before| &**before),
            );
            if before.is_none() {
                server.state.set_max_connections(max_connections);
            }
            // The servers of all gateways share it, so that the end of any request wakes a waiter.
            if config.queue.is_some() {
                server.state.queue.get_or_init(|| state.queue.signal());
            }
            if let (Some(previous), None) = (previous, before) {
                server.begin_slow_start(Now::read_clock());
                // A new protocol makes it another server, but the operator still wants it drained.
                if previous.servers.iter().any(|known| known.name == server.name && known.is_draining()) {
                    server.state.set_flag(DRAINING);
                }
            }
            Arc::new(server)
        };
        let servers: Vec<_> = match &config.kind {
            model::UpstreamKind::Demo => Vec::new(),
            model::UpstreamKind::Servers(servers) => servers.iter().enumerate().map(&mut server).collect(),
        };
        let pushback = config.obey.as_ref().map(|obey| {
            let new_state = || Arc::new(PushbackState::new(whole.state.max_keys, &config.name));
            Pushback::new(obey, whole.state.redis.is_some(), state.pushback.get_or_init(new_state))
        });
        Upstream {
            name: config.name.as_str().into(),
            owner: config.owner.clone(),
            id,
            balance: config.balance.clone(),
            balancer: Balancer::new(config.balance.clone(), config.sticky.is_some(), &servers),
            announces_clients: config.proxy_protocol,
            servers,
            retries: config.retries.clone(),
            health: config.health.clone(),
            eject: config.eject.clone(),
            pushback,
            queue: config.queue.clone(),
            max_connections,
            response_ticks: deadline::ticks_for(config.timeouts.response),
            response_timeout: config.timeouts.response,
            body_ticks: deadline::ticks_for(config.timeouts.body),
            state,
        }
    }

    /// Clears states that no event would end any more, because their feature is off.
    fn clear_stale_flags(&self) {
        for server in &self.servers {
            if self.health.is_none() {
                server.state.clear_flag(DOWN);
            }
            if self.eject.is_none() {
                server.state.clear_flag(EJECTED);
            }
        }
        self.state.queue.hand_out_places();
    }

    /// The built-in echo backend has no servers.
    pub fn is_demo(&self) -> bool {
        self.servers.is_empty()
    }

    /// Chooses a server that is up, has capacity and is not among the positions in `tried`; a backup only when no other
    /// server is left.
    ///
    /// Only the `hash:*` policies read `hash`, and `sticky`: there it is 1 + the position of the server that the cookie
    /// names, or 0.
    ///
    /// # Errors
    /// There is none.
    pub fn choose_server(&self, hash: u64, tried: &[ServerId]) -> Result<&Arc<Server>, NoServer> {
        self.balancer.choose_server(&self.servers, hash, tried)
    }

    /// The reason why no server would take the next request; `None` = one would. Chooses none, so nothing changes.
    pub fn find_refusal(&self) -> Option<NoServer> {
        let has = |wanted| self.servers.iter().any(|server| server.check_availability() == wanted);
        let is_suspect = |server: &Server| server.is_ejected() && server.has_capacity();
        match () {
            () if self.is_demo() => None,
            () if self.queue.is_some() && self.state.queue.has_waiters() => Some(NoServer::Full),
            () if has(Availability::Available) => None,
            () if has(Availability::Full) => Some(NoServer::Full),
            // As a last resort an ejected server gets it.
            () if self.servers.iter().any(|server| is_suspect(server)) => None,
            () if has(Availability::Ejected) => Some(NoServer::Full),
            () => Some(NoServer::Down),
        }
    }

    /// Counts a request of `worker` at `now`: the retry budget is a share of them.
    #[inline]
    pub fn count_request(&self, worker: usize, now: Now) {
        self.state.budget.count_request(worker, now);
    }

    /// A permit for one retry because of `reason`, unless the budget is used up.
    pub fn try_retry(&self, reason: model::RetryReason) -> Option<RetryPermit> {
        let permit = self.state.budget.try_retry(self.retries.budget, Now::read_clock())?;
        self.state.retry_counts[reason as usize].fetch_add(1, Relaxed);
        Some(permit)
    }

    /// Records a response. A status of `eject.status` is an error if the request was complete, and does not count
    /// otherwise; every other status ends a row of errors, also one that pushes back.
    #[inline]
    pub fn record_response(&self, server: &Server, status: StatusCode, is_complete: bool) {
        match &self.eject {
            Some(eject) if eject.status.contains(status.as_u16()) && !self.pushes_back(status) => {
                if is_complete {
                    self.record_fault(server, ServerFault::Status(status));
                }
            }
            _ => server.state.record_success(),
        }
    }

    /// Records an error, logs it, and ejects the server after too many in a row.
    #[cold]
    pub fn record_fault(&self, server: &Server, fault: ServerFault) {
        let now = Now::read_clock();
        let (errors, suppressed) = server.state.record_error(now, fault);
        if let Some(suppressed) = suppressed {
            tracing::warn!(
                upstream = %self.name, server = %server.name, suppressed,
                "an exchange with a server failed: {fault}"
            );
        }
        if let Some(eject) = &self.eject
            && errors >= eject.errors
        {
            self.eject_server(server, eject, fault, now);
        }
    }

    /// Ejects a server, unless too many are or it is the last one that is up.
    fn eject_server(&self, server: &Server, eject: &EjectConfig, fault: ServerFault, now: Now) {
        let _guard = self.state.ejection_lock.lock();
        let is_ejected = |one: &Server| one.current_flags() & EJECTED != 0;
        let ejected = self.servers.iter().filter(|one| is_ejected(one)).count();
        let most = ((self.servers.len() as f64 * eject.max / 100.0) as usize).max(1);
        let others = self.servers.iter().filter(|one| one.position != server.position);
        if is_ejected(server) || ejected >= most || !others.into_iter().any(|one| one.is_up()) {
            return;
        }
        let span = u64::try_from(eject.span.as_nanos()).unwrap_or(u64::MAX);
        server.state.mark_ejected(Now(now.0.saturating_add(span)));
        tracing::warn!(
            upstream = %self.name, server = %server.name, seconds = eject.span.as_secs_f64(),
            "a server is ejected: {} errors in a row, the last one: {fault}", eject.errors
        );
    }
}

/// The tasks of all upstreams; they end when this is dropped.
#[must_use = "the tasks end when this is dropped"]
pub struct BackgroundTasks(JoinSet<()>);

impl BackgroundTasks {
    /// Starts the tasks of `upstreams` on the current runtime.
    pub fn spawn_all(upstreams: &[Arc<Upstream>]) -> BackgroundTasks {
        let mut tasks = JoinSet::new();
        for upstream in upstreams {
            upstream.clear_stale_flags();
            for server in &upstream.servers {
                if let Some(health) = &upstream.health {
                    tasks.spawn(health::watch_server(server.clone(), health.clone()));
                }
                if let Some(name) = &server.state.dns_name {
                    tasks.spawn(name.clone().refresh_forever(server.dns_refresh));
                }
            }
        }
        BackgroundTasks(tasks)
    }

    /// Replaces all tasks by those of `upstreams`.
    pub fn restart_all(&mut self, upstreams: &[Arc<Upstream>]) {
        // Abort first, or a stale check could set a state that no event ends.
        self.0.abort_all();
        *self = BackgroundTasks::spawn_all(upstreams);
    }
}

/// FNV-1a (Fowler, Noll, Vo): the same on every gateway, so that all of them send a value to the same server.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// [`fnv1a`] of an address without its port.
pub fn hash_address(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(ip) => fnv1a(&ip.octets()),
        IpAddr::V6(ip) => fnv1a(&ip.octets()),
    }
}

/// An address in four bytes, for comparisons. A collision is harmless: an obsolete connection is kept a little longer.
fn address_tag(address: &SocketAddr) -> u32 {
    let hash = hash_address(address.ip());
    (hash >> 32) as u32 ^ hash as u32
}

#[cfg(test)]
mod tests;
