//! Upstreams as the operator sees them: how each server stands, and draining one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use super::server_state::{DOWN, DRAINING, EJECTED};
use super::{Server, Upstream};
use crate::base::clock::Now;
use crate::config::{Balance, Reason};

/// Retries by their reason.
#[derive(Debug, Default)]
pub(super) struct Retried([AtomicU64; Reason::WORDS.len()]);

impl Retried {
    pub fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }
}

/// One upstream in words.
#[derive(Debug, Serialize)]
pub struct ToldUpstream {
    pub upstream: String,
    pub balance: String,
    pub servers: Vec<ToldServer>,
}

/// One server in words.
#[derive(Debug, Serialize)]
pub struct ToldServer {
    pub server: String,
    /// `up`, `down`, `ejected` or `draining`.
    pub state: &'static str,
    /// As configured.
    pub weight: u32,
    /// What part of the weight it has now, in percent.
    pub share: u64,
    pub backup: bool,
    pub in_flight: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
    /// Where the host is a name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<SocketAddr>,
    pub ejections: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<ToldError>,
}

/// What went wrong last.
#[derive(Debug, Serialize)]
pub struct ToldError {
    pub error: String,
    pub seconds_ago: f64,
}

/// What came of the wish to drain a server, or to have it back.
#[derive(Debug)]
pub enum Drained {
    Done(Vec<ToldServer>),
    NoSuchServer,
    /// No other server is up.
    LastOne,
}

impl Server {
    fn told(&self, now: Now) -> ToldServer {
        let state = self.settled_state();
        ToldServer {
            server: self.name.to_string(),
            state: match state {
                _ if state & DRAINING != 0 => "draining",
                _ if state & DOWN != 0 => "down",
                _ if state & EJECTED != 0 => "ejected",
                _ => "up",
            },
            weight: self.weight,
            share: self.share_percent(),
            backup: self.backup,
            in_flight: self.in_flight(),
            max_connections: Some(self.max_connections).filter(|most| *most != u32::MAX),
            addresses: self.standing.name.as_ref().map(|name| name.known()).unwrap_or_default(),
            ejections: self.standing.ejections(),
            last_error: self.standing.last_error().map(|(at, error)| ToldError {
                error: error.into_owned(),
                seconds_ago: (now.since(at) / 1_000_000) as f64 / 1_000.0,
            }),
        }
    }

    /// Its health checks do not say otherwise.
    pub fn is_healthy(&self) -> bool {
        self.standing.state() & DOWN == 0
    }

    pub fn is_ejected(&self) -> bool {
        self.settled_state() & EJECTED != 0
    }

    pub fn is_draining(&self) -> bool {
        self.standing.state() & DRAINING != 0
    }

    /// How often it was ejected.
    pub fn ejections(&self) -> u64 {
        self.standing.ejections()
    }

    /// Health checks that passed, and that failed.
    pub fn checks(&self) -> [u64; 2] {
        self.standing.checks()
    }
}

impl Upstream {
    pub fn told(&self, now: Now) -> ToldUpstream {
        let balance = match &self.balance {
            Balance::P2c => "p2c".to_owned(),
            Balance::RoundRobin => "round_robin".to_owned(),
            Balance::LeastConn => "least_conn".to_owned(),
            Balance::Random => "random".to_owned(),
            Balance::HashIp => "hash:ip".to_owned(),
            Balance::HashUri => "hash:uri".to_owned(),
            Balance::HashHeader(name) => format!("hash:header:{name}"),
        };
        let servers = self.servers.iter().map(|server| server.told(now)).collect();
        ToldUpstream { upstream: self.name.to_string(), balance, servers }
    }

    /// Sends no new requests to the servers called `server`, or sends them again; those in flight go on. The last
    /// one that is up is drained only by force.
    pub fn drain(&self, server: &str, drain: bool, force: bool) -> Drained {
        let now = Now::read();
        let _alone = self.memory.ejecting.lock();
        let (meant, others): (Vec<&Arc<Server>>, Vec<_>) =
            self.servers.iter().partition(|one| *one.name == *server);
        if meant.is_empty() {
            return Drained::NoSuchServer;
        }
        if drain && !force && !others.iter().any(|one| one.is_up()) {
            return Drained::LastOne;
        }
        for one in &meant {
            let changed = if drain { one.standing.set(DRAINING) } else { one.standing.clear(DRAINING) };
            if changed && !drain {
                one.rise(now);
            }
            if changed {
                let what = if drain { "is drained" } else { "is drained no longer" };
                tracing::info!(upstream = %self.name, server, "a server {what}");
            }
        }
        Drained::Done(meant.iter().map(|one| one.told(now)).collect())
    }

    /// Retries so far because of `reason`.
    pub fn retried(&self, reason: Reason) -> u64 {
        self.memory.retried.0[reason as usize].load(Relaxed)
    }

    /// Retries that the budget did not allow.
    pub fn unbudgeted(&self) -> u64 {
        self.memory.budget.refused()
    }
}
