//! The way to the store: its servers, the connections of a worker, and who may use them now.

mod breaker;
mod cluster;
mod connection;
mod facts;
mod fault;
mod hash_slot;
mod probe_schedule;
mod prober;
mod report;
mod route;
mod sentinel;
mod server;
mod topology;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fleet::FleetCount;
use super::{Debts, Fleet, Packed, Script, SharedKey, SharedLimit};
use crate::base::clock::Now;
use crate::config::{self, RedisServers};

use connection::{Connection, Greeting};
use fault::{Address, Fault};
use prober::Beat;
use report::Counts;
use route::{Lane, Outcome, Work};
use server::Server;
use topology::Topology;

pub use fault::Failure;
pub use report::Report;

/// Keys that one call may be about: all of them on a single server, those of one hash slot in a Cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u16);

/// The store as this process knows it, shared by all its threads.
pub struct Store {
    servers: RedisServers,
    greeting: Greeting,
    prefix: String,
    /// For a whole call.
    timeout: Duration,
    /// What the store calls this process.
    node: String,
    beat: Script,
    /// The code of all scripts that are loaded on every connection.
    scripts: Mutex<Arc<[&'static str]>>,
    topology: ArcSwap<Topology>,
    /// Told when the servers may not be where they were.
    doubt: Notify,
    nodes: AtomicU64,
    /// Gateways that are to be reckoned with, however few were counted.
    nodes_least: u64,
    /// The limits that are counted here, each with the gateways that count it.
    fleets: Mutex<Arc<[Arc<Fleet>]>>,
    debts: Arc<Debts>,
    /// Tells it from the stores before.
    id: u64,
    counts: Counts,
}

/// The connections of one worker.
pub struct Link {
    store: Arc<Store>,
    view: RefCell<View>,
}

/// The servers as a worker knows them, and its ways to them, at the same places.
struct View {
    topology: Arc<Topology>,
    lanes: Vec<Rc<Lane>>,
}

/// How often one call is sent elsewhere. Once is enough, but for a key that moves on meanwhile.
const HOPS_MAX: usize = 3;
/// How often it is looked whether a store is still used.
const USERS_LOOK: Duration = Duration::from_millis(500);
/// For saying goodbye.
const FAREWELL: Duration = Duration::from_millis(100);

// === impl Store ===

impl Store {
    /// Knows the servers by `config`; asks nobody yet. What is owed to the store `before` is owed to this one.
    pub fn new(config: &config::Redis, before: Option<&Store>) -> Arc<Store> {
        let beat = Script::new(include_str!("../script/beat.lua"));
        let debts =
            before.map_or_else(|| Arc::new(Debts::new(prober::dice())), |before| before.debts.clone());
        let id = before.map_or(1, |before| before.id + 1);
        Arc::new(Store {
            servers: config.servers.clone(),
            greeting: Greeting::new(config),
            prefix: config.prefix.clone(),
            timeout: config.timeout,
            node: format!("{:016x}", prober::dice()),
            scripts: Mutex::new([beat.code].into()),
            beat,
            topology: ArcSwap::from_pointee(Topology::single(None)),
            doubt: Notify::new(),
            nodes: AtomicU64::new(before.map_or(1, Store::nodes)),
            nodes_least: config.nodes_at_least,
            fleets: Mutex::new([].into()),
            debts,
            id,
            counts: Counts::default(),
        })
    }

    /// Finds the servers, keeps looking whether they answer, and tells them that this gateway lives; for ever.
    pub async fn supervise(self: Arc<Store>) {
        match self.servers.clone() {
            RedisServers::Single(host, port) => {
                let server = Arc::new(Server::new(Address { host, port }));
                self.topology.store(Arc::new(Topology::single(Some(server.clone()))));
                prober::watch(self, server).await;
            }
            RedisServers::Sentinel { sentinels, name } => sentinel::supervise(self, &sentinels, &name).await,
            RedisServers::Cluster(seeds) => cluster::supervise(self, &seeds).await,
        }
    }

    /// As [`Store::supervise`] as long as somebody holds what `users` points to; then says goodbye.
    pub async fn supervise_for<T>(self: Arc<Store>, users: std::sync::Weak<T>) {
        // Ends with this future too, wherever it is dropped.
        let mut supervised = tokio::task::JoinSet::new();
        supervised.spawn(self.clone().supervise());
        while users.strong_count() > 0 {
            tokio::time::sleep(USERS_LOOK).await;
        }
        supervised.shutdown().await;
        self.farewell().await;
    }

    /// Has `script` loaded on every connection that is made from now on.
    pub fn load(&self, script: &Script) {
        self.scripts(Some(script));
    }

    /// True unless every server is used as usual.
    pub fn is_degraded(&self) -> bool {
        let topology = self.topology.load();
        let now = Now::read();
        topology.servers.is_empty() || topology.servers.iter().any(|server| !server.breaker.is_settled(now))
    }

    /// Gateways that live, as the store counted them last; at least 1.
    pub fn nodes(&self) -> u64 {
        self.nodes.load(Relaxed)
    }

    /// As another process counted them, until the store does.
    pub(super) fn know_nodes(&self, nodes: u64) {
        self.nodes.fetch_max(nodes, Relaxed);
    }

    /// What is owed to the store.
    pub fn debts(&self) -> &Arc<Debts> {
        &self.debts
    }

    /// From now on this store is charged what is owed, and told of these limits.
    pub fn serve(&self, limits: &[&Arc<SharedLimit>]) {
        let fleets: Arc<[Arc<Fleet>]> = limits.iter().map(|limit| limit.fleet.clone()).collect();
        fleets.iter().for_each(|fleet| fleet.reckon_with(self.nodes_least, self.nodes()));
        *self.fleets.lock() = fleets;
        self.debts.follow(limits);
        self.debts.creditor.store(self.id, Relaxed);
    }

    /// False for a store of a configuration that is not in force any more.
    pub(super) fn is_creditor(&self) -> bool {
        self.debts.creditor.load(Relaxed) == self.id
    }

    /// None for a store of a configuration that is not in force any more: another one announces its limits.
    fn fleets(&self) -> Arc<[Arc<Fleet>]> {
        if self.is_creditor() { self.fleets.lock().clone() } else { Arc::default() }
    }

    /// Which call `key` may be part of.
    pub fn group(&self, key: &SharedKey) -> Group {
        match self.servers {
            RedisServers::Cluster(_) => Group(hash_slot::of_key(key)),
            _ => Group(0),
        }
    }

    /// The connections of the worker that asks; they live on its runtime.
    pub fn link(self: &Arc<Store>) -> Link {
        Link { store: self.clone(), view: RefCell::new(View::of(self.topology.load_full(), &[])) }
    }

    /// What is counted about the store.
    pub fn report(&self) -> Report {
        let topology = self.topology.load();
        let state = |server: &Arc<Server>| (server.name.clone(), !server.breaker.is_open());
        Report {
            answered: self.counts.answered(),
            failed: self.counts.failed(),
            servers: topology.servers.iter().map(state).collect(),
            nodes: self.nodes(),
        }
    }

    /// Tells the servers that this gateway leaves, if they listen; not to be called before [`Store::supervise`]
    /// was dropped.
    pub async fn farewell(&self) {
        let servers = self.topology.load_full();
        let mut asked = tokio::task::JoinSet::new();
        for server in servers.servers.iter().filter(|server| !server.breaker.is_open()) {
            let (greeting, address) = (self.greeting.clone(), server.address.clone());
            let mut row = redis::pipe();
            row.cmd("ZREM").arg(server.nodes_key(&self.prefix)).arg(&self.node);
            // Also those of a store that another one has replaced: they would count as another gateway's.
            let fleets = self.fleets.lock().clone();
            if !fleets.is_empty() {
                let fields = fleets.iter().map(|fleet| fleet.announced.field(&self.node));
                row.cmd("HDEL").arg(server.limits_key(&self.prefix)).arg(fields.collect::<Vec<_>>());
            }
            asked.spawn(async move { greeting.connect(&address).await?.ask_in_a_row(&row).await });
        }
        let _ = tokio::time::timeout(FAREWELL, asked.join_all()).await;
    }

    /// The code of all scripts, `script` included from now on.
    fn scripts(&self, script: Option<&Script>) -> Arc<[&'static str]> {
        let mut scripts = self.scripts.lock();
        if let Some(script) = script
            && !scripts.contains(&script.code)
        {
            *scripts = scripts.iter().copied().chain([script.code]).collect();
        }
        scripts.clone()
    }

    /// A connection that is ready for calls.
    async fn connect(&self, address: &Address) -> Result<Connection, Fault> {
        let connection = self.greeting.connect(address).await?;
        connection.load(&self.scripts(None)).await?;
        Ok(connection)
    }

    fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// `server` counted the gateways. For a while after an outage it may have forgotten some.
    fn count_nodes(&self, server: &Server, beat: Beat, forgetful: bool) {
        server.nodes.store(beat.nodes, Relaxed);
        *server.fleets.lock() = beat.fleets;
        let topology = self.topology.load();
        for fleet in &*self.fleets() {
            let told = topology.servers.iter().filter_map(|server| server.count_of(fleet));
            if let Some(count) = told.reduce(FleetCount::and) {
                fleet.hear(count, forgetful);
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

// === impl Link ===

impl Link {
    /// Runs `script`. It is loaded where it is missing, and sent anew only where the server said that it did not run.
    ///
    /// # Errors
    /// Within the configured timeout, whatever the store does.
    pub async fn call(&self, group: Group, script: &Script, packed: &Packed) -> Result<Vec<u8>, Failure> {
        let result = self.pursue(group, script, packed).await;
        self.store.counts.note(&result);
        result
    }

    /// Follows the key from server to server.
    async fn pursue(&self, group: Group, script: &Script, packed: &Packed) -> Result<Vec<u8>, Failure> {
        let deadline = Instant::now() + self.store.timeout;
        let work = Work { store: &self.store, script, packed, deadline };
        let mut asking = false;
        let mut lane = self.lane_of(group).ok_or(Failure::Down)?;
        for _ in 0..HOPS_MAX {
            match lane.run(&work, asking).await {
                Outcome::Answered(bytes) => return Ok(bytes),
                Outcome::Failed(failure) => return Err(failure),
                Outcome::TryAgain => break,
                Outcome::Elsewhere(address, once) => {
                    self.store.doubt();
                    let address = address.said_by(&lane.server.address);
                    lane = self.lane_to(&address, (!once).then_some(group)).ok_or(Failure::Moving)?;
                    asking = once;
                }
            }
        }
        self.store.doubt();
        Err(Failure::Moving)
    }

    /// The way to a server that another one named, as the owner of `group` from now on.
    fn lane_to(&self, address: &Address, group: Option<Group>) -> Option<Rc<Lane>> {
        self.refresh();
        let view = self.view.borrow();
        let place = view.topology.find(address)?;
        if let Some(group) = group {
            view.topology.hand_over(group.0, place);
        }
        view.lanes.get(place).cloned()
    }

    fn lane_of(&self, group: Group) -> Option<Rc<Lane>> {
        self.refresh();
        let view = self.view.borrow();
        view.lanes.get(view.topology.owner(group.0)?).cloned()
    }

    /// Follows a change of the servers; connections to those that stay are kept.
    fn refresh(&self) {
        let current = self.store.topology.load();
        let mut view = self.view.borrow_mut();
        if !Arc::ptr_eq(&current, &view.topology) {
            *view = View::of(Arc::clone(&current), &view.lanes);
        }
    }
}

// === impl View ===

impl View {
    fn of(topology: Arc<Topology>, known: &[Rc<Lane>]) -> View {
        let lane = |server: &Arc<Server>| {
            let same = known.iter().find(|lane| Arc::ptr_eq(&lane.server, server));
            same.cloned().unwrap_or_else(|| Rc::new(Lane::new(server.clone())))
        };
        View { lanes: topology.servers.iter().map(lane).collect(), topology }
    }
}
