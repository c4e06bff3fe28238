//! Upstreams: groups of servers, the choice among them, and each worker's own connections to them.

mod balance;
mod connect;
mod form;
mod multiplexed;
mod pool;
mod server;
mod socket;
mod streams;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use crate::config;
use crate::deadline;

pub use balance::{Choice, Spread, fnv1a};
pub use connect::ConnectFault;
pub use pool::{Lease, Pools, Sent};
pub use server::Server;

use balance::Balancer;

/// How long a connection whose answer is complete may take to become free.
const REUSE_PATIENCE: Duration = Duration::from_millis(500);

/// One configured upstream, shared by all workers.
pub struct Upstream {
    pub name: Arc<str>,
    /// Its place in the configuration.
    pub index: usize,
    pub servers: Vec<Arc<Server>>,
    balancer: Balancer,
    /// Ticks.
    pub response_span: u64,
    /// Ticks.
    pub body_span: u64,
}

impl Upstream {
    /// Builds the upstream at `index` of the configuration, numbering its servers from `first_server` on; `demo`
    /// has none.
    pub fn new(config: &config::Upstream, index: usize, first_server: usize) -> Upstream {
        let servers: Vec<_> = match &config.kind {
            config::UpstreamKind::Demo => Vec::new(),
            config::UpstreamKind::Servers(servers) => servers
                .iter()
                .enumerate()
                .map(|(place, server)| Arc::new(Server::new(first_server + place, place, server, config)))
                .collect(),
        };
        Upstream {
            name: config.name.as_str().into(),
            index,
            balancer: Balancer::new(&config.balance, &servers),
            servers,
            response_span: deadline::ticks(config.timeouts.response),
            body_span: deadline::ticks(config.timeouts.body),
        }
    }

    /// The built-in echo backend has no servers.
    pub fn is_demo(&self) -> bool {
        self.servers.is_empty()
    }

    /// What the balancer wants to know of a request.
    pub fn spread(&self) -> &Spread {
        self.balancer.spread()
    }

    /// Chooses a server that was not `tried` yet and has room; backups only when no other is left.
    ///
    /// `hash` is read only by the `hash:*` kinds.
    pub fn choose(&self, hash: u64, tried: &[usize]) -> Choice<'_> {
        self.balancer.choose(&self.servers, hash, tried)
    }
}
