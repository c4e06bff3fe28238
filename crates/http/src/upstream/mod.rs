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
//! An upstream with `obey` is asked less: its responses begin stops ([`Obey`]), which judging and forwarding respect.
//!
//! An HTTP/1 connection has no task and serves one exchange at a time. HTTP/2 connections are shared by the requests of
//! a worker: one is filled before the next is opened, and requests that arrive before the first one is up wait for the
//! same connect. Only [`Lease`] and the modules below it know which HTTP a server speaks: `translate` converts a
//! request as it is sent.

mod background_tasks;
mod balance;
mod connect;
mod dns;
mod ejection;
mod fault;
mod handover;
mod hash;
mod health;
mod http1;
mod http2;
mod obey;
mod pool;
mod queue_signal;
mod response;
mod retry_budget;
mod send_outcome;
mod server;
mod server_queue;
mod server_socket;
mod server_state;
mod status;
mod tls;
mod translate;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::net::deadline;
use sluicegate_base::clock::Now;
use sluicegate_model::{self as model, Config, ServerId, UpstreamId};

pub use background_tasks::BackgroundTasks;
pub use balance::{HashInput, ServerChoice};
pub use connect::ConnectFault;
pub use fault::ServerFault;
pub use handover::SavedServer;
pub use hash::fnv1a;
pub use obey::{Obey, StopStatus, UpstreamStop, WHOLE_UPSTREAM};
pub use pool::{Lease, Pools};
pub use response::{ResponseSlot, ServerBody};
pub use retry_budget::RetryPermit;
pub use send_outcome::{ExchangeFault, SendOutcome};
pub use server::{Server, ServerInFlight};
pub use server_queue::{ServerPlace, ServerWaiter};
pub use server_socket::ServerSocket;
pub use status::{DrainOutcome, QueueStatus, ServerStatus, UpstreamStatus};
pub use tls::ServerTls;

use balance::Balancer;
use obey::ObeyState;
use retry_budget::RetryBudget;
use server_queue::ServerQueue;
use server_state::{DOWN, DRAINING, EJECTED};
use status::RetryCounts;

/// One configured upstream, shared by all workers.
pub struct Upstream {
    pub name: Arc<str>,
    /// The index of the upstream in the configuration.
    pub id: UpstreamId,
    pub servers: Vec<Arc<Server>>,
    pub retries: model::RetryConfig,
    balance: model::BalancePolicy,
    balancer: Balancer,
    health: Option<model::HealthConfig>,
    eject: Option<model::EjectConfig>,
    /// `None` = no response stops the requests behind it.
    pub obey: Option<Obey>,
    queue: Option<model::ServerQueueConfig>,
    /// The maximum of each server; `u32::MAX` = no bound.
    max_connections: u32,
    /// Ticks.
    pub response_ticks: u64,
    pub response_timeout: Duration,
    /// Ticks.
    pub body_ticks: u64,
    state: Arc<UpstreamState>,
}

/// The state of an upstream that survives a reload, beside that of its servers.
struct UpstreamState {
    budget: Arc<RetryBudget>,
    retry_counts: RetryCounts,
    queue: Arc<ServerQueue>,
    /// Locked while a server is ejected or drained: the decision depends on the state of the others.
    ejection_lock: Mutex<()>,
    /// Made when a configuration first has `obey`.
    obey: OnceLock<Arc<ObeyState>>,
}

impl UpstreamState {
    fn new(workers: usize) -> UpstreamState {
        UpstreamState {
            budget: RetryBudget::new(workers),
            retry_counts: RetryCounts::default(),
            queue: Arc::default(),
            ejection_lock: Mutex::default(),
            obey: OnceLock::new(),
        }
    }
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
        let new_state = || Arc::new(UpstreamState::new(whole.server.workers));
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
        let obey = config.obey.as_ref().map(|obey| {
            let new_state = || Arc::new(ObeyState::new(whole.state.max_keys, &config.name));
            Obey::new(obey, whole.state.redis.is_some(), state.obey.get_or_init(new_state))
        });
        Upstream {
            name: config.name.as_str().into(),
            id,
            balance: config.balance.clone(),
            balancer: Balancer::new(&config.balance, &servers),
            servers,
            retries: config.retries.clone(),
            health: config.health.clone(),
            eject: config.eject.clone(),
            obey,
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

    /// The part of a request that the balancer hashes.
    pub fn hash_input(&self) -> &HashInput {
        self.balancer.hash_input()
    }

    /// Chooses a server that is up, has capacity and is not among the positions in `tried`; a backup only when no other
    /// server is left.
    ///
    /// Only the `hash:*` policies read `hash`.
    pub fn choose_server(&self, hash: u64, tried: &[ServerId]) -> ServerChoice<'_> {
        self.balancer.choose_server(&self.servers, hash, tried)
    }

    /// True while every server is down or draining.
    pub fn is_down(&self) -> bool {
        !self.is_demo() && self.servers.iter().all(|server| !server.is_healthy() || server.is_draining())
    }

    /// Counts a request of `worker` at `now`: the retry budget is a share of them.
    #[inline]
    pub fn count_request(&self, worker: usize, now: Now) {
        self.state.budget.count_request(worker, now);
    }

    /// A permit for one retry because of `reason`, unless the budget is used up.
    pub fn try_retry(&self, reason: model::RetryReason) -> Option<RetryPermit> {
        let permit = self.state.budget.try_retry(self.retries.budget, Now::read_clock())?;
        self.state.retry_counts.count_retry(reason);
        Some(permit)
    }
}

#[cfg(test)]
mod tests;
