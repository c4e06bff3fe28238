//! The status of upstreams for the operator, and draining a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::server_state::{DOWN, DRAINING, EJECTED};
use super::{PauseStatus, Server, Upstream};
use sluicegate_base::clock::Now;
use sluicegate_base::json_shape::json_object;
use sluicegate_model::{BalancePolicy, RetryReason};

json_object! {
    /// The status of one upstream.
    #[derive(Debug)]
    pub struct UpstreamStatus as "Upstream" {
        pub upstream: String = "Its name.",
        pub owner: Option<String> = maybe "The team whose file defines it; absent without one.",
        pub balance: String = "How a server is chosen.",
        pub queue: Option<QueueStatus> = maybe "The queue in front of its servers; absent without one.",
        pub responses: ResponseCounts = "Responses of servers since the start, without those tried again.",
        pub servers: Vec<ServerStatus> = "Its servers.",
        pub stop: Option<PauseStatus> = maybe "Its stops; absent without `obey`.",
    }

    /// The status of the queue of an upstream.
    #[derive(Debug, Clone, PartialEq)]
    pub struct QueueStatus as "ServerQueue" {
        pub size: usize = "The most requests that may wait.",
        pub waiting: usize = "Requests that wait now.",
        pub waits: u64 = "Waits that have ended, whatever their end.",
        pub wait_seconds: f64 = "The time of all these waits.",
        pub timeouts: u64 = "Waits that `max_wait` ended.",
    }

    /// The status of one server.
    #[derive(Debug)]
    pub struct ServerStatus as "Server" {
        pub server: String = "Its address, or its name with the port.",
        pub state: &'static str = "Its state." in ["up", "down", "ejected", "draining"],
        pub weight: u32 = "Its configured weight.",
        pub share: u64 = "Its effective weight, in percent of the configured one.",
        pub backup: bool = "Whether it is used only while no other server is up.",
        pub in_flight: u32 = "Requests in flight.",
        pub max_connections: Option<u32> = maybe "The most requests in flight; absent without a bound.",
        pub addresses: Vec<SocketAddr> = maybe "The addresses of its name.",
        pub ejections: u64 = "How often it was ejected.",
        pub responses: ResponseCounts = "Its responses since the start, one for each try.",
        pub last_error: Option<LastError> = maybe "Its last error.",
    }

    /// Responses of servers by status class.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct ResponseCounts as "ResponseCounts" {
        pub class_2xx: u64 = "Successes." as "2xx",
        pub class_3xx: u64 = "Redirections." as "3xx",
        pub class_4xx: u64 = "Errors of clients." as "4xx",
        pub class_5xx: u64 = "Errors of servers." as "5xx",
    }

    /// The last error of a server.
    #[derive(Debug)]
    pub struct LastError as "ServerError" {
        pub error: String = "The error, in the words of the access log.",
        pub seconds_ago: f64 = "Its age.",
    }
}

/// The outcome of draining a server, or of ending that.
#[derive(Debug)]
pub enum DrainOutcome {
    /// The servers of this name drain, or no longer do.
    Done,
    /// The upstream has no server of this name.
    NoSuchServer,
    /// No other server is up.
    LastServer,
}

impl ResponseCounts {
    /// The counts of the classes from 1xx to 5xx, of which 1xx is left out.
    pub fn new([_, class_2xx, class_3xx, class_4xx, class_5xx]: [u64; 5]) -> ResponseCounts {
        ResponseCounts { class_2xx, class_3xx, class_4xx, class_5xx }
    }
}

impl Server {
    fn status_at(&self, now: Now) -> ServerStatus {
        let state = self.current_flags();
        ServerStatus {
            server: self.name.to_string(),
            state: match state {
                _ if state & DRAINING != 0 => "draining",
                _ if state & DOWN != 0 => "down",
                _ if state & EJECTED != 0 => "ejected",
                _ => "up",
            },
            weight: self.weight,
            share: self.weight_percent(),
            backup: self.backup,
            in_flight: self.in_flight(),
            max_connections: Some(self.state.max_connections()).filter(|most| *most != u32::MAX),
            addresses: self.state.dns_name.as_ref().map(|name| name.known_addresses()).unwrap_or_default(),
            ejections: self.ejection_count(),
            responses: ResponseCounts::default(),
            last_error: self.state.last_error().map(|(at, error)| LastError {
                error: error.into_owned(),
                seconds_ago: (now.ns_since(at) / 1_000_000) as f64 / 1_000.0,
            }),
        }
    }

    /// True unless its health checks fail.
    pub fn is_healthy(&self) -> bool {
        self.state.flags() & DOWN == 0
    }

    /// True if the server is left out after errors.
    pub fn is_ejected(&self) -> bool {
        self.current_flags() & EJECTED != 0
    }

    /// True if the server finishes its requests and gets no new ones.
    pub fn is_draining(&self) -> bool {
        self.state.flags() & DRAINING != 0
    }

    /// The number of ejections so far; a reload does not reset it.
    pub fn ejection_count(&self) -> u64 {
        self.state.ejections.load(Relaxed)
    }

    /// Connections on which it sent data without a request.
    pub fn stray_data_count(&self) -> u64 {
        self.state.stray_data.load(Relaxed)
    }

    /// Health checks that passed and that failed.
    pub fn check_counts(&self) -> [u64; 2] {
        self.state.check_counts.each_ref().map(|count| count.load(Relaxed))
    }
}

impl Upstream {
    /// The status of the upstream and of its servers at `now`, without their responses, which metrics count.
    pub fn status_at(&self, now: Now) -> UpstreamStatus {
        let balance = match &self.balance {
            BalancePolicy::P2c => "p2c".to_owned(),
            BalancePolicy::RoundRobin => "round_robin".to_owned(),
            BalancePolicy::LeastConn => "least_conn".to_owned(),
            BalancePolicy::Random => "random".to_owned(),
            BalancePolicy::HashIp => "hash:ip".to_owned(),
            BalancePolicy::HashUri => "hash:uri".to_owned(),
            BalancePolicy::HashHeader(name) => format!("hash:header:{name}"),
        };
        let servers = self.servers.iter().map(|server| server.status_at(now)).collect();
        let stop = self.pushback.as_ref().map(|pushback| pushback.status_at(now));
        let queue = self.queue.as_ref().map(|queue| self.state.queue.status(queue.size));
        UpstreamStatus {
            upstream: self.name.to_string(),
            owner: self.owner.as_deref().map(str::to_owned),
            balance,
            queue,
            responses: ResponseCounts::default(),
            servers,
            stop,
        }
    }

    /// Starts or stops draining the servers called `server`: a draining server finishes its requests and gets no new
    /// ones. The last server that is up is drained only by `force`.
    pub fn drain_servers(&self, server: &str, drain: bool, force: bool) -> DrainOutcome {
        let now = Now::read_clock();
        let _guard = self.state.ejection_lock.lock();
        let (matching, others): (Vec<&Arc<Server>>, Vec<_>) =
            self.servers.iter().partition(|one| *one.name == *server);
        if matching.is_empty() {
            return DrainOutcome::NoSuchServer;
        }
        if drain && !force && !others.iter().any(|one| one.is_up()) {
            return DrainOutcome::LastServer;
        }
        for one in &matching {
            let changed = if drain { one.state.set_flag(DRAINING) } else { one.state.clear_flag(DRAINING) };
            if changed && !drain {
                one.begin_slow_start(now);
            }
            if changed {
                let change = if drain { "is draining" } else { "is no longer draining" };
                tracing::info!(upstream = %self.name, server, "a server {change}");
            }
        }
        self.state.queue.hand_out_places();
        DrainOutcome::Done
    }

    /// Retries so far because of `reason`.
    pub fn retry_count(&self, reason: RetryReason) -> u64 {
        self.state.retry_counts[reason as usize].load(Relaxed)
    }

    /// Retries that the budget rejected.
    pub fn retries_over_budget(&self) -> u64 {
        self.state.budget.rejected.load(Relaxed)
    }
}
