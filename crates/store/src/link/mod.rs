//! The way to the store: its servers, their breakers, and the connections of each worker.
//!
//! redis-rs greets, authenticates, pipelines, and reads replies, error codes and redirects; its own ways to find
//! servers and to connect to them break promises of this module. Its Cluster client sends a call again after a broken
//! connection, though the call may have run, and without retries it follows no redirect. Its Sentinel client needs
//! the right to ask the primary for its role, connects to it for each question, and waits a second for a silent
//! sentinel. Its connect bounds no reply, reads the system's certificates from disk each time, and does not tell
//! when the connection has ended. Its type for slots does not show the number.

mod breaker;
#[cfg(test)]
mod breaker_tests;
mod call_lines;
mod cluster;
mod connection;
mod fault;
mod outages;
mod probe_schedule;
mod prober;
mod report;
mod sentinel;
mod server;
mod server_link;
mod topology;
mod windows;
mod worker_link;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::*};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::fleet::FleetCount;
use super::{Debts, Fleet, LuaScript, ScriptReply, SharedKey, SharedLimit};
use sluicegate_base::clock::Now;
use sluicegate_model::{self as model, RedisServers};

use connection::{StoreConnection, StoreConnector};
use fault::{DescribedFault, StoreAddress};
use prober::BeatReply;
use report::CallCounts;
use server::StoreServer;
use topology::Topology;

pub(super) use call_lines::{LATE_TIMEOUT, LateReply};
pub use fault::StoreFault;
pub use outages::OutageReport;
pub use report::{BreakerState, StoreServerState};
pub(super) use server_link::CallFailure;
pub use windows::{NamedWindow, WindowScan};
pub use worker_link::Link;

/// A set of keys that one call may name: all keys of a single server, or those of one hash slot in a Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyGroup(pub u16);

/// The store as this process knows it, shared by all its threads.
pub struct Store {
    servers: RedisServers,
    connector: StoreConnector,
    prefix: String,
    /// The deadline of a whole call: the longest time that a request waits for the store.
    pub(super) timeout: Duration,
    /// The number that names this process in the store.
    process_node: u64,
    beat_script: LuaScript,
    /// The code of the scripts that are loaded on every connection.
    scripts: Mutex<Arc<[&'static str]>>,
    topology: ArcSwap<Topology>,
    /// Notified when the topology may have changed.
    topology_doubt: Notify,
    nodes: AtomicU64,
    /// Lower bound for the number of gateways, however few were counted.
    nodes_least: u64,
    /// The limits that are counted here, each with the gateways that count it.
    fleets: Mutex<Arc<[Arc<Fleet>]>>,
    debts: Arc<Debts>,
    /// Distinguishes it from the earlier stores of this process.
    id: u64,
    counts: CallCounts,
    /// Seconds by which the clock of the servers is ahead, if that matters.
    ahead_s: AtomicI64,
    outages: Mutex<OutageReport>,
    /// The secret that the gateways share, once the store told it; the same after a reload.
    pub(super) secret: Arc<Mutex<Option<[u8; 16]>>>,
    /// The store from which a region leases its units.
    home: Option<Arc<Store>>,
    /// The floor of the region in millionths of a limit, for the time in which its home does not answer.
    pub(super) home_share: u32,
}

/// The time between two checks that a store is still used.
const USERS_CHECK: Duration = Duration::from_millis(500);
/// The deadline for deregistering.
const DEREGISTER_TIMEOUT: Duration = Duration::from_millis(100);

// === impl Store ===

impl Store {
    /// A store with the servers of `config`, none of which it contacts yet. It takes over the debts to the store
    /// `before`.
    pub fn new(config: &model::RedisConfig, before: Option<&Store>) -> Arc<Store> {
        let beat = LuaScript::new(include_str!("../script/beat.lua"));
        let debts = before
            .map_or_else(|| Arc::new(Debts::new(prober::random_number())), |before| before.debts.clone());
        let id = before.map_or(1, |before| before.id + 1);
        Arc::new(Store {
            servers: config.servers.clone(),
            connector: StoreConnector::new(config),
            prefix: config.prefix.clone(),
            timeout: config.timeout,
            process_node: prober::random_number(),
            scripts: Mutex::new([beat.code].into()),
            beat_script: beat,
            topology: ArcSwap::from_pointee(Topology::with_server(None)),
            topology_doubt: Notify::new(),
            nodes: AtomicU64::new(before.map_or(1, Store::nodes)),
            nodes_least: config.nodes_at_least,
            fleets: Mutex::new([].into()),
            debts,
            id,
            counts: CallCounts::default(),
            ahead_s: AtomicI64::new(before.map_or(0, |before| before.ahead_s.load(Relaxed))),
            outages: Mutex::default(),
            secret: before.map(|before| before.secret.clone()).unwrap_or_default(),
            home: config.home.as_ref().map(|home| Store::new(&home.redis, None)),
            home_share: config.home.as_ref().map_or(0, |home| home.share),
        })
    }

    /// The time of the servers, in seconds since 1970, as far as it is known.
    pub(super) fn unix_seconds(&self) -> u64 {
        (Now::read_clock().to_unix_ns() / 1_000_000_000).saturating_add_signed(self.ahead_s.load(Relaxed))
    }

    /// True if a call did nothing because the clock of its server was beyond the borders of a window. From now on
    /// [`Store::unix_seconds`] goes by that clock.
    pub(super) fn heed_clock(&self, reply: &[u8]) -> bool {
        let Some(now_us) = ScriptReply::time_beyond(reply) else { return false };
        let here = Now::read_clock().to_unix_ns() / 1_000_000_000;
        self.ahead_s.store((now_us / 1_000_000) as i64 - here as i64, Relaxed);
        true
    }

    /// The store of the home of this region; `None` if this is no region.
    pub fn home(&self) -> Option<&Arc<Store>> {
        self.home.as_ref()
    }

    /// Finds the servers, probes whether they answer, and announces this gateway to them; those of the home, too. Never
    /// returns.
    pub async fn supervise(self: Arc<Store>) {
        let of_home = join_all(self.home.clone().map(Store::supervise_servers));
        tokio::join!(self.supervise_servers(), of_home);
    }

    async fn supervise_servers(self: Arc<Store>) {
        match self.servers.clone() {
            RedisServers::Single(host, port) => {
                let server = Arc::new(StoreServer::new(StoreAddress { host, port }));
                self.topology.store(Arc::new(Topology::with_server(Some(server.clone()))));
                prober::watch_server(self, server).await;
            }
            RedisServers::Sentinel { sentinels, name } => {
                sentinel::supervise_sentinels(self, &sentinels, &name).await
            }
            RedisServers::Cluster(seeds) => cluster::supervise_cluster(self, &seeds).await,
        }
    }

    /// Supervises like [`Store::supervise`], while the target of `users` is alive; then deregisters this gateway.
    pub async fn supervise_for<T>(self: Arc<Store>, users: std::sync::Weak<T>) {
        // The task ends with this future, wherever it is dropped.
        let mut supervised = tokio::task::JoinSet::new();
        supervised.spawn(self.clone().supervise());
        while users.strong_count() > 0 {
            tokio::time::sleep(USERS_CHECK).await;
        }
        supervised.shutdown().await;
        self.deregister_gateway().await;
        if let Some(home) = self.home() {
            home.deregister_gateway().await;
        }
    }

    /// Loads `script` on every connection that is made from now on.
    pub fn load_script(&self, script: &LuaScript) {
        self.loaded_scripts(Some(script));
        self.home().into_iter().for_each(|home| home.load_script(script));
    }

    /// True unless every server is in normal use.
    pub fn is_degraded(&self) -> bool {
        let topology = self.topology.load();
        let now = Now::read_clock();
        topology.servers.is_empty() || topology.servers.iter().any(|server| !server.breaker.is_settled(now))
    }

    /// True if calls to any server may be made.
    pub(super) fn is_reachable(&self) -> bool {
        self.topology.load().servers.iter().any(|server| !server.breaker.is_open())
    }

    /// The number of live gateways, as the store last counted them; at least 1.
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Relaxed)
    }

    /// Raises the count to that of another process, until the store reports its own.
    pub(super) fn raise_nodes(&self, nodes: u64) {
        self.nodes.fetch_max(nodes, Relaxed);
    }

    /// Admitted units that the store has not yet been charged.
    pub fn debts(&self) -> &Arc<Debts> {
        &self.debts
    }

    /// Puts this store into use: it is charged the debts, and these limits are announced to it.
    pub fn serve_limits(&self, limits: &[&Arc<SharedLimit>]) {
        let fleets: Arc<[Arc<Fleet>]> = limits.iter().map(|limit| limit.fleet.clone()).collect();
        fleets.iter().for_each(|fleet| fleet.set_nodes_least(self.nodes_least, self.nodes()));
        *self.fleets.lock() = fleets;
        self.debts.follow_limits(limits);
        self.debts.serve_store(self.id);
        // Until the store has answered, nobody knows whether other gateways have other numbers.
        self.topology.load().servers.iter().for_each(|server| server.beat_due.notify_one());
    }

    /// False for a store of a configuration that is no longer in force.
    pub(super) fn is_current(&self) -> bool {
        self.debts.current_store.load(Relaxed) == self.id
    }

    /// The fleets to announce; none for a store of a configuration that is no longer in force, because another store
    /// announces its limits.
    fn current_fleets(&self) -> Arc<[Arc<Fleet>]> {
        if self.is_current() { self.fleets.lock().clone() } else { Arc::default() }
    }

    /// The group that `key` belongs to.
    pub fn group_of(&self, key: &SharedKey) -> KeyGroup {
        match self.servers {
            RedisServers::Cluster(_) => KeyGroup(topology::slot_of_tag(&key.tag())),
            _ => KeyGroup(0),
        }
    }

    /// The secret that the gateways of this store share, for hashes that agree; `None` before the store told it. It may
    /// change when the store lost its memory.
    pub fn shared_secret(&self) -> Option<[u8; 16]> {
        *self.secret.lock()
    }

    /// Tells the servers that this gateway leaves, as far as they answer. Drop the future of [`Store::supervise`]
    /// first.
    pub async fn deregister_gateway(&self) {
        let servers = self.topology.load_full();
        let mut requests = tokio::task::JoinSet::new();
        for server in servers.servers.iter().filter(|server| !server.breaker.is_open()) {
            let (connector, address) = (self.connector.clone(), server.address.clone());
            let mut pipeline = redis::pipe();
            pipeline.cmd("ZREM").arg(server.nodes_key(&self.prefix)).arg(self.node_name());
            // This includes the fields of a store that was replaced: they would count as another gateway's.
            let fleets = self.fleets.lock().clone();
            if !fleets.is_empty() {
                let fields = fleets.iter().map(|fleet| fleet.announcement.field_name(&self.node_name()));
                pipeline.cmd("HDEL").arg(server.limits_key(&self.prefix)).arg(fields.collect::<Vec<_>>());
            }
            requests.spawn(async move {
                if let Ok(connection) = connector.connect(&address).await {
                    let _ = connection.send_pipeline(&pipeline).await;
                }
            });
        }
        let _ = tokio::time::timeout(DEREGISTER_TIMEOUT, requests.join_all()).await;
    }

    /// The code of all scripts, `script` included from now on.
    fn loaded_scripts(&self, script: Option<&LuaScript>) -> Arc<[&'static str]> {
        let mut scripts = self.scripts.lock();
        if let Some(script) = script
            && !scripts.contains(&script.code)
        {
            *scripts = scripts.iter().copied().chain([script.code]).collect();
        }
        scripts.clone()
    }

    /// Opens a connection that is ready for calls.
    async fn connect_to(&self, address: &StoreAddress) -> Result<StoreConnection, DescribedFault> {
        let connection = self.connector.connect(address).await?;
        connection.load_scripts(&self.loaded_scripts(None)).await?;
        Ok(connection)
    }

    fn doubt_topology(&self) {
        self.topology_doubt.notify_one();
    }

    /// Applies the gateway counts of `server`. For a while after an outage (`forgetful`) it may have forgotten some.
    fn count_nodes(&self, server: &StoreServer, beat: BeatReply, forgetful: bool) {
        server.nodes.store(beat.nodes, Relaxed);
        *server.fleets.lock() = beat.fleets;
        let topology = self.topology.load();
        for fleet in &*self.current_fleets() {
            let counts = topology.servers.iter().filter_map(|server| server.fleet_count(fleet));
            if let Some(count) = counts.reduce(FleetCount::merge_with) {
                fleet.apply_count(count, forgetful);
            }
        }
        let counted = topology.servers.iter().map(|server| server.nodes.load(Relaxed)).max();
        let counted = counted.unwrap_or(1).max(1);
        if forgetful {
            self.nodes.fetch_max(counted, Relaxed);
        } else {
            self.nodes.store(counted, Relaxed);
        }
    }
}
