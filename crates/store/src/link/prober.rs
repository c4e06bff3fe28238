//! The prober of one server: a single write checks whether it answers and tells it that this gateway lives.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisResult, ServerErrorKind, Value};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::Store;
use super::connection::{StoreConnection, add_script_loads, take_last_answer};
use super::fault::{DescribedFault, StoreFault};
use super::probe_schedule::ProbePace;
use super::server::{Eviction, StoreServer};
use super::server_link::is_script_missing;
use crate::fleet::{FleetCount, LimitAnnouncement};
use sluicegate_base::clock::Now;

/// The time that a gateway counts as alive after its last heartbeat, in milliseconds.
const GATEWAY_LIFE_MS: u64 = 15_000;
/// Minimum time between two log lines about one server; the next line covers the changes between.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// The time before another cause of the same outage is logged.
const CAUSE_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum pause between two probes.
const PAUSE_MIN: Duration = Duration::from_millis(20);

struct Prober {
    store: Arc<Store>,
    server: Arc<StoreServer>,
    connection: Option<StoreConnection>,
    pace: ProbePace,
    last_log: Option<LastLog>,
}

/// The reply of a server to a heartbeat.
pub(super) struct BeatReply {
    /// The number of live gateways.
    pub nodes: u64,
    /// The gateways that count each limit.
    pub fleets: Vec<(LimitAnnouncement, FleetCount)>,
}

/// The last log line about the server.
struct LastLog {
    /// The logged fault; `None` if the line said that the server answers.
    fault: Option<DescribedFault>,
    /// `None` if it is too old to matter.
    at: Option<Instant>,
}

/// Watches `server` for ever.
pub(super) async fn watch_server(store: Arc<Store>, server: Arc<StoreServer>) {
    let mut prober = Prober::new(store, server);
    loop {
        let wait = prober.probe_server().await;
        tokio::select! {
            () = sleep_until(wait) => {}
            () = prober.server.beat_due.notified(), if prober.pace.is_closed() => {}
        }
        if prober.pace.is_closed() && prober.server.breaker.is_open() {
            prober.rest_after_open().await;
        }
    }
}

/// True if `server` accepts a heartbeat right now.
pub(super) async fn accepts_beat(store: &Arc<Store>, server: &Arc<StoreServer>) -> bool {
    Prober::new(store.clone(), server.clone()).send_beat().await.is_ok()
}

// === impl BeatReply ===

impl BeatReply {
    fn parse_reply(answer: &Value, limits: Vec<LimitAnnouncement>) -> Option<BeatReply> {
        let (nodes, counts): (u64, Vec<u8>) = redis::from_redis_value_ref(answer).ok()?;
        let counts = FleetCount::parse_reply(&counts, limits.len())?;
        Some(BeatReply { nodes, fleets: limits.into_iter().zip(counts).collect() })
    }
}

// === impl Prober ===

impl Prober {
    fn new(store: Arc<Store>, server: Arc<StoreServer>) -> Prober {
        Prober { store, server, connection: None, pace: ProbePace::Fresh, last_log: None }
    }

    /// Sends one probe; returns the moment of the next.
    async fn probe_server(&mut self) -> Instant {
        let began = Instant::now();
        let result = self.send_beat().await;
        let breaker = &self.server.breaker;
        if let Err(fault) = &result {
            self.connection = None;
            self.store.doubt_topology();
            if self.pace.is_closed() {
                self.server.record_fault(breaker.epoch(), fault.kind);
            }
        }
        let (close, wait) = self.pace.on_probe(result.is_ok(), random_number());
        if let Some(ramp) = close {
            breaker.close(Now::read_clock(), ramp);
        }
        self.server.is_probed.store(true, Relaxed);
        self.store.record_reachability();
        match result {
            Ok(beat) => {
                self.store.count_nodes(&self.server, beat, self.pace.is_quick());
                // A first success while calls are still held back is not logged, and shows no cause.
                if !breaker.is_open() {
                    self.log_change(None);
                }
                self.watch_eviction().await;
            }
            Err(fault) => self.log_change(Some(fault).filter(|_| breaker.is_open())),
        }
        (began + wait).max(Instant::now() + PAUSE_MIN)
    }

    /// Asks about eviction, which makes the server forget counters. Many users may not ask: then nothing is known.
    async fn watch_eviction(&self) {
        let Some(connection) = &self.connection else { return };
        let info = timeout(self.store.timeout, connection.send_command(&redis::cmd("INFO"))).await;
        let Ok(Ok(Value::BulkString(info))) = info else { return };
        let found = Eviction::parse_info(&String::from_utf8_lossy(&info));
        let before = std::mem::replace(&mut *self.server.eviction.lock(), found.clone());
        if let Some(policy) = found.policy.filter(|policy| before.policy.as_ref() != Some(policy)) {
            warn!(server = %self.server.name, policy, "redis may evict counters; set maxmemory-policy noeviction");
        }
    }

    /// Calls opened the breaker: the server is left alone until the first probe.
    async fn rest_after_open(&mut self) {
        self.connection = None;
        self.store.record_reachability();
        self.store.doubt_topology();
        // Calls know only the kind of fault; a heartbeat may learn more.
        let fault =
            self.send_beat().await.err().unwrap_or_else(|| (*self.server.breaker_cause.lock()).into());
        self.log_change(Some(fault));
        let wait = self.pace.on_open(random_number());
        sleep(wait).await;
    }

    /// Sends a heartbeat: tells the server that this gateway lives and which limits it counts, and receives the
    /// number of gateways that count each.
    async fn send_beat(&mut self) -> Result<BeatReply, DescribedFault> {
        let connection = match self.connection.take() {
            Some(connection) if connection.is_alive() => connection,
            _ => self.store.connect_to(&self.server.address).await?,
        };
        let limits: Vec<LimitAnnouncement> =
            self.store.current_fleets().iter().map(|fleet| fleet.announcement.clone()).collect();
        let answer = timeout(self.store.timeout, self.call_beat_script(&connection, &limits)).await;
        let beat = match answer.map_err(|_| StoreFault::Timeout)? {
            // Only a primary redirects single keys of a slot that is leaving it.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) => BeatReply {
                nodes: self.server.nodes.load(Relaxed),
                fleets: self.server.fleets.lock().clone(),
            },
            answer => BeatReply::parse_reply(&answer?, limits).ok_or(StoreFault::Garbled)?,
        };
        self.connection = Some(connection);
        Ok(beat)
    }

    /// Calls the script of heartbeats. A server that lost it has lost all scripts, so all are loaded again.
    async fn call_beat_script(
        &self,
        connection: &StoreConnection,
        limits: &[LimitAnnouncement],
    ) -> RedisResult<Value> {
        let mut packed = Vec::with_capacity(16 * limits.len());
        limits.iter().for_each(|limit| limit.pack_into(&mut packed));
        let (prefix, server) = (&self.store.prefix, &self.server);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.store.beat_script.sha).arg(2);
        command.arg(server.nodes_key(prefix)).arg(server.limits_key(prefix));
        command.arg(self.store.node_name()).arg(GATEWAY_LIFE_MS).arg(packed);
        let answer = connection.send_command(&command).await;
        if !answer.as_ref().is_err_and(is_script_missing) {
            return answer;
        }
        let mut pipeline = Pipeline::new();
        add_script_loads(&mut pipeline, &self.store.loaded_scripts(None));
        pipeline.add_command(command);
        take_last_answer(connection.send_pipeline(&pipeline).await?)
    }

    /// Logs a change once: the cause of an outage, or its end.
    fn log_change(&mut self, fault: Option<DescribedFault>) {
        if !self.is_news(fault.as_ref()) {
            return;
        }
        let server = self.server.name.as_str();
        let is_first = self.last_log.is_none();
        match (&fault, &self.last_log) {
            (Some(DescribedFault { word, .. }), _) => {
                warn!(server, cause = word, "redis does not answer; limits fall back");
            }
            (None, Some(_)) => info!(server, "redis answers again"),
            (None, None) => info!(server, "redis answers"),
        }
        // The very first answer does not delay the line about an outage that follows soon.
        let at = if is_first && fault.is_none() { None } else { Some(Instant::now()) };
        self.last_log = Some(LastLog { fault, at });
    }

    fn is_news(&self, fault: Option<&DescribedFault>) -> bool {
        let Some(logged) = &self.last_log else { return true };
        let age = logged.at.map_or(Duration::MAX, |at| at.elapsed());
        match (&logged.fault, fault) {
            (None, None) => false,
            // The exact cause is logged at once if only its kind was logged before.
            (Some(logged), Some(fault)) => {
                logged.word != fault.word
                    && (age >= CAUSE_INTERVAL || !logged.is_specific() && fault.is_specific())
            }
            _ => age >= LOG_INTERVAL,
        }
    }
}

/// A random number.
pub(super) fn random_number() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::link::fault::StoreAddress;
    use sluicegate_model::{self as model, RedisServers};

    fn prober(host: &str, port: u16) -> Prober {
        let config = model::RedisConfig {
            servers: RedisServers::Single(host.into(), port),
            tls: false,
            tls_files: Default::default(),
            user: None,
            password: None,
            database: 0,
            prefix: "sg".into(),
            timeout: Duration::from_millis(200),
            nodes_at_least: 1,
            home: None,
        };
        let server = Arc::new(StoreServer::new(StoreAddress { host: host.into(), port }));
        Prober::new(Store::new(&config, None), server)
    }

    /// A server that loads every script and counts one gateway.
    async fn serve(listener: TcpListener) {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 64 * 1024];
        while let Ok(read @ 1..) = socket.read(&mut bytes).await {
            let is_beat = bytes[..read].windows(7).any(|word| word == b"EVALSHA");
            socket
                .write_all(if is_beat { &b"*2\r\n:1\r\n$0\r\n\r\n"[..] } else { &b"$1\r\nx\r\n"[..] })
                .await
                .unwrap();
        }
    }

    #[tokio::test]
    async fn a_first_success_during_an_outage_logs_no_cause() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut prober = prober("127.0.0.1", listener.local_addr().unwrap().port());
        let served = tokio::spawn(serve(listener));
        prober.pace = ProbePace::Open { failures: 9, succeeded: false };
        prober.log_change(Some(StoreFault::Timeout.into()));
        tokio::time::pause();
        tokio::time::advance(CAUSE_INTERVAL).await;
        tokio::time::resume();
        prober.probe_server().await;
        assert_eq!(prober.pace, ProbePace::Open { failures: 9, succeeded: true }, "the server answered");
        let logged = prober.last_log.as_ref().unwrap();
        assert!(logged.at.is_some_and(|at| at.elapsed() >= CAUSE_INTERVAL), "{:?}", logged.fault);
        prober.probe_server().await;
        assert!(prober.last_log.unwrap().fault.is_none() && prober.pace.is_closed());
        served.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_right_after_the_start_is_logged() {
        let mut prober = prober("h", 1);
        prober.log_change(None);
        let broken = DescribedFault::from(StoreFault::Broken);
        assert!(prober.is_news(Some(&broken)));
        prober.log_change(Some(broken));
        assert!(!prober.is_news(None), "lines are a second apart");
    }

    #[tokio::test(start_paused = true)]
    async fn another_cause_of_the_same_outage_is_logged_once_a_minute() {
        let mut prober = prober("h", 1);
        let (broken, denied) =
            (DescribedFault::from(StoreFault::Broken), DescribedFault::from(StoreFault::Unauthorized));
        prober.log_change(Some(broken.clone()));
        for (seconds, fault, is_news) in
            [(59, &denied, false), (1, &broken, false), (0, &denied, true), (600, &denied, false)]
        {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(prober.is_news(Some(fault)), is_news, "{fault:?} after {seconds} s");
            prober.log_change(Some(fault.clone()));
        }
        prober.log_change(None);
        assert!(!prober.is_news(Some(&broken)), "lines are a second apart");
        tokio::time::advance(LOG_INTERVAL).await;
        assert!(prober.is_news(Some(&broken)) && !prober.is_news(None));
        // The exact cause does not wait a minute behind its kind, and is logged once.
        prober.log_change(Some(broken.clone()));
        assert!(prober.is_news(Some(&DescribedFault::unknown_host())));
        prober.log_change(Some(DescribedFault::unknown_host()));
        let rejected = DescribedFault::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        for fault in [DescribedFault::unknown_host(), broken, rejected] {
            assert!(!prober.is_news(Some(&fault)), "{fault:?}");
        }
    }
}
