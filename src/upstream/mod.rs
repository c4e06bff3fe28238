//! Upstreams: groups of servers, the choice among them, what happens when they fail, and each worker's own
//! connections to them.

mod background_tasks;
mod balance;
mod connect;
mod dns;
mod ejection;
mod fault;
mod handover;
mod health;
mod http1;
mod http2;
mod pool;
mod response;
mod retry_budget;
mod server;
mod server_socket;
mod server_state;
mod status;
mod tls;
mod translate;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::Now;
use crate::config::ServerId;
use crate::config::UpstreamId;
use crate::config::{self, Config};
use crate::net::deadline;

pub use background_tasks::BackgroundTasks;
pub use balance::{HashInput, ServerChoice, fnv1a};
pub use connect::ConnectFault;
pub use fault::ServerFault;
pub use handover::SavedServer;
pub use pool::{Lease, Pools};
pub use response::{ExchangeFault, ResponseSlot, SendOutcome, ServerBody};
pub use retry_budget::RetryPermit;
pub use server::{Server, ServerInFlight};
pub use server_socket::ServerSocket;
pub use status::{DrainOutcome, ServerStatus, UpstreamStatus};

use balance::Balancer;
use retry_budget::RetryBudget;
use server_state::{DOWN, DRAINING, EJECTED};
use status::RetryCounts;

/// One configured upstream, shared by all workers.
pub struct Upstream {
    pub name: Arc<str>,
    /// Its place in the configuration.
    pub id: UpstreamId,
    pub servers: Vec<Arc<Server>>,
    pub retries: config::RetryConfig,
    balance: config::BalancePolicy,
    balancer: Balancer,
    health: Option<config::HealthConfig>,
    eject: Option<config::EjectConfig>,
    /// Ticks.
    pub response_ticks: u64,
    pub response_timeout: Duration,
    /// Ticks.
    pub body_ticks: u64,
    state: Arc<UpstreamState>,
}

/// What an upstream remembers over a reload, beside what its servers do.
struct UpstreamState {
    budget: Arc<RetryBudget>,
    retry_counts: RetryCounts,
    /// Held while a server is ejected: how many are, is part of the decision.
    ejection_lock: Mutex<()>,
}

impl Upstream {
    /// All upstreams of `config`. What `previous` knows of servers with the same upstream and name stays known;
    /// settings are those of `config`.
    pub fn build_all(config: &Config, previous: &[Arc<Upstream>]) -> Vec<Arc<Upstream>> {
        let mut first_server = 0;
        let build = |(index, upstream): (usize, &config::UpstreamConfig)| {
            let before = previous.iter().find(|one| *one.name == *upstream.name);
            let workers = config.server.workers;
            let built =
                Upstream::new(upstream, workers, UpstreamId(index), first_server, before.map(|one| &**one));
            first_server += built.servers.len();
            Arc::new(built)
        };
        config.upstreams.iter().enumerate().map(build).collect()
    }

    /// Builds the upstream at `index` of the configuration, numbering its servers from `first_server` on; `demo`
    /// has none.
    fn new(
        config: &config::UpstreamConfig,
        workers: usize,
        id: UpstreamId,
        first_server: usize,
        previous: Option<&Upstream>,
    ) -> Upstream {
        let mut known: Vec<&Arc<Server>> = previous.iter().flat_map(|upstream| &upstream.servers).collect();
        let mut server = |(place, server): (usize, &config::UpstreamServerConfig)| {
            let before = known
                .iter()
                .position(|known| known.matches_config(server, config))
                .map(|at| known.remove(at));
            let server = Server::new(
                first_server + place,
                ServerId(place),
                server,
                config,
                before.map(|before| &**before),
            );
            if let (Some(previous), None) = (previous, before) {
                server.begin_slow_start(Now::read_clock());
                // Spoken to in another way it is another server, but still the one that shall be empty.
                if previous.servers.iter().any(|known| known.name == server.name && known.is_draining()) {
                    server.state.set_flag(DRAINING);
                }
            }
            Arc::new(server)
        };
        let servers: Vec<_> = match &config.kind {
            config::UpstreamKind::Demo => Vec::new(),
            config::UpstreamKind::Servers(servers) => servers.iter().enumerate().map(&mut server).collect(),
        };
        let new_memory = || {
            let (budget, retried) = (RetryBudget::new(workers), RetryCounts::default());
            Arc::new(UpstreamState { budget, retry_counts: retried, ejection_lock: Mutex::default() })
        };
        Upstream {
            name: config.name.as_str().into(),
            id,
            balance: config.balance.clone(),
            balancer: Balancer::new(&config.balance, &servers),
            servers,
            retries: config.retries.clone(),
            health: config.health.clone(),
            eject: config.eject.clone(),
            response_ticks: deadline::ticks_for(config.timeouts.response),
            response_timeout: config.timeouts.response,
            body_ticks: deadline::ticks_for(config.timeouts.body),
            state: previous.map_or_else(new_memory, |upstream| upstream.state.clone()),
        }
    }

    /// Ends states that nobody would end any more, since what brought them is off.
    fn clear_stale_flags(&self) {
        for server in &self.servers {
            if self.health.is_none() {
                server.state.clear_flag(DOWN);
            }
            if self.eject.is_none() {
                server.state.clear_flag(EJECTED);
            }
        }
    }

    /// The built-in echo backend has no servers.
    pub fn is_demo(&self) -> bool {
        self.servers.is_empty()
    }

    /// What the balancer wants to know of a request.
    pub fn hash_input(&self) -> &HashInput {
        self.balancer.hash_input()
    }

    /// Chooses a server that is up, has room and is not among `tried`, places in the upstream; backups only when no
    /// other is left.
    ///
    /// `hash` is read only by the `hash:*` kinds.
    pub fn choose_server(&self, hash: u64, tried: &[ServerId]) -> ServerChoice<'_> {
        self.balancer.choose_server(&self.servers, hash, tried)
    }

    /// Counts a request of this worker, at `now`: retries are a share of them.
    #[inline]
    pub fn count_request(&self, worker: usize, now: Now) {
        self.state.budget.count_request(worker, now);
    }

    /// Leave for one more try because of `reason`, unless the budget is used up.
    pub fn try_retry(&self, reason: config::RetryReason) -> Option<RetryPermit> {
        let retrying = self.state.budget.try_retry(self.retries.budget, Now::read_clock())?;
        self.state.retry_counts.count_retry(reason);
        Some(retrying)
    }
}

#[cfg(test)]
mod tests;
